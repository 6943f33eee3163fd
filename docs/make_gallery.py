"""Run the examples and write the gallery, docs/gallery.md and its figures: `python docs/make_gallery.py [NAME ...]`.

With names, only these examples run; the output of the others is kept. It takes a few minutes of processor time.
"""

import ast
import io
import json
import runpy
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLES, IMAGES, OUTPUTS = ROOT / "examples", ROOT / "docs" / "images", ROOT / "docs" / "gallery.json"
GALLERY = {
    "pumps": "Classify the series of a file",
    "forecast": "Forecast a series",
    "irregular_times": "Irregular times",
    "anomaly": "Streaming: anomalies as they happen",
    "time_scales": "Time scales of a trained model",
    "export_numpy": "Export to NumPy",
    "replace_lstm": "Replace nn.LSTM",
}
"""The examples that run without data of your own, in the order of the page."""
REINFORCEMENT = """\
A T-maze shows the agent only at its entrance on which side of the far end the reward lies. LEM remembers
it as the policy of sb3-contrib, and restarts where episodes begin; a policy without memory cannot solve the maze.
[Reinforcement learning](reinforcement-learning.md) has the program, the measurements, and the same for TorchRL.

![Return while training](images/t-maze.png)
"""
WITH_DATA = {
    "classify": "any file of the UCR and UEA archives",
    "keywords": "folders of 16 kHz wav files, such as Speech Commands",
}
"""The examples that need data, and which."""
NOTEBOOKS = {
    "classify": "from a data set to a classifier, its scores, its explanation and a model file",
    "forecast": "from a series to a forecaster",
}
"""The notebooks, and what they show."""
INTRODUCTION = """# Gallery

Complete programs of 40 to 90 lines, with what they print and draw. Each runs as it is, in seconds to a minute, from
the folder `examples/` of a checkout; a file name as its argument writes the figure.
"""


def run(name: str) -> str:
    """Run one example and store its figure, if it draws one; return what it printed."""
    sys.path.insert(0, str(EXAMPLES))
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    options = {"figure": str(IMAGES / f"gallery-{name}.png")} if draws(name) else {}
    with redirect_stdout(io.StringIO()) as out:
        main(**options)
    return out.getvalue()


def draws(name: str) -> bool:
    """Return whether an example draws a figure."""
    return "figure: str" in (EXAMPLES / f"{name}.py").read_text()


def describe(name: str) -> str:
    """Return the docstring of an example without the command that runs it."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    first, *rest = text.split("\n\n")
    return "\n\n".join([first.rpartition(": python ")[0] + ".", *rest])


def write(outputs: dict[str, str]) -> str:
    """Write the page."""
    parts = [INTRODUCTION]
    for name, title in GALLERY.items():
        parts.append(f"## {title}\n\n{describe(name)}\n")
        if draws(name):
            parts.append(f"![{title}](images/gallery-{name}.png)\n")
        parts.append(f"```{{code-block}} none\n{outputs[name].strip()}\n```\n")
        parts.append(f"<details><summary><code>examples/{name}.py</code></summary>\n")
        parts.append(f"```{{literalinclude}} ../examples/{name}.py\n:language: python\n```\n\n</details>\n")
    parts.append(f"## Memory for an agent\n\n{REINFORCEMENT}\n")
    parts.append("## With data of your own\n")
    for name, data in WITH_DATA.items():
        text = describe(name).replace("\n", "\n  ").replace("\n  \n", "\n\n")
        parts.append(f"- `examples/{name}.py`, for {data}. {text}")
    parts.append("\n## Notebooks\n")
    parts += [f"- `examples/notebooks/{name}.ipynb`: {what}." for name, what in NOTEBOOKS.items()]
    return "\n".join(parts) + "\n"


def main(names: list[str]) -> None:
    outputs = json.loads(OUTPUTS.read_text()) if OUTPUTS.exists() else {}
    for name in names or GALLERY:
        began = time.perf_counter()
        outputs[name] = run(name)
        print(f"{name}: {time.perf_counter() - began:.0f} s")
        OUTPUTS.write_text(json.dumps(outputs, indent=1, sort_keys=True) + "\n")
    (ROOT / "docs" / "gallery.md").write_text(write(outputs))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Use an installed package as a stranger would, from an empty folder: `python -I tools/smoke.py core kernel`.

`core`: imports and the command line; `extras`: each missing extra is named; `kernel` or `loop`: which of them must run;
`demo`: the demo's recipe, shortened. Called by tools/try_package.py; needs nothing but the package.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

EXTRA_MODULES = ("scipy", "pyarrow", "matplotlib", "sklearn", "optuna", "librosa", "onnx", "tensorboard", "pytest")
SHORT = ("adding/short", "--task.length", "20", "--task.steps_per_epoch", "5", "--train.epochs", "2")
SHORT += ("--model.hidden_size", "8")


def lem(*words: str, status: int = 0) -> tuple[str, str]:
    """Run a command in this process, which has torch loaded already; return what it prints."""
    from lem.cli import main

    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        got = main([*words])
    assert got == status, f"lem {' '.join(words)} gave {got}: {out.getvalue()}{error.getvalue()}"
    return out.getvalue(), error.getvalue()


def core() -> None:
    import torch

    import lem as package

    assert Path(package.__file__).is_relative_to(sys.prefix), f"{package.__file__} is not the installed package"
    assert importlib.metadata.version("long-expressive-memory") == package.__version__
    outputs, (y_n, z_n) = package.LEM(6, 32)(torch.randn(50, 3, 6))
    outputs.sum().backward()
    assert y_n.shape == z_n.shape == (1, 3, 32)
    said = subprocess.run(["lem", "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"long-expressive-memory {package.__version__}\n", said
    assert "fitzhugh_nagumo/lem " in lem("recipes")[0]
    lem("train", *SHORT, "--seed", "1")
    (result,) = Path("runs").rglob("result.json")
    assert json.loads(result.read_text())["epochs"] == 2


def extras() -> None:
    """Each extra that is not there is named by the error that needs it."""
    present = [name for name in EXTRA_MODULES if importlib.util.find_spec(name)]
    assert not present, f"an environment without extras has {present}"
    Path("x.csv").write_text("a,b,y\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n")
    Path("x.parquet").write_bytes(b"PAR1")
    named = {
        "data": ("train", "fitzhugh_nagumo/lem"),
        "plot": ("train", *SHORT, "--figure"),
        "sklearn": ("fit", "x.csv", "--target", "y", "--out", "x.safetensors"),
        "tune": ("tune", "fitzhugh_nagumo/lem", "--trials", "1"),
        "track": ("train", *SHORT, "--tensorboard", "curves"),
    }
    for extra, words in named.items():
        said = lem(*words, status=2)[1]
        assert f"pip install '.[{extra}]'" in said, f"lem {' '.join(words)} says: {said}"
    from lem.tasks.google12 import _librosa
    from lem.timeseries import files
    from lem.timeseries.export import EXPORTS
    from lem.timeseries.predictor import Predictor

    model = Predictor("regressor", 1, 1, {"cell": "lem", "hidden_size": 2})
    refused("data", lambda: files.read("x.parquet"))
    refused("audio", _librosa)
    refused("export", lambda: EXPORTS["onnx"][0](model, Path("x.onnx"), False))


def refused(extra: str, call) -> None:
    said = "nothing"
    try:
        call()
    except ImportError as error:
        said = str(error)
    assert f"pip install '.[{extra}]'" in said, f"what needs [{extra}] says: {said}"


def doctor() -> dict:
    report = json.loads(lem("doctor", "--no-speed", "--json")[0])
    assert report["ok"], report["checks"]
    return report


def kernel() -> None:
    from lem.kernels.cpu.library import all_targets

    built = all_targets()
    wanted = {"baseline", "avx2", "avx512"} if platform.machine() in ("x86_64", "AMD64") else {"baseline"}
    assert wanted <= set(built), f"the kernel must have the targets {wanted}; got {built}"
    report = doctor()
    assert report["kernel"]["backend"] == "native", report["kernel"]


def loop() -> None:
    report = doctor()
    assert report["kernel"]["backend"] == "loop", report["kernel"]
    assert any("the C++ kernel is not built" in advice and "compiler" in advice for advice in report["advice"])


def demo() -> None:
    lem("train", "fitzhugh_nagumo/lem", "--figure", "--train.epochs", "1")
    (figure,) = Path("runs").rglob("*.png")
    assert figure.read_bytes().startswith(b"\x89PNG")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    for word in sys.argv[1:]:
        {"core": core, "extras": extras, "kernel": kernel, "loop": loop, "demo": demo}[word]()

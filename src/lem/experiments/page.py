"""One static HTML page of many runs: tables, learning curves and links to the run folders. Nothing is fetched."""

import html
import os
import re
from pathlib import Path
from urllib.parse import quote

from lem.atomic import write_atomically
from lem.experiments.record import RunRecord
from lem.experiments.report import Group, draw_curves, hardware, run_notes, summary_rows
from lem.readable import format_duration, format_score

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2.5rem } h3 { font-size: 1.05rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: 0.88rem; display: block; overflow-x: auto }
th, td { text-align: left; padding: 0.3rem 0.9rem 0.3rem 0; border-bottom: 1px solid #ddd; vertical-align: top }
th { border-bottom: 2px solid #444; white-space: nowrap }
td.missing { color: #777; font-style: italic }
img { max-width: 100%; height: auto } figure { margin: 1rem 0 } figcaption, .quiet { color: #555; font-size: 0.88rem }
"""


def write_page(groups: list[Group], folder: Path) -> Path:
    """Write `index.html` and its figures, as SVG and PNG, to a folder; return the page."""
    if not groups:
        raise ValueError("There is no finished run to report.")
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    rows = summary_rows(groups)
    runs = sum(len(group.runs) for group in groups)
    parts = [
        "<h1>Runs</h1>",
        f"<p class=quiet>{runs} finished runs of {len(groups)} recipes. A score is the test metric at the best "
        "validation epoch: the mean over the seeds ± their standard deviation.</p>",
        _table(list(rows[0]), [list(row.values()) for row in rows]),
    ]
    parts.append("<h2>Learning curves</h2>")
    for number, group in enumerate(groups):
        parts += _section(group, folder, f"{re.sub('[^a-z0-9]+', '-', group.recipe.name)}-{number}")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>lem: runs</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
    write_atomically(folder / "index.html", page.encode())
    return folder / "index.html"


def _section(group: Group, folder: Path, name: str) -> list[str]:
    draw_curves(group, [folder / "figures" / f"{name}.svg", folder / "figures" / f"{name}.png"])
    rows = []
    for run, result in zip(group.runs, group.results):
        epochs = f"{result['epochs']} of {result['epochs_planned']}"
        epochs += f", shortened: {result['shortened']}" if result["shortened"] else ""
        rows.append(
            [
                _link(run, folder),
                *map(
                    _text,
                    (
                        format_score(result["test"]),
                        f"{format_score(result['valid'])} at {result['best_epoch']}",
                        epochs,
                    ),
                ),
                _text(format_duration(result["seconds"])),
                _text(hardware(run)),
                _text("; ".join(run_notes(result))),
            ]
        )
    counts = group.results[0]["parameters"]
    said = ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in counts.items())
    title = group.title()
    return [
        f'<h3 id="{name}">{_text(title)}</h3>',
        f'<figure><img src="figures/{name}.svg" alt="learning curves of {_text(title)}">'
        f'<figcaption>Also as <a href="figures/{name}.png">PNG</a>. Parameters: {_text(said)}.</figcaption></figure>',
        _table(["run", "test", "validation", "epochs", "time", "hardware", "notes"], rows, escape=False),
    ]


def _link(run: RunRecord, folder: Path) -> str:
    if run.path is None:
        return _text(run.name)
    # Quoted, so that a folder named "javascript:..." is a relative link as any other.
    place = quote(Path(os.path.relpath(run.path, folder)).as_posix())
    return f'<a href="{html.escape(place)}/">{_text(run.path.name)}</a>'


def _table(head: list[str], rows: list[list[str]], escape: bool = True) -> str:
    body = []
    for row in rows:
        cells = (_text(cell) if escape else cell for cell in row)
        line = "".join(f"<td class=missing>{c}</td>" if c == "missing" else f"<td>{c}</td>" for c in cells)
        body.append(f"<tr>{line}</tr>")
    names = "".join(f"<th>{_text(name)}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _text(text: str) -> str:
    return html.escape(text)

"""Read run folders of version 0.1.0, the only module that handles how they differ from today's.

That version kept some facts as text: the recipe's name in a comment, the seed in the folder's name, and what a task
said of its data as sentences among the notes of a result. Its recipes called the paper's score `figure`.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

_THREE = r"(\d+) / (\d+) / (\d+)"
_SUBSET = re.compile(rf"a subset: {_THREE} clips of the published {_THREE}")
_SILENCE = re.compile(rf"silence cut from the noise recordings: {_THREE} clips")
_SOURCE = re.compile(r"data: (rebuilt from the recordings|the archive's BIDMC32HR), (\d+) windows")
_SPLIT = re.compile(r"split: (\w+); (training and test share recordings|no recording is in two splits)")
_PROTOCOL = re.compile(r"split: (\w+)(?:, fold (\d+) of (\d+))?")
_TARGETS = re.compile(r"targets are standardised: beats per minute = (\S+) \+ (\S+) x answer")
_DISTINCT = re.compile(r"(\d+) series, (\d+) different")
_SEEN = re.compile(r"(\d+) of (\d+) test series are also in training or validation")
_CHECKSUM = re.compile(r"checksum of the source files (\w+) \(none is published\)")
_NOISE = {"one noise block is shared by all samples": "shared", "fresh noise for every sample": "fresh"}


class Renamed(NamedTuple):
    """Today's recipe for one of 0.1.0 that was one of many, and the cell it is for."""

    recipe: str
    cell: str


SHORT = """
antisymmetric antisymmetric-gated chrono-lstm cornn dt-lstm-v1 dt-lstm-v2 dtriv exprnn fastgrnn fastrnn gru indrnn lem
lem-chrono lem-clipped lem-single-scale lipschitz lstm nnrnn nrde rnn skiplstm tarnn unicornn
"""
RENAMED = {f"adding/{cell}-short": Renamed("adding/short", cell) for cell in SHORT.split()}
"""The recipes of 0.1.0 that have another name now."""


def recipe_name(text: str) -> str:
    """Return today's name of the recipe in a resolved recipe's first line, `# adding/lem, resolved`."""
    name = text.partition("\n")[0].removeprefix("# ").removesuffix(", resolved")
    return RENAMED[name].recipe if name in RENAMED else name


def folder_seed(path: Path) -> int:
    """Return the seed in the name of a run folder, `<seed>-<id>`."""
    seed = path.name.partition("-")[0]
    if not seed.isdigit():
        raise ValueError(f"{path} has no run.json, and its name does not start with a seed as in 0-1a2b3c4d.")
    return int(seed)


def recipe_tables(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a recipe with the paper's score under today's key."""
    paper = tables.get("paper")
    if not isinstance(paper, dict) or "figure" not in paper:
        return tables
    return {**tables, "paper": {"score" if key == "figure" else key: value for key, value in paper.items()}}


def result(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a result with what its notes say of the data as the fields of `DataFacts`."""
    data: dict[str, Any] = {}
    notes = []
    for note in content.get("notes", []):
        facts = _facts(note) if isinstance(note, str) else {}
        data |= facts
        if not facts:
            notes.append(note)
    return {**content, "data": data, "notes": notes}


def _facts(note: str) -> dict[str, Any]:
    if match := _SUBSET.fullmatch(note):
        counts = [int(count) for count in match.groups()]
        return {"sizes": counts[:3], "subset_of": counts[3:]}
    if match := _SILENCE.fullmatch(note):
        return {"cut_silence": [int(count) for count in match.groups()]}
    if match := _SOURCE.fullmatch(note):
        rebuilt = match[1].startswith("rebuilt")
        return {"source": "recordings" if rebuilt else "archive", "rebuilt": rebuilt, "samples": int(match[2])}
    if match := _SPLIT.fullmatch(note):
        return {"split": match[1], "shared_recordings": match[2].startswith("training")}
    if match := _PROTOCOL.fullmatch(note):
        fold = {"fold": int(match[2]) - 1, "folds": int(match[3])} if match[2] else {}
        return {"split": match[1], **fold}
    if match := _TARGETS.fullmatch(note):
        return {"target_mean": float(match[1]), "target_scale": float(match[2])}
    if match := _DISTINCT.fullmatch(note):
        return {"samples": int(match[1]), "distinct": int(match[2])}
    if match := _SEEN.fullmatch(note):
        return {"test_seen": int(match[1]), "test_samples": int(match[2])}
    if match := _CHECKSUM.fullmatch(note):
        return {"checksum": match[1]}
    return {"noise": _NOISE[note]} if note in _NOISE else {}

"""Results as lines of JSON: nothing of a run is lost, folders of 0.1.0 are taken in, a changed number is noticed."""

import json
import shutil
from pathlib import Path

import pytest
from reproduction.__main__ import main
from reproduction.page import EXCERPT, write_page
from reproduction.results import RESULTS, add_run, parse_line, read_results, write_line
from reproduction.tables import read_paper

from lem.experiments.first_format import RENAMED
from lem.experiments.record import find_runs, read_run
from lem.experiments.report import group_runs
from lem.experiments.run_folder import RunFolder
from lem.experiments.runner import load_recipe, run
from lem.nn.cells import CELLS
from tests.runs import tiny

FHN = {"task.sizes": [4, 4, 4], "train.batch_size": 2, "train.epochs": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found, _ = run(load_recipe("fitzhugh_nagumo/lem", FHN), 1, tmp_path_factory.mktemp("runs"))
    return found


def test_a_line_holds_all_of_a_run(folder):
    kept, line = read_run(folder), write_line(read_run(folder))
    assert "\n" not in line
    back = parse_line(line)
    for field in ("recipe", "seed", "environment", "metrics", "result", "name"):
        assert getattr(back, field) == getattr(kept, field), field
    assert [json.dumps(record) for record in back.metrics] == (folder.path / "metrics.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("part", "key", "value"), [("recipe", "model", {"cell": "lem", "hidden_size": 3}), (None, "seed", 2)]
)
def test_a_line_whose_recipe_or_seed_was_edited_is_refused(part, key, value, folder):
    content = json.loads(write_line(read_run(folder)))
    (content[part] if part else content)[key] = value
    with pytest.raises(ValueError, match="holds the recipe or seed of"):
        parse_line(json.dumps(content))


def as_first_format(source: Path, target: Path) -> Path:
    """Write a run folder as version 0.1.0 did: facts in a comment, in the folder's name and in sentences."""
    shutil.copytree(source, target)
    (target / "run.json").unlink()
    toml = target / "recipe.toml"
    name, rest = toml.read_text().split("\n", 1)
    name = name.removeprefix('name = "').removesuffix('"')
    toml.write_text(f"# {name}, resolved\n" + rest.replace("\nscore = ", "\nfigure = "))
    result = json.loads((target / "result.json").read_text())
    del result["data"]
    result["notes"] = ["data: rebuilt from the recordings, 7949 windows", "continued with threads 2"]
    (target / "result.json").write_text(json.dumps(result))
    return target


def test_a_run_folder_of_the_first_version_is_taken_in(folder, tmp_path):
    old = as_first_format(folder.path, tmp_path / folder.path.name)
    added = add_run(RunFolder(old), tmp_path / "results")
    new = read_run(folder)
    assert (added.name, added.seed, added.recipe) == (new.name, new.seed, new.recipe)
    assert added.result["data"] == {"source": "recordings", "rebuilt": True, "samples": 7949}
    assert added.result["notes"] == ["continued with threads 2"]
    (back,) = read_results(tmp_path / "results")
    assert back.result == added.result
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["fitzhugh_nagumo.jsonl"]


def test_a_run_added_twice_is_there_once_and_others_stay(folder, tmp_path):
    other, _ = run(load_recipe("fitzhugh_nagumo/lem", {**FHN, "train.epochs": 1}), 0, tmp_path / "runs")
    for one in (folder, other, folder):
        add_run(one, tmp_path / "results")
    assert {found.name for found in read_results(tmp_path / "results")} == {
        read_run(one).name for one in (folder, other)
    }


def test_a_run_without_a_test_score_is_refused(tmp_path, capsys):
    trial, _ = run(tiny(), 0, tmp_path / "runs", open_test=False)
    assert main(["--add", str(trial.path), "--results", str(tmp_path / "results")]) == 2
    assert "has no test score: only finished runs can be added" in capsys.readouterr().err
    assert main(["--add", str(tmp_path / "nowhere"), "--results", str(tmp_path / "results")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_the_program_takes_a_run_in_and_writes_page_figures_and_excerpt(folder, tmp_path, capsys):
    rows = [row for table in read_paper()["table"] for row in table["rows"] if row["recipe"] == "fitzhugh_nagumo/lem"]
    score = group_runs([read_run(folder)])[0].score()
    excerpt = f"\n| FitzHugh-Nagumo | LEM | 0.002 | {score} | 1 |" if rows[0].get("readme") else ""
    (tmp_path / "README.md").write_text(f"before\n\n{EXCERPT}\n|---|\n\nafter\n")
    words = ["--add", str(folder.path), "--results", str(tmp_path / "results"), "--root", str(tmp_path)]
    assert main(words) == 0
    assert "added fitzhugh_nagumo/lem/1-" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text() == f"before\n\n{EXCERPT}\n|---|---|---|---|---|{excerpt}\n\nafter\n"
    assert "1 of 75 rows have a score" in (tmp_path / "docs" / "reproduction.md").read_text()
    images = tmp_path / "docs" / "images"
    assert [path.name for path in images.iterdir()] == [
        "reproduction-fitzhugh-nagumo.png"
    ]  # no comparison has its runs
    assert (images / "reproduction-fitzhugh-nagumo.png").read_bytes().startswith(b"\x89PNG")


def test_every_run_is_kept_under_its_task_with_all_its_epochs():
    runs = read_results()
    assert len(runs) >= 198
    for file in RESULTS.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            one = parse_line(line)
            assert one.recipe.task["name"] == file.stem
            started = one.result["recipe"]
            assert (RENAMED[started].recipe if started in RENAMED else started) == one.recipe.name
            assert (one.result["seed"], one.metrics[-1]["epoch"]) == (one.seed, one.result["epochs"])
            assert one.result["valid"] in [record["valid"] for record in one.metrics]


def test_the_runs_of_the_renamed_recipes_are_those_of_today():
    """The id is made of the resolved recipe, so equal ids are equal recipes."""
    runs = {one.recipe.model["cell"]: one for one in read_results() if one.result["recipe"] in RENAMED}
    assert set(runs) == {renamed.cell for renamed in RENAMED.values()} == set(CELLS)
    for cell, one in runs.items():
        assert one.recipe.digest == load_recipe("adding/short", {"model.cell": cell}).digest
        assert RENAMED[one.result["recipe"]] == ("adding/short", cell)
        (group,) = group_runs([one])
        assert group.title() == "adding/short" + (f' with model.cell = "{cell}"' if cell != "lem" else "")


def test_one_changed_score_changes_the_page(tmp_path):
    """The broken twin of the comparison of the page with the results."""
    runs = read_results()
    page = write_page(group_runs(runs))
    (one,) = [found for found in runs if found.name == "smnist/lem-fast/0-" + found.recipe.digest]
    one.result["test"] += 0.01
    assert write_page(group_runs(runs)) != page


def test_no_run_folder_is_left_in_the_repository():
    assert find_runs([RESULTS]) == []

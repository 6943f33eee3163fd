"""The paper's tables with ours beside them: complete, true to the results, and the same in the repository."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from reproduction.figures import draw_comparisons, draw_table
from reproduction.page import EXCERPT, overview, renew_excerpt, write_page
from reproduction.results import read_results
from reproduction.tables import PAPER, paper_tables

from lem.experiments.record import find_runs, with_test_score
from lem.experiments.report import group_runs
from lem.experiments.runner import load_recipe, recipe_names, run
from tests.runs import tiny

ROOT = Path(__file__).parents[2]
FHN = {"task.sizes": [4, 4, 4], "train.batch_size": 2, "train.epochs": 3}


def groups_in(*paths):
    return group_runs(with_test_score(find_runs(list(paths))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a shortened FitzHugh-Nagumo run, and one of the adding problem."""
    place = tmp_path_factory.mktemp("reported") / "runs"
    for seed in (0, 1):
        run(load_recipe("fitzhugh_nagumo/lem", FHN), seed, place)
    run(tiny(), 0, place)
    return place


def test_the_papers_tables_are_complete_and_ours_stand_beside_them(runs):
    groups = groups_in(runs)
    tables = {table.title: table for table in paper_tables(groups)}
    rows = [sum(row.of_the_paper for row in table.rows) for table in tables.values()]
    assert rows == [8, 8, 8, 9, 6, 7, 0, 7, 8, 8, 6, 0, 0]
    text = write_page(groups)
    assert "1 of 75 rows have a score" in text
    opening, _, rest = text.partition("## sMNIST")
    assert tomllib.loads(PAPER.read_text())["summary"].strip() in opening.partition("## In short")[2]
    lines = [line for line in text.splitlines() if line.startswith("| LEM |")]
    assert len(lines) == 10  # nine tables of the paper, and long pulse
    (ours,) = [line for line in lines if "missing" not in line and "not available" not in line]
    assert "(3 of 400 epochs)" in ours
    assert "`fitzhugh_nagumo/lem` with task.sizes" in ours
    eigenworms = len(tables["EigenWorms"].rows) + len(tables["EigenWorms, variants"].rows)
    assert text.count("| data not available here, recipe ready |") == eigenworms
    own = sum(not row.of_the_paper for table in tables.values() for row in table.rows)
    assert rest.count("| missing |") == 74 - eigenworms + own
    assert "| `adding/short` with " in text.partition("## Other runs")[2]


def test_the_papers_rows_agree_with_the_recipes():
    """Two people typed them: the tables and the recipes' [paper] sections."""
    rows = [row for table in tomllib.loads(PAPER.read_text())["table"] for row in table["rows"]]
    printed = [row for row in rows if "score" in row]
    assert len({row["recipe"] for row in printed}) == len(printed) == 75
    for row in rows:
        assert row["recipe"] in recipe_names(), row["recipe"]
        paper = load_recipe(row["recipe"]).paper
        if "score" in row:
            assert (paper["score"], paper["units"]) == (row["score"], row["units"]), row["recipe"]


def test_of_a_recipes_variants_the_row_shows_the_longest_and_the_page_all(tmp_path):
    for epochs in (1, 2):
        run(load_recipe("fitzhugh_nagumo/lem", {**FHN, "train.epochs": epochs}), 0, tmp_path)
    text = write_page(groups_in(tmp_path))
    row, other = [line for line in text.splitlines() if "`fitzhugh_nagumo/lem` with" in line]
    assert "(2 of 400 epochs)" in row
    assert row.startswith("| LEM | 0.002 |")
    assert "(1 of 400 epochs)" in other


def test_a_row_of_one_length_takes_only_runs_of_that_length(tmp_path):
    short = {"model.hidden_size": 4, "task.steps_per_epoch": 2, "train.batch_size": 2, "train.epochs": 1}
    for length in (8, 5000):
        run(load_recipe("adding/lem", {**short, "task.length": length}), 0, tmp_path)
    (table,) = [table for table in paper_tables(groups_in(tmp_path)) if table.title == "Adding problem"]
    found = {row.printed["model"]: row.ours for row in table.rows if row.ours is not None}
    assert list(found) == ["LEM, N = 5000"]
    assert found["LEM, N = 5000"].recipe.task["length"] == 5000


def test_the_overview_chooses_recipes_by_validation():
    """Of two recipes of LEM the one with the better validation score stands there, even if its test score is worse."""
    groups = [group for group in group_runs(read_results()) if group.recipe.name.startswith("fitzhugh_nagumo/lem")]
    tables = [table for table in paper_tables(groups) if table.title == "FitzHugh-Nagumo"]
    rows = {row.printed["recipe"]: row.ours for row in tables[0].rows if row.ours is not None}
    tuned, plain = rows["fitzhugh_nagumo/lem-tuned"], rows["fitzhugh_nagumo/lem"]
    *_, line = overview(tables)
    assert line.startswith(f"| FitzHugh-Nagumo | 0.002 | {tuned.score()} | missing | 400 | 5 |")
    for one in tuned.runs:
        one.result["test"] = 9.0
    *_, line = overview(tables)
    assert "| 9 ± 0 |" in line
    for one in tuned.runs:
        one.result["valid"] = 9.0
    *_, line = overview(tables)
    assert plain.score() in line


def test_three_seeds_have_a_median(tmp_path):
    for seed in range(3):
        run(load_recipe("fitzhugh_nagumo/lem", {**FHN, "train.epochs": 1}), seed, tmp_path)
    groups = groups_in(tmp_path)
    middle = sorted(groups[0].scores)[1]
    assert f"(1 of 400 epochs), median {middle:.3g} | 3 |" in write_page(groups)


def test_the_page_and_the_readme_say_what_the_results_hold():
    groups = group_runs(read_results())
    assert (ROOT / "docs" / "reproduction.md").read_text() == write_page(groups), "run `make reproduction`"
    readme = (ROOT / "README.md").read_text()
    assert renew_excerpt(readme, paper_tables(groups)) == readme, "run `make reproduction`"
    assert readme.count("| LEM") == 5  # of six rows


def test_the_readme_s_excerpt_is_made_anew_and_the_rest_is_left():
    groups = group_runs(read_results())
    tables = paper_tables(groups)
    stale = f"before\n\n{EXCERPT}\n|---|\n| FitzHugh-Nagumo | LEM | 0.002 | 0.001 | 9 |\n\nafter\n"
    renewed = renew_excerpt(stale, tables)
    assert renewed.startswith("before\n\n")
    assert renewed.endswith(" |\n\nafter\n")
    assert "0.001 | 9" not in renewed
    marked = [row for table in tables for row in table.rows if row.printed.get("readme") and row.ours]
    assert len(re.findall(r"^\| (?!task)", renewed, re.MULTILINE)) == len(marked) > 5
    assert renew_excerpt(renewed, tables) == renewed
    with pytest.raises(ValueError, match="must hold a table with the heading"):
        renew_excerpt("no table\n", tables)


@pytest.mark.parametrize("epochs", [100, 101])
def test_long_runs_are_drawn_by_their_best_so_far(runs, tmp_path, epochs):
    """Two runs that differ in their last epochs alone, none of them the best, give one picture if they are long."""
    source = next(one.path for one in with_test_score(find_runs([runs])) if one.recipe.name == "fitzhugh_nagumo/lem")
    pictures = []
    for last in (0.5, 0.9):
        folder = tmp_path / str(last) / source.name
        shutil.copytree(source, folder)
        valid = [0.4] * (epochs - 2) + [last] * 2
        records = [{"epoch": e + 1, "loss": 1.0, "valid": v, "best": 0.4} for e, v in enumerate(valid)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (table,) = [t for t in paper_tables(groups_in(tmp_path / str(last))) if t.drawn]
        pictures.append(draw_table(table, tmp_path / f"{last}.png").read_bytes())
    assert (pictures[0] == pictures[1]) == (epochs > 100)


def test_the_comparisons_are_drawn_from_the_results(tmp_path):
    drawn = draw_comparisons(read_results(), tmp_path)
    assert [path.name for path in drawn] == [
        "adding-200.png",
        "clipping-google12.png",
        "dt-adding.png",
        "dt-long-pulse.png",
        "sqrt-adding.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)

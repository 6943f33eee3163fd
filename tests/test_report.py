"""Reports: what the folders say, what the paper says, and what is missing; and the page as a browser sees it."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from lem.cli import main
from lem.experiment import load_recipe, publish, run
from lem.report import find_runs, group_runs, summary_rows
from lem.reproduction import EXCERPT, TABLES, draw_studies, draw_table, paper_tables, renew_excerpt, reproduction
from tests.runs import tiny

ROOT = Path(__file__).parent.parent
FHN = {"task.sizes": [4, 4, 4], "train.batch_size": 2, "train.epochs": 3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a shortened FitzHugh-Nagumo run, one of the adding problem, and one that is not finished."""
    place = tmp_path_factory.mktemp("reported") / "runs"
    for seed in (0, 1):
        run(load_recipe("fitzhugh_nagumo/lem", FHN), seed, place)
    run(tiny(), 0, place)
    run(tiny(), 1, place, should_stop=lambda: True)
    run(tiny(), 2, place, open_test=False)
    return place


def test_groups_hold_the_seeds_of_one_recipe_and_only_finished_runs(runs):
    adding, fhn = group_runs(find_runs([runs]))
    assert [folder.seed for folder in fhn.folders] == [0, 1]
    assert [folder.seed for folder in adding.folders] == [0]
    assert fhn.changes == "task.sizes = [4, 4, 4], train.batch_size = 2, train.epochs = 3"
    tests = [json.loads((folder.path / "result.json").read_text())["test"] for folder in fhn.folders]
    spread = abs(tests[0] - tests[1]) / 2**0.5
    row = summary_rows([fhn])[0]
    assert row["test"] == f"{sum(tests) / 2:.3g} ± {spread:.2g} (3 of 400 epochs)"
    assert (row["paper"], row["seeds"], row["units"], row["parameters"]) == ("0.002", "2", "16", "1,169")
    assert summary_rows([adding])[0]["paper"] == "missing"


def test_other_data_than_the_papers_is_said_beside_the_figure(runs, tmp_path):
    shutil.copytree(find_runs([runs])[0].path, tmp_path / "0-run")
    result = json.loads((tmp_path / "0-run" / "result.json").read_text())
    for notes, said in (
        (
            ["a subset: 3300 / 550 / 960 clips of the published 84843 / 9981 / 11005"],
            "(4 of 15 epochs; a subset of the data)",
        ),
        (["data: rebuilt from the recordings, 7949 windows"], "(4 of 15 epochs; rebuilt data)"),
        (["one noise block is shared by all samples"], "(4 of 15 epochs)"),
    ):
        (tmp_path / "0-run" / "result.json").write_text(json.dumps({**result, "notes": notes}))
        (group,) = group_runs(find_runs([tmp_path]))
        assert group.score().endswith(said)


def test_a_run_ended_by_the_clock_says_so(tmp_path):
    run(tiny(train__minutes=1e-9), 0, tmp_path)
    (group,) = group_runs(find_runs([tmp_path]))
    assert group.score().endswith("(1 of 4 epochs: after 1e-09 minutes)")


def test_the_papers_tables_are_complete_and_ours_stand_beside_them(runs):
    groups = group_runs(find_runs([runs]))
    tables = {table.title: table for table in paper_tables(groups)}
    rows = [sum(row.of_the_paper for row in table.rows) for table in tables.values()]
    assert rows == [8, 8, 8, 9, 6, 7, 0, 7, 8, 8, 6, 0, 0]
    text = reproduction(groups)
    assert "1 of 75 rows have a figure" in text
    opening = text.partition("## sMNIST")[0]
    assert tomllib.loads(TABLES.read_text())["summary"].strip() in opening.partition("## In short")[2]
    lines = [line for line in text.splitlines() if line.startswith("| LEM |")]
    assert len(lines) == 10  # nine tables of the paper, and long pulse
    (ours,) = [line for line in lines if "missing" not in line and "not available" not in line]
    assert "(3 of 400 epochs)" in ours
    assert "`fitzhugh_nagumo/lem` with task.sizes" in ours
    eigenworms = len(tables["EigenWorms"].rows) + len(tables["EigenWorms, variants"].rows)
    assert text.count("| data not available here, recipe ready |") == eigenworms
    own = sum(not row.of_the_paper for table in tables.values() for row in table.rows)
    assert text.count("| missing |") == 74 - eigenworms + own
    assert "| `adding/lem-short` with " in text.partition("## Other runs")[2]


def test_the_papers_rows_agree_with_the_recipes():
    """Two people typed them: the tables and the recipes' [paper] sections."""
    from lem.experiment import recipe_names

    rows = [row for table in tomllib.loads(TABLES.read_text())["table"] for row in table["rows"]]
    printed = [row for row in rows if "figure" in row]
    assert len({row["recipe"] for row in printed}) == len(printed) == 75
    for row in rows:
        assert row["recipe"] in recipe_names(), row["recipe"]
        paper = load_recipe(row["recipe"]).paper
        if "figure" in row:
            assert (paper["figure"], paper["units"]) == (row["figure"], row["units"]), row["recipe"]


def test_of_a_recipes_variants_the_row_shows_the_longest_and_the_page_all(tmp_path):
    for epochs in (1, 2):
        run(load_recipe("fitzhugh_nagumo/lem", {**FHN, "train.epochs": epochs}), 0, tmp_path)
    text = reproduction(group_runs(find_runs([tmp_path])))
    row, other = [line for line in text.splitlines() if "`fitzhugh_nagumo/lem` with" in line]
    assert "(2 of 400 epochs)" in row
    assert row.startswith("| LEM | 0.002 |")
    assert "(1 of 400 epochs)" in other


def test_a_row_of_one_length_takes_only_runs_of_that_length(tmp_path):
    short = {"model.hidden_size": 4, "task.steps_per_epoch": 2, "train.batch_size": 2, "train.epochs": 1}
    for length in (8, 5000):
        run(load_recipe("adding/lem", {**short, "task.length": length}), 0, tmp_path)
    (table,) = [table for table in paper_tables(group_runs(find_runs([tmp_path]))) if table.title == "Adding problem"]
    found = {row.printed["model"]: row.ours for row in table.rows if row.ours is not None}
    assert list(found) == ["LEM, N = 5000"]
    assert found["LEM, N = 5000"].recipe.task["length"] == 5000


def test_three_seeds_have_a_median(tmp_path):
    for seed in range(3):
        run(load_recipe("fitzhugh_nagumo/lem", {**FHN, "train.epochs": 1}), seed, tmp_path)
    groups = group_runs(find_runs([tmp_path]))
    middle = sorted(groups[0].tests)[1]
    assert f"(1 of 400 epochs), median {middle:.3g} | 3 |" in reproduction(groups)


def test_the_page_and_the_readme_say_what_the_results_folder_holds():
    groups = group_runs(find_runs([ROOT / "results"]))
    assert (ROOT / "docs" / "reproduction.md").read_text() == reproduction(groups), "run `lem report --paper`"
    readme = (ROOT / "README.md").read_text()
    assert renew_excerpt(readme, paper_tables(groups)) == readme, "run `lem report --paper`"
    assert readme.count("| LEM") > 5


def test_the_readme_s_excerpt_is_made_anew_and_the_rest_is_left():
    groups = group_runs(find_runs([ROOT / "results"]))
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
    (source,) = [run.path for run in find_runs([runs]) if run.result()["recipe"] == "fitzhugh_nagumo/lem"][:1]
    pictures = []
    for last in (0.5, 0.9):
        folder = tmp_path / str(last) / source.name
        shutil.copytree(source, folder)
        valid = [0.4] * (epochs - 2) + [last] * 2
        records = [{"epoch": e + 1, "loss": 1.0, "valid": v, "best": 0.4} for e, v in enumerate(valid)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (table,) = [t for t in paper_tables(group_runs(find_runs([tmp_path / str(last)]))) if t.drawn]
        pictures.append(draw_table(table, tmp_path / f"{last}.png").read_bytes())
    assert (pictures[0] == pictures[1]) == (epochs > 100)


def test_the_studies_are_drawn_from_the_results_folder(tmp_path):
    drawn = draw_studies(ROOT / "results", tmp_path)
    assert [path.name for path in drawn] == [
        "adding-200.png",
        "clipping-google12.png",
        "dt-adding.png",
        "dt-long-pulse.png",
        "sqrt-adding.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_commands(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs)]) == 0
    assert "fitzhugh_nagumo/lem (task.sizes" in capsys.readouterr().out
    publish(find_runs([runs])[-1], tmp_path / "results")
    (tmp_path / "README.md").write_text(f"{EXCERPT}\n|---|\n")
    assert main(["report", "--paper"]) == 0
    assert "| FitzHugh-Nagumo | LEM | 0.002 | " in (tmp_path / "README.md").read_text()
    assert "1 of 75 rows" in (tmp_path / "docs" / "reproduction.md").read_text()
    images = tmp_path / "docs" / "images"
    assert [path.name for path in images.iterdir()] == ["reproduction-fitzhugh-nagumo.png"]  # no study has its runs
    assert (images / "reproduction-fitzhugh-nagumo.png").read_bytes().startswith(b"\x89PNG")
    assert main(["report", "nowhere"]) == 2
    assert "`run` must be a run folder or a folder of them; got nowhere" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "No finished run is in runs; train one first." in capsys.readouterr().err


@pytest.fixture(scope="module")
def page(runs):
    assert main(["report", str(runs), "--html", str(runs.parent / "page")]) == 0
    return runs.parent / "page" / "index.html"


def test_the_page_stands_alone_and_its_links_lead_somewhere(page):
    text = page.read_text()
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len([address for address in addresses if address.endswith((".svg", ".png"))]) == 4
    for address in addresses:
        if address != "data:,":
            assert (page.parent / address).exists(), address
    assert not re.search(r"https?:|<script|@import|url\(", text)
    for svg in page.parent.glob("figures/*.svg"):
        ElementTree.parse(svg)
        assert not re.search(r'(?:href|src)="https?:', svg.read_text())
    assert text.count("<td class=missing>") >= 6
    assert "3 of 400 epochs" in text
    assert "<p class=quiet>The paper&#x27;s tables 4 and 9.</p>" in text


@pytest.mark.slow
def test_the_page_in_a_browser(page, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    quiet = ["--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-sync"]
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path}/profile", f"--log-net-log={tmp_path}/net.json", "--window-size=1200,2200"]
    shot = tmp_path / "page.png"
    done = subprocess.run(
        [*command, f"--screenshot={shot}", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert shot.stat().st_size > 50_000
    assert ":CONSOLE" not in done.stderr
    asked = re.findall(r'"url":"((?:https?|file):[^"]*)"', (tmp_path / "net.json").read_text())
    # The browser asks these for the time, updates and accounts by itself, whatever page it shows.
    own = {"clients2.google.com", "update.googleapis.com", "accounts.google.com"}
    assert {urlsplit(url).hostname for url in asked if url.startswith("http")} <= own
    dom = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert dom.stdout.count("<table>") >= 4
    assert dom.stdout.count("<img") == 2


@pytest.mark.slow
def test_the_browser_test_would_hear_an_error_and_see_a_request(page, tmp_path):
    """The broken twin: a page that asks elsewhere and throws must be noticed by the same means."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    broken = tmp_path / "index.html"
    broken.write_text('<img src="http://127.0.0.1:9/x.png"><script>nothing()</script>')
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}/profile", f"--log-net-log={tmp_path}/net.json", broken.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ":CONSOLE" in done.stderr
    assert "http://127.0.0.1:9/x.png" in (tmp_path / "net.json").read_text()

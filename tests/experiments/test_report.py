"""Reports: what the runs say next to the paper's score, and the page as a browser sees it."""

import dataclasses
import json
import re
import shutil
import subprocess
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from lem.cli import main
from lem.experiments.record import find_runs, with_test_score
from lem.experiments.report import data_sentences, group_runs, run_notes, summary_rows
from lem.experiments.runner import load_recipe, run
from lem.tasks import DataFacts
from tests.runs import tiny

FHN = {"task.sizes": [4, 4, 4], "train.batch_size": 2, "train.epochs": 3}


def groups_in(*paths):
    return group_runs(with_test_score(find_runs(list(paths))))


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
    adding, fhn = groups_in(runs)
    assert [one.seed for one in fhn.runs] == [0, 1]
    assert [one.seed for one in adding.runs] == [0]
    assert fhn.changes == [
        ("task", "sizes", None, [4, 4, 4]),
        ("train", "batch_size", 32, 2),
        ("train", "epochs", 400, 3),
    ]
    changed = "task.sizes = [4, 4, 4], train.batch_size = 2, train.epochs = 3"
    assert fhn.title() == f"fitzhugh_nagumo/lem with {changed}"
    assert summary_rows([fhn])[0]["recipe"] == f"fitzhugh_nagumo/lem ({changed})"
    tests = [json.loads((folder.path / "result.json").read_text())["test"] for folder in fhn.runs]
    spread = abs(tests[0] - tests[1]) / 2**0.5
    row = summary_rows([fhn])[0]
    assert row["test"] == f"{sum(tests) / 2:.3g} ± {spread:.2g} (3 of 400 epochs)"
    assert (row["paper"], row["seeds"], row["units"], row["parameters"]) == ("0.002", "2", "16", "1,169")
    assert summary_rows([adding])[0]["paper"] == "missing"


@pytest.mark.parametrize(
    ("facts", "ending"),
    [
        (DataFacts(sizes=(3300, 550, 960), subset_of=(84843, 9981, 11005)), "(4 of 15 epochs; a subset of the data)"),
        (DataFacts(rebuilt=True, source="recordings", samples=7949), "(4 of 15 epochs; rebuilt data)"),
        (DataFacts(rebuilt=False, source="archive", samples=7949), "(4 of 15 epochs)"),
        (DataFacts(noise="shared"), "(4 of 15 epochs)"),
    ],
)
def test_data_that_differs_from_the_papers_is_named_next_to_the_score(facts, ending, runs, tmp_path):
    shutil.copytree(with_test_score(find_runs([runs]))[0].path, tmp_path / "0-run")
    file = tmp_path / "0-run" / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": facts.known()}))
    (group,) = groups_in(tmp_path)
    assert group.score().endswith(ending)
    assert run_notes(group.results[0]) == data_sentences(facts.known()) != []


def test_a_value_that_was_taken_away_is_named_as_not_set(tmp_path):
    recipe = load_recipe("adding/short", {"task.length": 8, "task.steps_per_epoch": 2, "train.epochs": 1})
    without = dataclasses.replace(recipe, model={k: v for k, v in recipe.model.items() if k != "dt"})
    run(without, 0, tmp_path)
    (group,) = groups_in(tmp_path)
    assert group.title().endswith("task.steps_per_epoch = 2, model.dt not set, train.epochs = 1")


def test_a_run_ended_by_the_clock_says_so(tmp_path):
    run(tiny(train__minutes=1e-9), 0, tmp_path)
    (group,) = groups_in(tmp_path)
    assert group.score().endswith("(1 of 4 epochs: after 1e-09 minutes)")


def test_commands(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs)]) == 0
    assert "fitzhugh_nagumo/lem (task.sizes" in capsys.readouterr().out
    assert main(["report", "nowhere"]) == 2
    assert "RUN must be a run folder or a folder of them; nowhere is not a directory" in capsys.readouterr().err
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
    assert text.count("<td class=missing>") == 1  # the adding problem has no row in the paper
    assert "3 of 400 epochs" in text


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
    assert dom.stdout.count("<table>") == 3
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

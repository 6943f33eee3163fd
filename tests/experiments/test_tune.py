"""Studies: every place is filled once, whatever happens to the workers; and mistakes are named."""

import csv
import multiprocessing
import socket
import time

import pytest

from lem.cli import main
from lem.experiments.runner import load_recipe
from lem.experiments.storage import open_storage
from lem.experiments.tune import Study, serve, study_figure

SMALL = {
    "task.length": 6,
    "task.steps_per_epoch": 2,
    "model.hidden_size": 3,
    "train.batch_size": 200,
    "train.epochs": 1,
    "search.dt": {"low": 0.1, "high": 1.0},
    "search.hidden_size": [3, 4],
}
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lem.experiments.tune", "optuna", "torch._dynamo"])


def recipe(**changes):
    return load_recipe("adding/lem", {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}})


def study(url, trials=4, what=None, **options):
    return Study(what or recipe(), open_storage(str(url)), "test", trials=trials, higher_is_better=False, **options)


def never():
    return False


def assert_each_place_once(finished, trials):
    places = sorted(trial.user_attrs["place"] for trial in finished)
    assert places == list(range(trials)), f"places done: {places}"


def test_a_study_fills_every_place_and_goes_on_later(tmp_path):
    first = study(tmp_path / "one.journal", trials=2)
    first.work(tmp_path / "runs", never)
    assert_each_place_once(first.done(), 2)
    values = [trial.params for trial in first.done()]
    later = study(tmp_path / "one.journal", trials=4)
    later.work(tmp_path / "runs", never)
    assert_each_place_once(later.done(), 4)
    assert [trial.params for trial in later.done()[:2]] == values
    trial, winner = later.winner()
    assert trial.value == min(trial.value for trial in later.done())
    assert winner.model["dt"] == trial.params["model.dt"]
    assert (tmp_path / "runs").is_dir()
    assert not [f for f in (tmp_path / "runs").rglob("result.json") if '"test": null' not in f.read_text()]

    table, toml = later.export(tmp_path / "out")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["state"] for row in rows] == ["complete"] * 4
    assert load_recipe(str(toml)).digest == winner.digest
    png, svg = study_figure(later, tmp_path / "out" / "study")
    assert png.stat().st_size > 10_000
    assert "<svg" in svg.read_text()[:2000]


def test_random_values_depend_on_seed_and_place_alone(tmp_path):
    drawn = []
    for number, seed in enumerate((0, 0, 1)):
        one = study(tmp_path / f"{number}.journal", trials=3, seed=seed)
        one.fill()
        trials = [one.claim() for _ in range(3)]
        order = trials if number == 0 else trials[::-1]
        drawn.append({trial.user_attrs["place"]: one.suggest(trial) for trial in order})
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert len({str(values) for values in drawn[0].values()}) == 3


def test_a_dead_workers_trial_is_tried_again_with_the_same_values(tmp_path):
    dead = study(tmp_path / "j", trials=3)
    dead.fill()
    trial = dead.claim()
    values = dead.suggest(trial)  # and not a sign of life from here on
    alive = study(tmp_path / "j", trials=3, grace=0.5)
    alive.work(tmp_path / "runs", never)
    assert_each_place_once(alive.done(), 3)
    failed = alive.all_trials("FAIL")
    assert [t.number for t in failed] == [trial.number]
    (again,) = [t for t in alive.done() if t.user_attrs["place"] == trial.user_attrs["place"]]
    assert again.params == values
    # the one that was thought dead wakes up: what it says now does not count
    dead._end(trial, "COMPLETE", "", 0.0)
    assert_each_place_once(alive.done(), 3)


def test_a_place_filled_twice_at_once_is_done_once(tmp_path):
    one, two = study(tmp_path / "j", trials=2), study(tmp_path / "j", trials=2)
    one.fill()
    for place in range(2):  # what a second worker that looked at the same moment would add
        two.study.enqueue_trial({}, user_attrs={"place": place})
    claimed = [one.claim(), two.claim(), one.claim()]
    assert claimed[2] is None
    assert len(one.all_trials()) == 2
    one.fill()
    assert not one.all_trials("WAITING")
    assert sorted(trial.user_attrs["place"] for trial in claimed[:2]) == [0, 1]


def test_diverging_and_hopeless_trials_are_pruned(tmp_path):
    wild = recipe(**{"search__learning_rate": {"low": 1e30, "high": 1e38, "log": True}, "train__optimizer": "sgd"})
    one = study(tmp_path / "j", trials=1, what=wild)
    one.work(tmp_path / "runs", never)
    assert [trial.state.name for trial in one.done()] == ["PRUNED"]
    assert "must be finite" in one.done()[0].user_attrs["reason"]
    with pytest.raises(ValueError, match="has no complete trial yet"):
        one.winner()


@pytest.mark.slow
def test_trials_behind_the_median_are_pruned(tmp_path):
    slow = recipe(**{"search__learning_rate": {"low": 1e-6, "high": 0.1, "log": True}, "train__epochs": 20})
    one = study(tmp_path / "j", trials=14, what=slow, prune=True)
    one.work(tmp_path / "runs", never)
    assert_each_place_once(one.done(), 14)
    pruned = one.all_trials("PRUNED")
    assert pruned
    assert all("behind the median" in trial.user_attrs["reason"] for trial in pruned)


def test_tpe_is_there_on_request(tmp_path):
    one = study(tmp_path / "j", trials=2, sampler="tpe")
    one.work(tmp_path / "runs", never)
    assert_each_place_once(one.done(), 2)


def _work(url, runs):
    import torch

    torch.set_num_threads(1)
    study(url, trials=24, grace=3.0, what=recipe(train__epochs=6)).work(runs, never)


def _serve(url, port):
    serve(open_storage(url), "localhost", port)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite", "grpc"])
def test_24_trials_by_3_workers_one_of_them_killed(kind, tmp_path):
    server = None
    url = str(tmp_path / "study.journal")
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/study.db"
    elif kind == "grpc":
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        server = CONTEXT.Process(target=_serve, args=(url, port))
        server.start()
        url = f"grpc://localhost:{port}"
    watched = study(url, trials=24, what=recipe(train__epochs=6))
    workers = [CONTEXT.Process(target=_work, args=(url, tmp_path / "runs")) for _ in range(3)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 300
    while len(watched.done()) < 5 or not watched.all_trials("RUNNING"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers[0].kill()
    for worker in workers:
        worker.join(300)
    if server:
        server.kill()
        server.join()
    assert [worker.exitcode for worker in workers] == [-9, 0, 0]
    if kind == "grpc":
        watched = study(tmp_path / "study.journal", trials=24, what=recipe(train__epochs=6))
    assert_each_place_once(watched.done(), 24)
    assert len(watched.all_trials("FAIL")) <= 1
    assert not watched.all_trials("RUNNING", "WAITING")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tune", "adding/lem", "--model.dt", "0.5"], "--model.dt conflicts with [search] of recipe adding/lem"),
        (["tune", "adding/lem", "--sampler", "grid"], "--sampler must be one of 'random', 'tpe'; got 'grid'"),
        (["tune", "adding/lem", "--trials", "0"], "`trials` of a study must be a positive integer; got 0"),
        (
            ["tune", "adding/lem", "--storage", "sqlite:////nowhere/at/all.db"],
            "The storage 'sqlite:////nowhere/at/all.db' could not be opened",
        ),
        (["tune", "adding/lem", "--storage", "nosuch://x"], "The storage 'nosuch://x' could not be opened"),
        (
            ["tune", "adding/lem", "--search.dt", "{low = 1.0, high = 0.1}"],
            "`model.dt` in [search] of recipe adding/lem",
        ),
        (["tune", "adding/lem", "--search.dtt", "[1.0]"], "got 'train.dtt'."),
        (["sweep", "fitzhugh_nagumo/lem"], "must have a section [sweep]"),
        (["sweep", "adding/lem", "--task.length", "9"], "--task.length conflicts with [sweep] of recipe adding/lem"),
        (
            ["sweep", "adding/lem", "--sweep.task.length", "9"],
            "`task.length` in [sweep] of recipe adding/lem must be a list",
        ),
        (["sweep", "adding/lem", "--jobs", "0"], "--jobs must be a positive integer; got 0"),
    ],
)
def test_mistakes_are_named(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_an_unreachable_proxy_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "adding/lem", "--storage", "grpc://localhost:9"]) == 2
    assert "The storage 'grpc://localhost:9' could not be opened" in capsys.readouterr().err


@pytest.mark.slow
def test_the_commands_tune_and_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = [f"--{key}={value}" for key, value in SMALL.items() if not key.startswith("search")]
    assert main(["tune", "adding/lem", *small, "--trials", "3", "--jobs", "2", "--seeds", "2"]) == 0
    output = capsys.readouterr().out
    assert output.count("complete, validation") == 3
    assert "2/2" in output
    assert len(list(tmp_path.glob("runs/adding/lem/[01]-*/result.json"))) == 2
    small = [word for word in small if "length" not in word]
    words = ["sweep", "adding/lem", *small, "--sweep.task.length", "[5, 6, 7]", "--jobs", "99", "--runs", "swept"]
    assert main(words) == 0
    assert len(list(tmp_path.glob("swept/adding/lem/0-*/result.json"))) == 3
    said = capsys.readouterr()
    assert "3/3  task.length = " in said.out
    assert "lem: warning: --jobs 99 is more than the" in said.err

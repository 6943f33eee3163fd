"""Comparisons of runs that really ran: tiny ones, by the same commands a user types."""

import pytest
import torch
from torch import nn

from lem.analysis.timescales import time_scales
from lem.cli import main
from lem.experiments import comparison, inspection, runner
from lem.experiments.record import find_runs
from lem.nn.model import SequenceModel
from lem.tasks import Task
from lem.training.data import ArraySplit
from tests.close import assert_close

TINY = ["--task.length", "12", "--train.epochs", "1", "--model.hidden_size", "4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four finished runs of the adding problem: two values of dt, two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for dt in ("0.1", "0.5"):
        for seed in ("0", "1"):
            command = ["train", "adding/short", *TINY, "--model.dt", dt, "--seed", seed, "--runs", str(root)]
            assert main(command) == 0
    return root


def folders(root):
    return [runner.RunFolder(path.parent) for path in sorted(root.rglob("recipe.toml"))]


def test_a_comparison_gathers_the_seeds_of_every_value(runs):
    points = comparison.compare(find_runs([runs]), "model.dt")
    assert [point.value for point in points] == [0.1, 0.5]
    results = [folder.result() for folder in folders(runs) if folder.recipe().model["dt"] == 0.5]
    assert len(results) == 2
    a, b = (result["test"] for result in results)
    assert_close(points[1].mean, (a + b) / 2, "float64")
    assert_close(points[1].spread, abs(a - b) / 2**0.5, "float64")


def test_the_compare_command_prints_and_draws(runs, tmp_path, capsys):
    assert main(["compare", str(runs), "--over", "model.dt", "--figure", str(tmp_path / "a.png")]) == 0
    assert "(2 runs)" in capsys.readouterr().out
    assert main(["compare", str(runs), "--over", "model.dt", "--curves", "--figure", str(tmp_path / "b.png")]) == 0
    assert all((tmp_path / name).stat().st_size > 5_000 for name in ("a.png", "b.png"))


def test_a_comparison_says_what_is_missing(runs, tmp_path, capsys):
    assert main(["compare", str(tmp_path), "--over", "model.dt"]) == 2
    assert "found none" in capsys.readouterr().err
    assert main(["compare", str(runs), "--over", "model.clip"]) == 2
    assert "a key the recipe of every run sets" in capsys.readouterr().err


def test_scales_of_a_run(runs, tmp_path, capsys):
    run = str(folders(runs)[0].path)
    assert main(["scales", run, "--clip", "--interval", "0.5", "--figure", str(tmp_path / "s.png")]) == 0
    shown = capsys.readouterr().out
    assert "dt_z gathers around" in shown
    assert " s\n" in shown
    assert shown.count("low =") == 9
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_a_run_and_a_recipe_are_certified(runs, tmp_path, capsys):
    run = str(folders(runs)[0].path)
    assert main(["certify", run, "--figure", str(tmp_path / "c.png")]) == 0
    shown = capsys.readouterr().out
    assert "12 steps, dt = 0.1" in shown
    assert "advice: dt = " in shown
    assert (tmp_path / "c.png").is_file()
    figure = ["--figure", str(tmp_path / "r.png")]
    assert main(["certify", "adding/short", *TINY, "--model.num_layers", "2", *figure]) == 0
    assert (tmp_path / "r-0.png").is_file()
    assert (tmp_path / "r-1.png").is_file()
    assert main(["certify", run, "--model.dt", "1.0"]) == 2
    assert "A run keeps its recipe" in capsys.readouterr().err


def test_the_certificate_of_a_model_uses_its_own_loss(runs):
    task, model = runner.load_run(folders(runs)[0])
    (found,), _ = inspection.certify_model(model, task, rows=3)
    batch = task.valid.batch(0, 3)
    model = model.double().eval()
    prediction, _ = model(batch.inputs.double())
    ((prediction - batch.targets.double()) ** 2).sum().div(3).backward()
    for kind, name in (("V", "weight_u"), ("b", "bias")):
        gradient = getattr(model.recurrent.cells[0], name).grad
        assert_close(found.total[kind][0], gradient.abs().max(), "float32 gradient")
    assert torch.is_tensor(gradient)


def test_certificates_and_scales_of_a_model_that_sees_elapsed_times():
    torch.manual_seed(0)
    inputs, elapsed = torch.randn(5, 12, 2), torch.exp(torch.randn(5, 12))
    split = ArraySplit(inputs, torch.tensor([0, 1, 0, 1, 1]), torch.full((5,), 12), elapsed=elapsed)
    task = Task(split, split, lambda: split, 2, 2, loss="cross_entropy", metric="log_loss")
    model = SequenceModel("lem", 2, 6, 2, pool="both")
    (found,), _ = inspection.certify_model(model, task, rows=3)
    u, gaps = (t[:3].double().transpose(0, 1) for t in (inputs, elapsed))
    model = model.double().eval()
    outputs, _ = model.recurrent(u, elapsed=gaps)
    read = torch.cat([outputs[-1], outputs.mean(0).detach()], dim=-1)  # by the way through the last output
    (nn.functional.cross_entropy(model.readout(read), split.targets[:3], reduction="sum") / 3).backward()
    assert_close(found.total["b"][0], model.recurrent.cells[0].bias.grad.abs().max(), "float32 gradient")
    scales = inspection.model_scales(model.float(), split, 2)
    direct = time_scales(model.recurrent, [(inputs.transpose(0, 1), None, elapsed.T)])
    assert_close(scales.gates[0].time_constants, direct.gates[0].time_constants, "float32")


def test_a_recipe_without_a_search_is_given_one(tmp_path):
    recipe = runner.load_recipe("adding/short", {"task.length": 100, "model.hidden_size": 8})
    found = inspection.default_search(recipe, runner.build_task(recipe))
    assert set(found) == {"train.learning_rate", "model.dt"}
    assert 0.01 < found["model.dt"]["low"] < found["model.dt"]["high"] == 1.0
    text = '[task]\nname = "adding"\nlength = 20\n[model]\ncell = "rnn"\nhidden_size = 4\n'
    (tmp_path / "rnn.toml").write_text(text + "[train]\nbatch_size = 5\nepochs = 1\nlearning_rate = 0.1\n")
    other = runner.load_recipe(str(tmp_path / "rnn.toml"))
    assert set(inspection.default_search(other, runner.build_task(other))) == {"train.learning_rate"}


@pytest.mark.slow
def test_tune_takes_the_advised_search_where_a_recipe_has_none(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "adding/short", *TINY, "--trials", "1", "--jobs", "1", "--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "adding/short has no [search]; advised: train.learning_rate" in shown
    assert "model.dt {'low':" in shown

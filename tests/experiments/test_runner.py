"""Recipes and run folders: every recipe loads, every mistake is named, a run's folder is complete."""

import json
import shutil
import tomllib

import pytest

from lem.experiments.recipe import describe_changes, differences
from lem.experiments.runner import RunFolder, evaluate_run, load_recipe, recipe_names, run

TINY = {
    "task.sizes": [4, 4, 4],
    "model.hidden_size": 3,
    "train.epochs": 2,
    "train.batch_size": 2,
}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_starts_with_its_command(name):
    from lem.experiments.runner import RECIPES

    recipe = load_recipe(name)
    assert recipe.name == name
    first = (RECIPES / f"{name}.toml").read_text().partition("\n")[0]
    assert first.startswith(f"# lem train {name}")


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("fitzhugh_nagumo/lme", {}, r"`recipe` must be .* Did you mean 'fitzhugh_nagumo/lem'\?"),
        ("adding/lem", {"trian.epochs": 1}, r"A section .* got \[trian\]. Did you mean 'train'\?"),
        ("adding/lem", {"train.epoch": 1}, r"A key in \[train\] .* got 'epoch'. Did you mean 'epochs'\?"),
        ("adding/lem", {"train.epochs": "many"}, r"`epochs` in \[train\] .* must be a whole number; got 'many'"),
        ("adding/lem", {"train.epochs": True}, "must be a whole number; got True"),
        ("adding/lem", {"model.cell": "lmm"}, r"`cell` in \[model\] .* got 'lmm'. Did you mean 'lem'\?"),
        ("adding/lem", {"model.dtt": 1.0}, r"A key in \[model\] .* Did you mean 'dt'\?"),
        ("adding/lem", {"model.clip": [0.1, "x"]}, r"`clip` in \[model\]"),
        ("adding/lem", {"task.name": "adding_up"}, r"`name` in \[task\]"),
        ("adding/lem", {"task.width": 3}, r"A key in \[task\]"),
        ("adding/lem", {"paper.figur": 3}, r"A key in \[paper\]"),
        ("adding/lem", {"epochs": 3}, r"written section.key"),
    ],
)
def test_mistakes_in_recipes_are_named(name, overrides, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(name, overrides)


def test_a_recipe_that_lacks_what_training_needs(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[task]\nname = "adding"\n[model]\ncell = "lem"\nhidden_size = 3\n[train]\nepochs = 1\n')
    with pytest.raises(ValueError, match=r"\[train\] of recipe .*mine must set `batch_size`; got epochs"):
        load_recipe(str(file))
    file.write_text("[task\n")
    with pytest.raises(ValueError, match="must be valid TOML; got"):
        load_recipe(str(file))


def test_a_resolved_recipe_reads_back_the_same(tmp_path):
    recipe = load_recipe("fitzhugh_nagumo/lem", {"model.clip": [0.1, 1.0], "train.clip_norm": 1e-3})
    file = tmp_path / "fitzhugh_nagumo" / "again.toml"
    file.parent.mkdir()
    file.write_text(recipe.to_toml())
    again = load_recipe(str(file))
    assert again.digest == recipe.digest
    assert (again.search, again.paper) == (recipe.search, recipe.paper)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    folder, progress = run(load_recipe("fitzhugh_nagumo/lem", TINY), 1, runs)
    assert progress.epoch == 2
    return folder


def test_a_finished_run_folder_is_complete(finished):
    files = {path.name for path in finished.path.iterdir()}
    named = {"run.json", "recipe.toml", "env.json", "metrics.jsonl", "result.json"}
    assert files == named | {"last.ckpt", "previous.ckpt", "best.safetensors"}
    result = finished.result()
    assert result["recipe"] == "fitzhugh_nagumo/lem"
    assert (result["seed"], result["epochs"], result["updates"]) == (1, 2, 4)
    assert [record["epoch"] for record in finished.metrics()] == [1, 2]
    assert result["valid"] == min(record["valid"] for record in finished.metrics())
    environment = json.loads((finished.path / "env.json").read_text())
    assert {"commit", "torch", "cpu", "threads"} <= set(environment)
    assert environment["backend"].startswith(("native: target", "loop: "))


def test_the_same_command_again_does_not_train_again(finished):
    folder, progress = run(load_recipe("fitzhugh_nagumo/lem", TINY), 1, finished.path.parents[2])
    assert folder.path == finished.path
    assert progress is None


def test_evaluating_again_gives_the_result(finished):
    assert evaluate_run(finished) == finished.result()["test"]


def test_name_recipe_and_seed_are_data_wherever_the_folder_goes(finished, tmp_path):
    moved = RunFolder(shutil.copytree(finished.path, tmp_path / "renamed"))
    assert (moved.seed, moved.recipe().name) == (1, "fitzhugh_nagumo/lem")
    expected = {"name": f"fitzhugh_nagumo/lem/{finished.path.name}", "recipe": "fitzhugh_nagumo/lem", "seed": 1}
    assert json.loads((moved.path / "run.json").read_text()) == expected
    assert tomllib.loads((moved.path / "recipe.toml").read_text())["name"] == "fitzhugh_nagumo/lem"
    for seed in (-1, True, "1", None):
        (moved.path / "run.json").write_text(json.dumps({"seed": seed}))
        with pytest.raises(ValueError, match="must be a whole number of at least 0; got"):
            _ = moved.seed


def test_a_recipe_file_may_carry_its_name(tmp_path):
    file = tmp_path / "winner.toml"
    recipe = load_recipe("fitzhugh_nagumo/lem", TINY)
    file.write_text(recipe.to_toml())
    assert load_recipe(str(file)) == recipe
    for name in ("3", '""'):
        file.write_text(f"name = {name}\n" + recipe.to_toml().partition("\n")[2])
        with pytest.raises(ValueError, match="must be a text in quotes; got"):
            load_recipe(str(file))


def test_differences_are_values(finished):
    old = load_recipe("fitzhugh_nagumo/lem")
    new = load_recipe("fitzhugh_nagumo/lem", {"train.epochs": 3, "model.clip": [0.1, 1.0], "paper.units": 99})
    found = differences(old, new)
    assert found == [("model", "clip", None, [0.1, 1.0]), ("train", "epochs", 400, 3)]
    assert [one.place for one in found] == ["model.clip", "train.epochs"]
    assert describe_changes(found) == "model.clip was not set, is [0.1, 1.0]; train.epochs was 400, is 3"
    assert differences(new, new) == []


def test_a_stopped_run_continues_with_the_same_command(tmp_path, finished):
    recipe = load_recipe("fitzhugh_nagumo/lem", TINY)
    calls = []
    folder, progress = run(recipe, 1, tmp_path, should_stop=lambda: calls.append(0) or len(calls) == 3)
    assert progress.updates == 3
    assert not folder.finished
    folder, progress = run(recipe, 1, tmp_path)
    assert progress.updates == 4
    assert folder.result()["test"] == finished.result()["test"]
    assert [r["valid"] for r in folder.metrics()] == [r["valid"] for r in finished.metrics()]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, finished):
    recipe = load_recipe("fitzhugh_nagumo/lem", TINY)
    calls = []
    folder, _ = run(recipe, 1, tmp_path, should_stop=lambda: calls.append(0) or len(calls) == 3)
    last = folder.path / "last.ckpt"
    last.write_bytes(last.read_bytes()[:100])
    with pytest.warns(
        UserWarning, match=r"last.ckpt is not a complete checkpoint: .* the checkpoint before it is used"
    ):
        folder, _ = run(recipe, 1, tmp_path)
    assert folder.result()["test"] == finished.result()["test"]
    assert "not a complete checkpoint" in (folder.path / "notes.txt").read_text()

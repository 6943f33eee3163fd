"""Nothing is written outside the folder it belongs to: names that lead out and links are refused."""

import os
import shutil
from pathlib import Path

import pytest
from reproduction.results import add_run

from lem.atomic import append, inside, save_figure, write_atomically
from lem.cli import main
from lem.experiments.recipe import _name_of, check_recipe
from lem.experiments.runner import RunFolder, evaluate_run, run
from lem.experiments.tune import study_folder
from tests.runs import tiny

FILES = (
    "run.json",
    "recipe.toml",
    "env.json",
    "metrics.jsonl",
    "notes.txt",
    "last.ckpt",
    "best.safetensors",
    "result.json",
)


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


@pytest.mark.parametrize("place", ["../x.toml", "{absolute}", "a/../../x.toml", "./../work/../x.toml"])
def test_a_recipe_from_another_folder_trains_inside_runs(place, tmp_path, monkeypatch):
    (tmp_path / "work" / "a").mkdir(parents=True)
    recipe = tiny(train__epochs=1, task__steps_per_epoch=1)
    (tmp_path / "x.toml").write_text(recipe.to_toml())
    monkeypatch.chdir(tmp_path / "work")
    before = everything(tmp_path)
    assert main(["train", place.format(absolute=tmp_path / "x.toml")]) == 0
    new = everything(tmp_path) - before
    assert any(path.endswith("result.json") for path in new)
    assert all(path.startswith("work/runs") for path in new), new


def test_a_file_is_named_after_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"/x.toml": "x", "x.toml": "x", "a/x.toml": "a/x", "/b/a/x.toml": "a/x", "../x.toml": None}
    for path, name in names.items():
        assert _name_of(Path(path)) == (name or f"{tmp_path.parent.name}/x")


@pytest.mark.parametrize("name", ["../../..", "/etc", "a//b", "", ".", "a/../b", "a\nb", "C:x", "a\\b", "a\0"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(ValueError, match=r"A recipe's name becomes a folder, so it must be .*; got"):
        check_recipe(name, tiny().tables())


@pytest.mark.parametrize("study", ["../x", "a/b", "a\\b", "", "a\nb", "a:b"])
def test_a_study_that_is_no_folder_is_refused(study, tmp_path):
    with pytest.raises(ValueError, match="The name of a study must be a plain word"):
        study_folder(tmp_path, tiny(), study)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, _ = run(tiny(train__epochs=1, task__steps_per_epoch=1), 3, tmp_path_factory.mktemp("runs"))
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run that the test may damage."""
    place = tmp_path / "runs" / "adding" / "short" / finished.path.name
    shutil.copytree(finished.path, place)
    return RunFolder(place)


@pytest.mark.parametrize("line", ["# ../../.., resolved", 'name = "../../.."'])
def test_adding_a_run_whose_recipe_names_another_place_is_refused(line, copied, tmp_path):
    file = copied.path / "recipe.toml"
    _, _, rest = file.read_text().partition("\n")
    file.write_text(f"{line}\n{rest}")
    before = everything(tmp_path)
    with pytest.raises(ValueError, match="recipe's name becomes a folder"):
        add_run(copied, tmp_path / "deep" / "results")
    assert everything(tmp_path) == before


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are not followed by choice only on POSIX")
@pytest.mark.parametrize("name", FILES)
def test_a_link_in_a_run_folder_is_neither_read_nor_written(name, copied, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes((copied.path / name).read_bytes() if (copied.path / name).exists() else b"mine\n")
    before = outside.read_bytes()
    (copied.path / name).unlink(missing_ok=True)
    (copied.path / name).symlink_to(outside)
    (copied.path / f".{name}.{os.getpid()}.tmp").symlink_to(outside)
    recipe = tiny(train__epochs=1, task__steps_per_epoch=1)
    uses = [
        lambda: run(recipe, 3, tmp_path / "runs"),
        lambda: add_run(copied, tmp_path / "results"),
        lambda: copied.note("a note"),
        lambda: copied.record({"epoch": 1}),
        lambda: copied.write_json(name, {}),
        lambda: evaluate_run(copied),
    ]
    refused = 0
    for use in uses:
        try:
            use()
        except ValueError as error:
            assert f"{name} is a link" in str(error)  # noqa: PT017
            refused += 1
        except UserWarning:
            continue
    assert refused
    assert outside.read_bytes() == before
    assert not any((tmp_path / "results").rglob(name))


def test_an_atomic_write_replaces_links_and_follows_none(tmp_path):
    outside, path = tmp_path / "outside", tmp_path / "figure.png"
    outside.write_text("mine")
    for link in (path, tmp_path / f".figure.png.{os.getpid()}.tmp"):
        link.symlink_to(outside)

    class Figure:
        def savefig(self, target, dpi, format):
            assert format == "png"
            target.write(b"drawn")

    save_figure(Figure(), path)
    assert (outside.read_text(), path.read_bytes(), path.is_symlink()) == ("mine", b"drawn", False)
    write_atomically(path, b"again")
    (tmp_path / "notes.txt").symlink_to(outside)
    with pytest.raises(ValueError, match="is a link"):
        append(tmp_path / "notes.txt", "more")
    assert outside.read_text() == "mine"


def test_a_folder_linked_out_of_runs_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "adding").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="leads out of"):
        run(tiny(), 3, tmp_path / "runs")
    assert not list((tmp_path / "elsewhere").iterdir())
    assert inside(tmp_path, "a", "b") == tmp_path / "a" / "b"

"""Run folders with incomplete or hostile files: reports say what is wrong in a sentence, and link nowhere else."""

import json
import shutil

import pytest

from lem.cli import main
from lem.experiments.page import write_page
from lem.experiments.record import find_runs
from lem.experiments.report import group_runs, hardware
from lem.experiments.run_folder import RESULT, RunFolder
from lem.experiments.runner import run
from tests.runs import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, _ = run(tiny(train__epochs=1, task__steps_per_epoch=1), 3, tmp_path_factory.mktemp("runs"))
    return folder.path


@pytest.fixture
def copied(finished, tmp_path):
    return RunFolder(shutil.copytree(finished, tmp_path / "runs" / "adding" / "short" / finished.name))


@pytest.mark.parametrize("key", RESULT)
def test_a_result_without_a_field_is_named(key, copied, capsys):
    result = json.loads((copied.path / "result.json").read_text())
    for wrong in (None, [], True):
        (copied.path / "result.json").write_text(json.dumps({**result, key: wrong}))
        if isinstance(wrong, RESULT[key]) and not isinstance(wrong, bool):
            continue
        with pytest.raises(ValueError, match=rf"result\.json is not the result of a run: `{key}` is"):
            copied.result()
    (copied.path / "result.json").write_text(json.dumps({k: v for k, v in result.items() if k != key}))
    if isinstance(None, RESULT[key]):
        return
    assert main(["report", str(copied.path.parents[2])]) == 2
    assert f"`{key}` is None" in capsys.readouterr().err


def test_a_partial_environment_is_shown_as_far_as_it_goes(copied, capsys):
    (copied.path / "env.json").write_text('{"cpu": "a processor"}')
    assert hardware(find_runs([copied.path])[0]) == "a processor, ? of ? cores, torch ?"
    assert main(["report", str(copied.path.parents[2])]) == 0


def test_a_folder_named_like_an_address_is_a_relative_link(copied, tmp_path):
    hostile = tmp_path / 'javascript:alert(1)&"<b>'
    (tmp_path / "runs").rename(hostile)
    page = write_page(group_runs(find_runs([hostile])), tmp_path).read_text()
    assert 'href="javascript:' not in page
    assert 'href="javascript%3Aalert%281%29%26%22%3Cb%3E/adding/short/' in page

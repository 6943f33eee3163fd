"""Files that earlier versions wrote are read, continued and answer as they did; the fixtures' README says how made."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lem.experiments.runner import RunFolder, resume
from lem.timeseries.export import selftest
from tests.close import assert_close
from tests.fixtures.make import KINDS, answers, weights_sum

VERSIONS = sorted(path.parent for path in (Path(__file__).parent / "fixtures").glob("*/expected.json"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def version(request):
    return request.param, json.loads((request.param / "expected.json").read_text())


def test_there_are_fixtures():
    assert VERSIONS


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_file_answers_as_it_did(version, kind):
    place, expected = version
    assert_close(np.array(answers(place / f"{kind}.safetensors")), np.array(expected[kind]), "float32")


def test_an_export_to_numpy_answers_as_it_did(version):
    place, _ = version
    assert selftest("numpy", place / "numpy") < 1e-5


@pytest.mark.filterwarnings("ignore:.*was started with:UserWarning")  # other versions, other machines
def test_a_run_stopped_half_way_is_continued(version, tmp_path):
    place, expected = version
    run = tmp_path / Path(expected["run"]).name
    shutil.copytree(place / expected["run"], run)
    assert_close(np.array(weights_sum(RunFolder(run))), np.array(expected["weights"]), "float32")
    resumed, progress = resume(RunFolder(run))
    assert resumed.finished
    assert progress.updates == 20
    assert [record["epoch"] for record in resumed.metrics()] == [1, 2, 3, 4]

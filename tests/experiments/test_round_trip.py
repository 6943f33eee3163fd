"""A recipe that is accepted reads back the same from its run folder and its checkpoints, whatever it holds."""

import datetime
import json
import math
import shutil
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lem.cli import main
from lem.experiments.recipe import check_recipe, differences, with_values
from lem.experiments.runner import run
from tests.runs import tiny

values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.datetimes() | st.times() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


@settings(deadline=None, max_examples=400)
@given(
    figure=values, source=st.text() | st.characters(codec="utf-8"), rate=st.floats(), swept=st.lists(values, max_size=3)
)
def test_a_recipe_that_is_accepted_reads_back_the_same(figure, source, rate, swept):
    tables = tiny().tables() | {"paper": {"figure": figure, "source": source}, "sweep": {"train.epochs": swept}}
    tables["train"] = tables["train"] | {"learning_rate": rate}
    try:
        recipe = check_recipe("a/b", tables)
    except ValueError:
        return
    again = check_recipe("a/b", tomllib.loads(recipe.to_toml()))
    assert again == recipe
    assert again.digest == recipe.digest
    assert differences(recipe, again) == []
    assert json.loads(json.dumps(recipe.tables())) == recipe.tables()


@pytest.mark.parametrize(
    "figure",
    [
        datetime.date(2020, 1, 1),
        datetime.time(1),
        datetime.datetime(2020, 1, 1),
        math.nan,
        None,
        2**63,
        "\ud800",
        {1: 2},
    ],
)
def test_what_would_not_read_back_is_refused_before_training(figure, tmp_path):
    with pytest.raises(ValueError, match=r"`paper.figure` of recipe .* must be text"):
        with_values(tiny(), {"paper.figure": figure})


@pytest.mark.parametrize("text", ["\x7f", "a\nb", '"', "\\", "\u2028", "\x00", "é\U0001f600", ""])
def test_texts_with_unusual_characters_are_written_so_that_they_read_back(text, tmp_path):
    recipe = with_values(tiny(train__epochs=1, task__steps_per_epoch=1), {"paper.source": text})
    folder, _ = run(recipe, 0, tmp_path)
    assert folder.recipe().paper["source"] == text
    _, progress = run(recipe, 0, tmp_path)
    assert progress is None


def test_values_of_python_are_kept_as_those_of_toml(tmp_path):
    recipe = with_values(tiny(), {"train.learning_rate": np.float64(0.25), "model.clip": (0.1, 1)})
    assert (recipe.train["learning_rate"], recipe.model["clip"]) == (0.25, [0.1, 1])
    assert "np." not in recipe.to_toml()
    folder, _ = run(recipe, 0, tmp_path, should_stop=lambda: True)
    run(recipe, 0, tmp_path)
    assert folder.finished


def test_a_date_on_the_command_line_is_refused_in_a_sentence(tmp_path, capsys):
    assert main(["train", "adding/short", "--paper.figure=2020-01-01", "--runs", str(tmp_path)]) == 2
    assert "`paper.figure` of recipe adding/short must be text" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_removed_while_it_is_used_stops_the_run_and_leaves_no_half_of_one(tmp_path):
    recipe = tiny(train__checkpoint_minutes=0.0)
    calls = []

    def remove_once():
        calls.append(0)
        if len(calls) == 3:
            shutil.rmtree(tmp_path / "adding")
        return False

    with pytest.raises(OSError, match=r"was removed while the run used it.* rerun the same command"):
        run(recipe, 3, tmp_path, should_stop=remove_once)
    assert not list(tmp_path.rglob("*.ckpt"))
    folder, _ = run(recipe, 3, tmp_path)
    assert folder.finished

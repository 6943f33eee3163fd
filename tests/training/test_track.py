"""TensorBoard's files hold what metrics.jsonl holds."""

import pytest

from lem.experiments.runner import run
from lem.training.track import tensorboard
from tests.runs import tiny


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own imports
def test_the_curves_are_those_of_the_run(tmp_path):
    folder, _ = run(tiny(train__epochs=2), 0, tmp_path / "runs", report=tensorboard(tmp_path / "board"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    for name in ("loss", "valid", "learning_rate"):
        written = [(event.step, event.value) for event in board.Scalars(name)]
        expected = [(record["updates"], record[name]) for record in folder.metrics()]
        assert [step for step, _ in written] == [step for step, _ in expected]
        assert [value for _, value in written] == pytest.approx([value for _, value in expected])

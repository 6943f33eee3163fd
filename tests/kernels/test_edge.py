"""The operators called directly with wrong arguments: they raise, and never read memory that is not there."""

import pytest
import torch

from lem import LEMCell

STEPS, BATCH, INPUT, HIDDEN, PROJ = 6, 3, 2, 9, 4
ROWS = 2 * HIDDEN + 2 * PROJ


def forward_arguments(keep=1):
    torch.manual_seed(0)
    cell = LEMCell(INPUT, HIDDEN, proj_size=PROJ)
    weights = [w.detach() for w in (cell.weight_u, cell.weight_y, cell.weight_z, cell.bias)]
    names = ("u", "weight_u", "weight_y", "weight_z", "bias", "y_0", "z_0", "mask", "lengths")
    tensors = (
        torch.randn(STEPS, BATCH, INPUT), *weights, torch.zeros(BATCH, PROJ), torch.zeros(BATCH, HIDDEN),
        torch.ones(BATCH, PROJ), torch.full((BATCH,), STEPS),
    )  # fmt: skip
    options = {"dt": 0.9, "clip": [0.1, 0.8], "reverse": False, "keep": keep, "segment": 2}
    times = {
        "elapsed": torch.ones(STEPS, BATCH), "resets": torch.zeros(STEPS, BATCH, dtype=torch.bool),
        "y_start": torch.zeros(PROJ), "z_start": torch.zeros(HIDDEN),
    }  # fmt: skip
    return dict(zip(names, tensors)) | options | times


def backward_arguments(keep=1):
    given = forward_arguments(keep)
    out, _, _, saved = torch.ops.lem.sequence(**given)
    return given | {
        "grad_out": torch.randn(STEPS, BATCH, PROJ), "grad_y_n": torch.randn(BATCH, PROJ),
        "grad_z_n": torch.randn(BATCH, HIDDEN), "out": out, "saved": saved, "input_gradient": True,
        "elapsed_gradient": True,
    }  # fmt: skip


FORWARD = {"operator": torch.ops.lem.sequence, "arguments": forward_arguments}
BACKWARD = {"operator": torch.ops.lem.sequence_backward, "arguments": backward_arguments}
TENSORS = [name for name, value in forward_arguments().items() if isinstance(value, torch.Tensor)]
BACK_TENSORS = [*TENSORS, "grad_out", "grad_y_n", "grad_z_n", "out", "saved"]
CASES = [(FORWARD, name) for name in TENSORS] + [(BACKWARD, name) for name in BACK_TENSORS]
IDS = [f"{'backward' if which is BACKWARD else 'forward'}-{name}" for which, name in CASES]


def wrong(value):
    """Every kind of tensor that has the wrong shape, type or layout."""
    yield "shorter", value[:-1] if len(value) > 1 else value[:0]
    yield "longer", torch.cat([value, value[:1]])
    yield "more axes", value[None]
    yield "a number", value.flatten()[0]
    for dtype in (torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64):
        if dtype != value.dtype:
            yield str(dtype), value.to(dtype)
    yield "sparse", value.to_sparse()
    yield "meta", value.to("meta")


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_right_arguments_run(keep):
    torch.ops.lem.sequence(**forward_arguments(keep))
    grads = torch.ops.lem.sequence_backward(**backward_arguments(keep))
    assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize(("which", "name"), CASES, ids=IDS)
def test_wrong_tensors_raise(which, name):
    given = which["arguments"]()
    for kind, value in wrong(given[name]):
        if name == "saved" and kind == "longer":  # what stands behind the needed bytes is not read
            continue
        with pytest.raises((ValueError, TypeError, RuntimeError, NotImplementedError)) as caught:
            which["operator"](**given | {name: value})
        assert str(caught.value), kind


@pytest.mark.parametrize(
    ("name", "value"),
    [("clip", [0.1]), ("clip", [0.1, 0.2, 0.3]), ("keep", 4), ("keep", -1), ("segment", 0), ("dt", 1.5)],
)
def test_wrong_options_raise(name, value):
    given = forward_arguments(3) | {name: value}
    with pytest.raises(ValueError, match=r"LEM kernel|lem::"):
        torch.ops.lem.sequence(**given)


@pytest.mark.parametrize("lengths", [[0, 1, 1], [7, 1, 1], [-1, 1, 1]])
def test_wrong_lengths_raise(lengths):
    with pytest.raises(ValueError, match="out of range"):
        torch.ops.lem.sequence(**forward_arguments() | {"lengths": torch.tensor(lengths)})


def test_what_another_problem_kept_is_refused():
    given = backward_arguments()
    with pytest.raises(ValueError, match="another problem"):
        torch.ops.lem.sequence_backward(**given | {"elapsed": None, "elapsed_gradient": False})
    with pytest.raises(ValueError, match="another problem"):
        torch.ops.lem.sequence_backward(**given | {"saved": torch.zeros_like(given["saved"])})
    with pytest.raises(ValueError, match="out of range"):
        torch.ops.lem.sequence_backward(**given | {"out": None})


@pytest.mark.parametrize("name", ["u", "weight_u", "y_0", "z_0", "mask", "bias"])
def test_pending_negations_are_carried_out(name):
    given = forward_arguments()
    negated = torch.ops.lem.sequence(**given | {name: torch._neg_view(given[name])})
    plain = torch.ops.lem.sequence(**given | {name: -given[name]})
    for a, b in zip(negated[:3], plain[:3]):
        assert torch.equal(a, b)


def test_pending_negations_of_gradients_are_carried_out():
    given = backward_arguments()
    for name in ("grad_out", "grad_y_n", "grad_z_n", "out"):
        negated = torch.ops.lem.sequence_backward(**given | {name: torch._neg_view(given[name])})
        plain = torch.ops.lem.sequence_backward(**given | {name: -given[name]})
        assert all(torch.equal(a, b) for a, b in zip(negated, plain))


@pytest.mark.parametrize("name", TENSORS)
def test_layouts_are_read_as_they_are(name):
    given = forward_arguments()
    value = given[name]
    expected = torch.ops.lem.sequence(**given)
    wide = torch.zeros(*value.shape, 2, dtype=value.dtype)
    wide[..., 0] = value
    found = torch.ops.lem.sequence(**given | {name: wide[..., 0]})
    assert all(torch.equal(a, b) for a, b in zip(expected[:3], found[:3]))

"""Which path a call takes."""

import pytest
import torch

from lem.kernels.triton.paths import CARDS, TABLE, TIMED_SPILLS, Card, choose, mode_of


@pytest.mark.parametrize(
    ("card", "mode", "kinds"),
    [
        ("sm_80", "tf32x3", ["resident", "resident", "resident", "streamed", "streamed", "alternating"]),
        ("sm_80", "bfloat16", ["resident", "resident", "resident", "resident", "streamed", "alternating"]),
        ("sm_86", "tf32x3", ["resident", "resident", "streamed", "streamed", "streamed", "alternating"]),
        ("sm_86", "tf32", ["resident", "resident", "resident", "streamed", "streamed", "alternating"]),
        ("sm_90", "tf32x3", ["resident", "resident", "resident", "streamed", "alternating", "alternating"]),
        ("sm_90", "tf32", ["resident", "resident", "resident", "streamed", "streamed", "alternating"]),
        ("gfx942", "ieee", ["resident", "resident", "resident", "streamed", "streamed", "alternating"]),
    ],
)
def test_the_table(card, mode, kinds):
    assert [choose(d, mode, CARDS[card]).kind for d in (16, 32, 64, 128, 256, 1024)] == kinds


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("mode", ["tf32x3", "tf32", "ieee", "bfloat16", "float16"])
def test_every_width_has_a_path_that_holds_it(card, mode):
    for d in (1, 7, 16, 17, 64, 65, 200, 256, 257, 5000):
        path = choose(d, mode, CARDS[card])
        assert path.width >= d
        assert path.kind == "alternating" or path.width < 2 * max(d, 16)


def test_a_card_with_too_little_shared_memory_takes_the_next_path():
    tiny = Card("cuda", "sm_80", 4096)
    assert choose(16, "tf32x3", tiny).kind == "alternating"
    assert choose(16, "bfloat16", tiny) == choose(16, "bfloat16", CARDS["sm_80"])._replace(project=False)


def test_an_amd_card_that_was_not_compiled_for_takes_the_alternating_path():
    assert choose(16, "ieee", Card("hip", "gfx1100", 65_536)).kind == "alternating"
    assert choose(16, "tf32x3", Card("cuda", "sm_120", 101_376)).kind == "resident"


def test_an_input_too_large_to_project_inside_is_projected_before():
    """The weights of 64 units at float32 accuracy fit an A100, with the input's they do not."""
    assert not choose(64, "tf32x3", CARDS["sm_80"]).project
    assert choose(64, "tf32x3", CARDS["sm_90"]).project


@pytest.mark.parametrize("vendor", TABLE)
def test_rows_are_in_order(vendor):
    widths = [row.width for row in TABLE[vendor]]
    assert widths == sorted(widths)


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("asked", "nvidia", "amd"),
    [("highest", "tf32x3", "ieee"), ("high", "tf32", "ieee"), ("medium", "bfloat16", "bfloat16")],
)
def test_float32_follows_the_precision_that_torch_was_asked_for(asked, nvidia, amd, precision):
    precision(asked)
    assert mode_of(torch.float32, "cuda") == nvidia
    assert mode_of(torch.float32, "hip") == amd
    assert mode_of(torch.float16, "cuda") == "float16"


def test_a_row_that_spills_with_elapsed_times_takes_the_next_path_with_them():
    for card, width, mode in TIMED_SPILLS:
        assert choose(width, mode, CARDS[card]).kind == "streamed"
        assert choose(width, mode, CARDS[card], timed=True).kind == "alternating"

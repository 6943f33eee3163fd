"""Seeds, and the run-time check of every shape in a signature."""

import pytest
from jaxtyping import install_import_hook

import tests.shapes  # the hook below finds it by name

# Before the first import of lem: each annotated tensor of the inner modules is then
# checked where it is passed; the layers users call check for themselves, with better words.
with install_import_hook(["lem.cells", "lem.data"], "tests.shapes.check_shapes"):
    import lem

import torch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


assert lem.__version__
assert tests.shapes.check_shapes

"""Seeds, and the run-time check of every shape in a signature."""

import os

import pytest
from jaxtyping import install_import_hook

import tests.shapes  # the hook below finds it by name

# Before the first import of lem: each annotated tensor of the inner modules is then
# checked where it is passed; the layers users call check for themselves, with better words.
with install_import_hook(["lem.cells", "lem.data"], "tests.shapes.check_shapes"):
    import lem

import torch


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory):
    """Keep the tests out of the user's data folder: prepared data goes where LEM_DATA says, or is thrown away."""
    if not os.environ.get("LEM_DATA"):
        os.environ["LEM_DATA"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


assert lem.__version__
assert tests.shapes.check_shapes

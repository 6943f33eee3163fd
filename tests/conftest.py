"""Seeds, and the run-time check of every shape in a signature."""

import os

# Before the first import of Triton, which decides then: its kernels run in its interpreter, without a GPU.
os.environ["TRITON_INTERPRET"] = "1"

import jaxtyping
import pytest
from jaxtyping import install_import_hook

import tests.shapes  # the hook below finds it by name

# Before the first import of lem: each annotated tensor of the inner modules is then
# checked where it is passed; the layers users call check for themselves, with better words.
with install_import_hook(["lem.nn.cells", "lem.training.data"], "tests.shapes.check_shapes"):
    import lem
    import lem.nn  # `import lem` alone imports nothing
    import lem.training.data

import torch


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory):
    """Keep the tests out of the user's data folder: prepared data goes where LEM_DATA says, or is thrown away."""
    if not os.environ.get("LEM_DATA"):
        os.environ["LEM_DATA"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def shapes_unchecked():
    """Switch the run-time check of shapes off: torch's tracer cannot follow it through optional arguments."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


assert lem.__version__
assert tests.shapes.check_shapes

"""The public surface: what is exported, and what importing it needs."""

import subprocess
import sys

import pytest

import lem

HEAVY = ("scipy", "matplotlib", "jaxtyping", "pandas", "sklearn", "optuna", "onnx", "librosa")


def test_all_lists_the_public_names():
    for name in lem.__all__:  # they are imported when they are first used
        assert getattr(lem, name) is not None
        assert name in dir(lem)
    public = {name for name in vars(lem) if not name.startswith("_")} | {"__version__"}
    modules = {name for name in public if type(getattr(lem, name)).__name__ == "module"}
    assert set(lem.__all__) == public - modules - {"TYPE_CHECKING", "Any"}
    with pytest.raises(AttributeError, match="module 'lem' has no attribute 'LME'"):
        lem.LME  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    code = "import sys, lem; assert 'torch' not in sys.modules; lem.LEM; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def importing(code: str) -> subprocess.CompletedProcess:
    blocker = (
        "import sys\n"
        f"blocked = {HEAVY!r}\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in blocked:\n"
        "            raise ImportError(name + ' is blocked')\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    return subprocess.run([sys.executable, "-c", blocker + code], capture_output=True, text=True, check=False)


def test_the_core_needs_torch_numpy_and_safetensors_only():
    done = importing("import lem.cli, lem.experiments.runner, lem.experiments.report\nlem.LEM(2, 3)\n")
    assert done.returncode == 0, done.stderr


def test_the_proof_above_can_fail():
    assert "scipy is blocked" in importing("import scipy\n").stderr


def test_a_missing_extra_is_named_by_the_error_that_needs_it(tmp_path):
    code = f"import os\nos.environ['LEM_DATA'] = {str(tmp_path)!r}\n"  # where nothing is prepared yet
    code += "from lem.tasks import TASKS\nTASKS['fitzhugh_nagumo']()\n"
    assert "pip install '.[data]'" in importing(code).stderr

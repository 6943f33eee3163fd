"""AOTInductor packages run without this library, and its kernel in them without Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.close import assert_close

ROOT = Path(__file__).parents[2]
SIZES = ((2, 7), (3, 20), (1, 1))

WRITE = f"""
import contextlib
import sys

import torch
from torch import nn

from lem import LEM
from lem.kernels import portable


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = LEM(3, 8, batch_first=True, bidirectional=True, clip=(0.1, 0.9))
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


folder, kernel = sys.argv[1:]
torch.manual_seed(0)
model, free = Tagger().eval(), torch.export.Dim.DYNAMIC
with torch.no_grad(), contextlib.nullcontext() if kernel == "kernel" else portable():
    program = torch.export.export(model, (torch.randn(2, 7, 3),), dynamic_shapes=({{0: free, 1: free}},))
    torch._inductor.aoti_compile_and_package(program, package_path=f"{{folder}}/model.pt2")
    given = [torch.linspace(-1, 1, b * t * 3).reshape(b, t, 3) for b, t in {SIZES}]
    torch.save([(x, model(x)) for x in given], f"{{folder}}/cases.pt")
"""

ALONE = """
import sys

sys.modules["lem"] = None
import torch

model = torch._inductor.aoti_load_package(f"{sys.argv[1]}/model.pt2")
for x, expected in torch.load(f"{sys.argv[1]}/cases.pt"):
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
"""


def python(program, *arguments):
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_portable_package_runs_where_lem_cannot_be_imported(tmp_path):
    python(WRITE, str(tmp_path), "portable")
    python(ALONE, str(tmp_path))


@pytest.mark.slow
def test_a_program_in_cpp_runs_a_package_with_the_kernel(tmp_path):
    if not shutil.which("cmake") or not shutil.which("c++"):
        pytest.skip("cmake or a C++ compiler is not installed")
    import torch

    build = tmp_path / "build"
    for call in (
        ["cmake", "-S", "examples/cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"],
        ["cmake", "--build", build],
    ):
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    python(WRITE, str(tmp_path), "kernel")
    for (batch, steps), (_, expected) in zip(SIZES, torch.load(tmp_path / "cases.pt")):
        call = [build / "run_package", tmp_path / "model.pt2", str(batch), str(steps), "3"]
        done = subprocess.run(call, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert_close(np.array(done.stdout.split(), dtype=np.float32), expected.flatten().numpy(), "float32")

"""Describe the environment of a run: versions, commit, processor, threads."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch

from lem.version import __version__


def _commit() -> str | None:
    call = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:  # no git here
        return None


def environment() -> dict[str, Any]:
    """Describe what a run ran on: commit, versions, processor, threads."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "lem": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }

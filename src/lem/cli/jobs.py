"""Several processes of this command at once: each with its share of the cores, none of them lost in silence."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from lem.recipe import toml_value


def share_cores(jobs: int) -> dict[str, str]:
    """Return the environment for one of so many processes; warn where there are more of them than cores.

    A thread count that the user has set stands.
    """
    cores = os.cpu_count() or 1
    if jobs < 1:
        raise ValueError(f"--jobs must be a positive integer; got {jobs}.")
    if jobs > cores:
        print(f"lem: warning: --jobs {jobs} is more than the {cores} cores of this machine.", file=sys.stderr)
    return {"OMP_NUM_THREADS": str(max(1, cores // jobs)), **os.environ}


def start(words: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[str], Any]:
    """Start `lem WORDS`; what it says goes to a file, which is returned too."""
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115
    command = [sys.executable, "-m", "lem.cli", *words]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, text=True), output


def run_all(commands: list[list[str]], jobs: int) -> Iterator[tuple[int, int, str]]:
    """Run all commands, so many at a time; yield (which, exit status, output) as they end."""
    environment, waiting = share_cores(jobs), list(enumerate(commands))
    running: dict[int, tuple[subprocess.Popen[str], Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                which, words = waiting.pop(0)
                running[which] = start(words, environment)
            for which, (process, output) in list(running.items()):
                if process.poll() is not None:
                    del running[which]
                    yield which, process.returncode, said(output)
            time.sleep(0.1)
    finally:
        stop(list(running.values()))


def said(output: Any) -> str:
    """Return all that was written to a file so far, and close it."""
    output.seek(0)
    with output:
        return str(output.read())


def stop(started: list[tuple[subprocess.Popen[str], Any]]) -> None:
    """Let processes end with a checkpoint, and close their outputs."""
    for process, _ in started:
        if process.poll() is None:
            process.terminate()
    for process, output in started:
        process.wait()
        output.close()


def as_words(overrides: dict[str, Any]) -> list[str]:
    """Write overrides as they are given on the command line."""
    return [f"--{key}={value if isinstance(value, str) else toml_value(value)}" for key, value in overrides.items()]

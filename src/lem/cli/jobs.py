"""Run several processes of this command at once; they report in lines of JSON and end with this one, even if killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from lem.experiments.recipe import toml_value


def share_cores(jobs: int) -> dict[str, str]:
    """Return the environment for one of several processes; warn if there are more processes than cores.

    A thread count that the user has set is kept.
    """
    cores = os.cpu_count() or 1
    if jobs < 1:
        raise ValueError(f"--jobs must be a positive integer; got {jobs}.")
    if jobs > cores:
        print(f"lem: warning: --jobs {jobs} is more than the {cores} cores of this machine.", file=sys.stderr)
    return {"OMP_NUM_THREADS": str(max(1, cores // jobs)), **os.environ}


@contextmanager
def ending_with_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `finally` stops the children."""

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), leave) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def print_event(event: str, **fields: Any) -> None:
    """Print a line of JSON for the program that started this one."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Job:
    """A running `lem WORDS`. Its standard output holds lines of JSON, its standard error text for people.

    The current folder is not searched for modules (-P): an `optuna.py` in it must not run. Its own process group keeps
    the terminal's Ctrl-C from it, which would be a second signal after that of `stop` and would lose the checkpoint.
    """

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-P", "-m", "lem.cli.child", *words]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": self._output, "stderr": self._errors}
        self.process = subprocess.Popen(command, env=environment, text=True, process_group=0, **pipes)

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self.process.poll()

    def events(self) -> list[dict[str, Any]]:
        """Return the events printed so far, without a last line torn by a kill."""
        self._output.seek(0)
        lines = [line for line in self._output if line.endswith("\n") and line.startswith("{")]
        return [json.loads(line) for line in lines]

    def last_words(self) -> str:
        """Return the last line of standard error, to be shown to the user."""
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or ["no output"])[-1]

    def close(self) -> None:
        """Wait for the process and close its files."""
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._output.close()
        self._errors.close()


class Ended(NamedTuple):
    """A job that ended: its place among the commands, its exit status, its events and last line of error text."""

    which: int
    status: int
    events: list[dict[str, Any]]
    last_words: str


def run_all(commands: list[list[str]], jobs: int) -> Iterator[Ended]:
    """Run all commands, `jobs` at a time; yield each as it ends."""
    environment, waiting = share_cores(jobs), list(enumerate(commands))
    running: dict[int, Job] = {}
    with ending_with_signals():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    which, words = waiting.pop(0)
                    running[which] = Job(words, environment)
                for which, job in list(running.items()):
                    if job.status is not None:
                        ended = Ended(which, job.status, job.events(), job.last_words())
                        running.pop(which).close()
                        yield ended
                time.sleep(0.1)
        finally:
            stop(list(running.values()))


def stop(jobs: list[Job]) -> None:
    """Let processes end with a checkpoint, and close their outputs."""
    for job in jobs:
        if job.status is None:
            job.process.terminate()
    for job in jobs:
        job.close()


def as_words(overrides: dict[str, Any]) -> list[str]:
    """Write overrides as they are given on the command line."""
    return [f"--{key}={value if isinstance(value, str) else toml_value(value)}" for key, value in overrides.items()]

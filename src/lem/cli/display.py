"""What a command shows while it works: one line that moves on a terminal, one line a minute elsewhere."""

import shutil
import sys
import time

from lem.readable import format_duration, format_score
from lem.timeseries.batches import Stage
from lem.training.loop import Event

BAR = 24
EVERY = 60.0
"""Seconds between two lines if standard error is not a terminal."""


def table(rows: list[tuple[str, str]]) -> None:
    """Print (what, value) rows."""
    for what, value in rows:
        print(f"{what:16} {value}")


def fitted_line(name: str, bar: float, parts: list[str], width: int) -> str:
    """Return a line of at most `width` characters: as many of the parts as fit, the first ones first.

    A bar with the share done comes first if there is room for it.
    """
    text = name
    for part in parts:
        if part and len(text) + 2 + len(part) <= width:
            text += f"  {part}"
    room = width - len("  ".join(filter(None, [name, *parts]))) - 3
    if room >= 8:
        filled = round(min(room, BAR) * bar)
        text = f"{name} [{'=' * filled}{' ' * (min(room, BAR) - filled)}]{text[len(name) :]}"
    return text[:width]


class Display:
    """A line that moves on a terminal, cut to its width; elsewhere one line a minute.

    Args:
        name: of what is trained.
        metric: what the validation score is called.
    """

    def __init__(self, name: str, metric: str = "valid") -> None:
        self.name = name
        self.metric = metric
        self.live = sys.stderr.isatty()
        self.shown = 0.0 if self.live else time.monotonic()
        self.valid = self.best = ""
        self.loss: float | None = None
        self.first: tuple[float, int] | None = None
        self.done = self.trainings = 0

    def say(self, text: str) -> None:
        """Show what is going on, if someone watches."""
        if self.live:
            # One column stays free: a terminal may wrap when its last one is written.
            print(f"\r\x1b[K{text[: terminal_width() - 1]}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def parts(self, share: float, parts: list[str]) -> None:
        """Show the share done, and as many of the parts as there is room for."""
        now = time.monotonic()
        if now - self.shown < (0.1 if self.live else EVERY):
            return
        self.shown = now
        if self.live:
            self.say(fitted_line(self.name, share, parts, terminal_width() - 1))
        else:
            print("  ".join(filter(None, [self.name, *parts])), file=sys.stderr, flush=True)

    def __call__(self, event: Event | Stage) -> None:
        """Show the progress of training."""
        if isinstance(event, Stage):
            left = "" if event.seconds_left is None else f"{format_duration(event.seconds_left)} left"
            self.parts(event.share, [event.name, left])
            return
        now, progress = time.monotonic(), event.progress
        if progress.updates < self.done or not self.trainings:  # another training has begun
            self.trainings += 1
            self.first, self.loss, self.valid, self.best = None, None, "", ""
        self.done = progress.updates
        self.first = self.first or (now, progress.updates)
        self.loss = event.loss if self.loss is None else 0.95 * self.loss + 0.05 * event.loss
        if event.record is not None and progress.best is not None:
            self.valid = f"{self.metric} {format_score(event.record['valid'])}"
            self.best = f"best {format_score(progress.best)} at {progress.best_epoch}"
        if now - self.shown < (0.1 if self.live else EVERY):
            return
        total, done = event.epochs * event.steps, progress.updates
        speed = (done - self.first[1]) / max(now - self.first[0], 1e-9)
        left = format_duration((total - done) / speed) + " left" if speed > 0 else ""
        epoch = f"epoch {min(progress.epoch + 1, event.epochs)}/{event.epochs}"
        if self.trainings > 1:
            epoch = f"training {self.trainings}, {epoch}"
        # In the order of what is given up last on a narrow terminal.
        parts = [epoch, left, self.best, self.valid, f"loss {self.loss:.3g}", f"{speed:.3g} steps/s"]
        self.parts(done / total, parts)


def terminal_width() -> int:
    """Return the columns of the terminal."""
    return shutil.get_terminal_size().columns

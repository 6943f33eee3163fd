"""What a command shows while it works: a line that moves on a terminal, one line per evaluation elsewhere."""

import sys
import time

from lem import report
from lem.train import Event

BAR = 24


def table(rows: list[tuple[str, str]]) -> None:
    """Print (what, value) rows."""
    for what, value in rows:
        print(f"{what:16} {value}")


class Display:
    """A line that moves on a terminal; elsewhere one line per evaluation, at most every ten seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.live = sys.stderr.isatty()
        self.shown = 0.0
        self.valid = ""
        self.loss: float | None = None
        self.first: tuple[float, int] | None = None

    def say(self, text: str) -> None:
        """Show what is going on, where someone watches."""
        if self.live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, event: Event) -> None:
        """Show where training stands."""
        now, progress = time.monotonic(), event.progress
        self.first = self.first or (now, progress.updates)
        self.loss = event.loss if self.loss is None else 0.95 * self.loss + 0.05 * event.loss
        if event.record is not None and progress.best is not None:
            best = report.figure(progress.best)
            self.valid = f"valid {report.figure(event.record['valid'])} (best {best} at {progress.best_epoch})"
        pause = 0.1 if self.live else 10.0
        if now - self.shown < pause or (not self.live and event.record is None):
            return
        self.shown = now
        total, done = event.epochs * event.steps, progress.updates
        speed = (done - self.first[1]) / max(now - self.first[0], 1e-9)
        left = report.duration((total - done) / speed) + " left" if speed > 0 else ""
        text = f"epoch {min(progress.epoch + 1, event.epochs)}/{event.epochs}  loss {self.loss:.3g}  {self.valid}"
        pace = f"{speed:.3g} steps/s  {left}"
        if self.live:
            filled = round(BAR * done / total)
            self.say(f"{self.name} [{'=' * filled}{' ' * (BAR - filled)}] {text}  {pace}")
        else:
            print(f"{text}  {pace}", file=sys.stderr, flush=True)

"""`lem doctor`."""

import argparse
import json
import sys
from typing import Any

from lem.cli.display import table
from lem.diagnostics.doctor import examine


def add(commands: Any) -> None:
    """Add this topic's commands."""
    doctor = commands.add_parser("doctor")
    doctor.add_argument("--json", action="store_true", help="print everything as JSON, for a bug report")
    doctor.add_argument("--no-speed", action="store_true", help="skip the timing against nn.LSTM")
    doctor.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    live = sys.stderr.isatty()

    def say(text: str) -> None:
        if live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    report = examine(say, speed=not options.no_speed)
    say("")
    if options.json:
        print(json.dumps(report, indent=2))
        return 0 if report["ok"] else 1
    machine, kernel = report["environment"], report["kernel"]
    table(
        [
            ("lem", f"{machine['lem']}, torch {machine['torch']}, Python {machine['python']}"),
            ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"),
            ("backend", f"{kernel['backend']}: {kernel['why']}"),
            ("targets", ", ".join(kernel["targets"]) or "none"),
            ("data", f"{report['data']['folder']}: {', '.join(report['data']['present']) or 'nothing fetched yet'}"),
        ]
    )
    for check in report["checks"]:
        print(f"{'right' if check['ok'] else 'WRONG':6} {check['name']}: {check['detail']}")
    for row in report["speed"]:
        low, high = row["spread"]
        print(
            f"speed  (time, batch, input, hidden) = {tuple(row['shape'])}: {row['times_lstm']} x nn.LSTM "
            f"({low} to {high}; {row['lem_ms']} ms against {row['lstm_ms']} ms, {row['threads']} threads)"
            + (", measured while other programs ran: do not quote it" if row["loaded"] else "")
        )
    for advice in report["advice"]:
        print(f"advice {advice}")
    return 0 if report["ok"] else 1

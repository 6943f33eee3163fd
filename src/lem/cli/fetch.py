"""`lem fetch`: get the data of tasks, or show what there is."""

import argparse
from typing import Any

from lem.spelling import nearest
from lem.tasks import SOURCES, TASKS
from lem.tasks.fetch import data_folder, fetch


def add(commands: Any) -> None:
    """Add this topic's commands."""
    parser = commands.add_parser(
        "fetch",
        epilog="The folder is LEM_DATA, or `lem` in the user's cache folder; what is already there is used.",
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="whose data to fetch")
    parser.add_argument("--list", action="store_true", help="show size, presence, licence and source of each")
    parser.add_argument("--offline", action="store_true", default=None, help="only check what is there")
    parser.set_defaults(command=_fetch)


def _fetch(options: argparse.Namespace) -> int:
    if options.list:
        print(f"data folder: {data_folder()}\n")
        print(f"{'task':22} {'MB':>7}  {'here':4}  licence; source")
        for name, source in SOURCES.items():
            size = "?" if source.size is None else f"{source.size / 1e6:.1f}"
            here = "yes" if source.present() else "no"
            print(f"{name:22} {size:>7}  {here:4}  {source.licence}; {source.page}")
        return 0
    if not options.tasks:
        raise ValueError("lem fetch needs the name of a task, or --list.")
    for name in options.tasks:
        if name in TASKS and name not in SOURCES:
            print(f"{name}: makes its own data")
        elif name not in SOURCES:
            raise ValueError(f"`TASK` must be one of {', '.join(SOURCES)}; got {name!r}.{nearest(name, SOURCES)}")
        else:
            print(f"{name}: {len(fetch(SOURCES[name], offline=options.offline))} files are there and as published")
    return 0

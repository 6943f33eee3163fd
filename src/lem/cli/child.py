"""Run `lem WORDS` as a child process that ends when its parent ends: `python -P -m lem.cli.child WORDS`.

The parent holds the other end of the child's standard input and never writes to it. When the parent is gone, however it
ended, the read returns, and the child stops as on SIGTERM: with a checkpoint.
"""

import os
import signal
import sys
import threading
import time

PATIENCE = 60.0
"""Seconds for the checkpoint before the child is ended without one."""


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from lem.cli import main

    sys.exit(main())

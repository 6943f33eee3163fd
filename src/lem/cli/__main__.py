"""`python -m lem.cli`, for use if the command is not on the path."""

import sys

from lem.cli import main

if __name__ == "__main__":
    sys.exit(main())

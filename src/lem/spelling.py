"""Suggest the closest known name for a mistyped one."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the closest of the known names, or "" if none is close."""
    names = list(known)
    # The comparison takes time for every name, and more than linear time in their lengths: not for a table of 60,000.
    if len(names) > 1000 or max(map(len, [name, *names])) > 200:
        return ""
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""

"""Learning-rate schedules as functions of how far training is: nothing to save, nothing to restore."""

import math

from lem.wording import check_choice

SCHEDULES = ("constant", "step", "cosine", "one-cycle")


def rate(schedule: str, epoch: int, fraction: float, drop_after: int | None, drop_factor: float) -> float:
    """Return the factor on the learning rate in `epoch`, when `fraction` of all updates are done.

    "constant"; "step": `drop_factor` from epoch `drop_after` on, as the paper's; "cosine": down to zero;
    "one-cycle": up over the first 30 %, then down to zero, both along a cosine.

    Examples:
        >>> from lem.training.schedule import rate
        >>> [round(rate("cosine", 0, done, None, 0.1), 2) for done in (0.0, 0.5, 1.0)]
        [1.0, 0.5, 0.0]
    """
    if schedule == "constant":
        return 1.0
    if schedule == "step":
        return drop_factor if drop_after is not None and epoch >= drop_after else 1.0
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * fraction))
    check_choice("fit", "schedule", schedule, SCHEDULES)
    if fraction < 0.3:  # one-cycle
        return 0.04 + 0.96 * 0.5 * (1.0 - math.cos(math.pi * fraction / 0.3))
    return 0.5 * (1.0 + math.cos(math.pi * (fraction - 0.3) / 0.7))

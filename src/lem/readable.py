"""Write numbers the way people read them."""


def format_score(value: float, unit: str = "") -> str:
    """Write a score with three significant digits; percentages and the like with four."""
    text = f"{value:.4g}" if unit == "%" or abs(value) >= 10 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def format_duration(seconds: float) -> str:
    """Write a time span in the unit a reader would use."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"

"""Counts in sentences."""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 problem" and "2 problems"."""
    return f"{count} {noun}{'s' * (count != 1)}"

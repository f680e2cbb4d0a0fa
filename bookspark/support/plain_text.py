"""Short texts shared by commands, jobs and the demo: an error in one line, a size with its unit."""

from __future__ import annotations

PROBLEM = "bookspark: "
"""Prefix of each line on standard error that reports a problem."""


def one_line(error: BaseException) -> str:
    """The error's message without line breaks, or the name of its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def size_text(count: float) -> str:
    """``count`` bytes with a decimal unit: ``1.5 MB`` is 1,500,000 B."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

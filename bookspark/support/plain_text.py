"""Short texts shared by commands, jobs and the demo: an error in one line, a size with its unit, foreign text made harmless.

Law: names, hosts, labels, payloads and errors may come from strangers. Before they reach a terminal or a log line, characters
that command a terminal, break a line or turn its direction become escapes as in Python: ESC is ``\\x1b``. ``printable`` alone
does that.
"""

from __future__ import annotations

from collections.abc import Iterable

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINE_BREAKS = (0x2028, 0x2029)
_SURROGATES = range(0xD800, 0xE000)
_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in _CONTROLS},
    **{code: f"\\u{code:04x}" for code in (*_BIDIRECTIONAL, *_LINE_BREAKS, *_SURROGATES)},
    **{ord(each): repr(each)[1:-1] for each in "\t\n\r"},
}
_ESCAPES_OF_LINES = {code: escape for code, escape in _ESCAPES.items() if chr(code) not in "\t\n"}

PROBLEM = "bookspark: "
"""Prefix of each line on standard error that reports a problem."""


def printable(text: str, *, lines: bool = False) -> str:
    """The text with escapes for C0 and C1 controls, bidirectional controls, line separators and lone surrogates. ``lines``:
    keep line breaks and tabs."""
    return text if text.isprintable() else text.translate(_ESCAPES_OF_LINES if lines else _ESCAPES)


def one_line(error: BaseException) -> str:
    """The error's message without line breaks, ``printable``, or the name of its class if it has no message."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def size_text(count: float) -> str:
    """``count`` bytes with a decimal unit: ``1.5 MB`` is 1,500,000 B."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def bytes_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Ranges (first, last) of positions in a file: ``bytes 0..511, 8192..12287``."""
    return f"bytes {', '.join(f'{first}..{last}' for first, last in ranges)}"


def counted(count: int, word: str) -> str:
    """``1 ledger``, ``2,000 ledgers``, ``0 entries``."""
    if count != 1:
        word = f"{word[:-1]}ies" if word.endswith(("ry", "py")) else f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{count:,} {word}"

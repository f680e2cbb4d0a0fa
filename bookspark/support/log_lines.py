"""The log of a process of ours.

Law: one record is one line, ``printable``, whatever strangers called themselves; the lines of a traceback are indented. So nobody
forges a record, or commands the terminal of whoever reads the log.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

from bookspark.support.plain_text import printable


class LineFormatter(logging.Formatter):
    """Time, level, logger and message in one line, then indented tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return indent(printable(super().formatException(ei), lines=True), "  ")

    def formatStack(self, stack_info: str) -> str:
        return indent(printable(stack_info, lines=True), "  ")


def begin_log(file: Path | None = None, level: int = logging.INFO) -> None:
    """Log to ``file`` from now on, in the place of other handlers; without it to standard error, unless the process logs
    already."""
    handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=level, force=file is not None)

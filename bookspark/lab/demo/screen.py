"""What a person sees of a run: one line for each step, with its progress.

Law: standard error gets progress and problems. Standard output gets the report and nothing else. All other output (the JVM's log,
Python's warnings, Spark's workers) inherits descriptors 1 and 2. So these two are redirected to the run's log file, and the
screen writes to copies of the original ones.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status

_PLAIN_WIDTH = 160
_PLAIN_INTERVAL_SECONDS = 5.0


class Screen:
    """Writes to the standard output and standard error of the moment when it was made."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        self._err = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
        self.report = _console(self._out)
        self._progress = _console(self._err)

    @contextmanager
    def redirected(self, log: Path) -> Iterator[None]:
        """Within the block, descriptors 1 and 2 lead to the file ``log``, for this process and all that it starts."""
        sys.stdout.flush()
        sys.stderr.flush()
        saved = [os.dup(1), os.dup(2)]
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.dup2(target, 1)
            os.dup2(target, 2)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            os.close(target)

    def say(self, text: str) -> None:
        """Print a line of progress."""
        self._progress.print(text, markup=False)

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        """A step that takes a while. Yields a function that shows the step's progress. The last text stays on the screen."""
        began = time.monotonic()
        step = _LiveStep(self._progress, title) if self._progress.is_terminal else _PlainStep(self._progress, title)
        try:
            yield step.tell
        except BaseException:
            step.end()
            self._progress.print(f"[red]✗[/] {escape(title)}")
            raise
        step.end()
        detail = f" [dim]{escape(step.text)}[/]" if step.text else ""
        self._progress.print(f"[green]✓[/] {escape(title)}{detail} [dim]({time.monotonic() - began:.1f} s)[/]")


class _LiveStep:
    """A step on a terminal: one line that changes."""

    def __init__(self, console: Console, title: str) -> None:
        self.text = ""
        self._title = title
        self._status = Status(escape(title) + " …", console=console)
        self._status.start()

    def tell(self, text: str) -> None:
        self.text = text
        self._status.update(f"{escape(self._title)} … [dim]{escape(text)}[/]")

    def end(self) -> None:
        self._status.stop()


class _PlainStep:
    """A step in a file or a pipe: a line every few seconds."""

    def __init__(self, console: Console, title: str) -> None:
        self.text = ""
        self._console = console
        self._title = title
        self._said_at = time.monotonic()
        console.print(f"  {title} …", markup=False)

    def tell(self, text: str) -> None:
        now = time.monotonic()
        if text != self.text and now - self._said_at >= _PLAIN_INTERVAL_SECONDS:
            self._console.print(f"  {self._title} … {text}", markup=False)
            self._said_at = now
        self.text = text

    def end(self) -> None:
        """There is nothing to remove."""


def _console(file: object) -> Console:
    console = Console(file=file, highlight=False)  # type: ignore[arg-type]
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console

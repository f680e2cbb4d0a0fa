"""The extras of the package, and the error that names the one to install.

Law: ``pip install bookspark`` brings what a client and a bookie's process import: crc32c, kazoo, msgspec, uvloop and zstandard.
Everything else is imported where it is used, and comes with an extra (``setup.cfg``, ``options.extras_require``). If it is
missing, the user reads which extra to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookspark.errors import ConfigurationError

_EXTRAS = {
    "pyarrow": "arrow",
    "pyspark": "spark",
    "py4j": "spark",
    "delta": "spark",
    "deltalake": "spark",
    "pandas": "spark",
    "numpy": "spark",
    "typer": "cli",
    "rich": "cli",
    "psutil": "cli",
    "matplotlib": "report",
    "prometheus_client": "metrics",
    "puresasl": "sasl",
    "google": "bookkeeper",
}
"""Imported name → the smallest extra that brings it."""


class MissingExtraError(ConfigurationError, ImportError):
    """A package is not installed. The message names the extra to install."""


def advice(extra: str) -> str:
    """How to install ``extra``: a shell's command."""
    return f"pip install 'bookspark[{extra}]'"


def missing_extra(error: ModuleNotFoundError, what: str) -> MissingExtraError | None:
    """The error to raise instead of ``error`` because ``what`` needs the missing package. None if no extra brings it."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    return MissingExtraError(f"{what} needs {package}, which is not installed: {advice(extra)}")


@contextmanager
def extra_needed(what: str) -> Iterator[None]:
    """Within the block, the import of a package that an extra brings raises MissingExtraError if the package is missing.
    ``what`` is the subject of its message, for example "read_batches"."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error, what)) is None:
            raise
        raise missing from error

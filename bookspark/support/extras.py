"""The extras of the package, and the error for a missing extra.

Law: ``pip install bookspark`` installs the imports of a client and a bookie's process: crc32c, kazoo, msgspec, sortedcontainers,
uvloop and zstandard. Every other package is imported where it is used, and comes with an extra (``setup.cfg``,
``options.extras_require``), which the error names.
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
    "anyio": "console",
    "jinja2": "console",
    "markupsafe": "console",
    "starlette": "console",
    "uvicorn": "console",
    "matplotlib": "report",
    "prometheus_client": "metrics",
    "puresasl": "sasl",
    "google": "bookkeeper",
}
"""Imported name → smallest extra that installs it."""


class MissingExtraError(ConfigurationError, ImportError):
    """A package is not installed."""


def advice(extra: str) -> str:
    """How to install ``extra``. On no package index yet: no command would do it without the wheel's file."""
    return f"install the extra {extra}, as in pip install 'bookspark-….whl[{extra}]' (README, Install)"


def missing_extra(error: ModuleNotFoundError, what: str) -> MissingExtraError | None:
    """The error to raise instead of ``error`` because ``what`` needs the missing package. None if no extra has it."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return None
    return MissingExtraError(f"{what} needs {package}, which is not installed: {advice(extra)}")


@contextmanager
def extra_needed(what: str) -> Iterator[None]:
    """Within the block, the failed import of a package of an extra raises MissingExtraError. ``what``: the subject of its
    message, for example "read_batches"."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error, what)) is None:
            raise
        raise missing from error

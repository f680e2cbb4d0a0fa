"""Options that several commands share, and the client that they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bookspark.cli import settings
from bookspark.errors import ConfigurationError

if TYPE_CHECKING:
    from bookspark.client import BookKeeper

Zookeeper = Annotated[
    str,
    typer.Option(
        envvar="BOOKSPARK_ZOOKEEPER",
        metavar="HOST:PORT",
        help="The cluster: host:port[,host:port…][/chroot].",
        show_default=False,
    ),
]
Password = Annotated[
    str,
    typer.Option(
        envvar="BOOKSPARK_PASSWORD",
        help="Password of the ledger or log (better in the environment: others see command lines).",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
LedgerId = Annotated[int, typer.Argument(metavar="LEDGER", min=0, help="Id of the ledger.")]


def given(zookeeper: str) -> str:
    """``zookeeper``, or a ConfigurationError that tells how to name it."""
    if not zookeeper:
        raise ConfigurationError("which cluster? Give --zookeeper HOST:PORT, or set BOOKSPARK_ZOOKEEPER")
    return zookeeper


def client(zookeeper: str) -> BookKeeper:
    """A client of the cluster that was named, with the settings that were chosen."""
    from bookspark.client import BookKeeper  # takes a while to import, which commands without one need not wait for

    return BookKeeper(given(zookeeper), **settings.chosen("client"))

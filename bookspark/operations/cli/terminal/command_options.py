"""Options of several commands, and the client made of them."""

from __future__ import annotations

import functools
import getpass
import inspect
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bookspark.errors import ConfigurationError, InvalidCookieError
from bookspark.operations.cli.terminal import settings
from bookspark.support.command_line import judged

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

Zookeeper = Annotated[
    str,
    typer.Option(
        envvar="BOOKSPARK_ZOOKEEPER",
        metavar="HOST:PORT",
        help="The cluster: host:port[,host:port…][/chroot].",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
LedgerId = Annotated[int, typer.Argument(metavar="LEDGER", min=0, help="Id of the ledger.")]
BookieId = Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie, as `bookspark bookies` shows it.")]
Directories = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIRECTORY…", help="All directories of the bookie; for `bookspark cookie` in configured order."
    ),
]


def group(name: str, help_text: str) -> typer.Typer:
    """Sub-commands ``bookspark NAME …``."""
    return typer.Typer(name=name, help=help_text, no_args_is_help=True, rich_markup_mode=None)


def operator() -> str:
    """The user and host of this command, for the record of an accepted loss."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command with parameters that are dataclasses: the command line has an option for each of their fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    taken: list[inspect.Parameter] = []
    for name, one in inspect.signature(command).parameters.items():
        if name in groups:
            of_group = get_type_hints(groups[name], include_extras=True)
            taken += [
                inspect.Parameter(each.name, one.kind, default=each.default, annotation=of_group[each.name])
                for each in fields(groups[name])
            ]
        else:
            taken.append(one.replace(annotation=hints[name]))

    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    # No __wrapped__: whoever asks for the function of the command is to see all options.
    functools.update_wrapper(call, command)
    del vars(call)["__wrapped__"]
    return with_parameters(call, taken)


def with_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Let a command with keyword arguments declare these parameters, for the command line and for the checks of arguments."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def existing_directories(directories: Iterable[Path]) -> tuple[str, ...]:
    """Absolute paths of a bookie's directories. Raises InvalidCookieError if one is not a directory of this host."""
    places = tuple(str(directory.absolute()) for directory in directories)
    for place in places:
        if not Path(place).is_dir():
            raise InvalidCookieError(f"{place} is not a directory; name the bookie's directories on this host")
    return places


def judge_arguments(app: typer.Typer) -> None:
    """Check the arguments of every command before it begins, as those of public functions."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = judged(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            judge_arguments(group.typer_instance)


def given(zookeeper: str) -> str:
    """Return ``zookeeper``. Raises ConfigurationError, with the ways to name the cluster, if it is empty."""
    if not zookeeper:
        raise ConfigurationError("which cluster? Give --zookeeper HOST:PORT, or set BOOKSPARK_ZOOKEEPER")
    return zookeeper


def client(zookeeper: str) -> BookKeeper:
    """A client of the cluster ``zookeeper`` with the options of the settings file. Raises ConfigurationError if ``zookeeper`` is
    empty, MetadataStoreError if the cluster can't be reached."""
    # Imported here: the import is slow, and not every command needs it.
    from bookspark.store.client import BookKeeper

    return BookKeeper(given(zookeeper), **settings.chosen("client"))

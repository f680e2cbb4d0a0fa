"""The option of commands and jobs for the password of ledgers or a log.

Law: no password is taken from a command line, which other users of the host read (``ps``, ``/proc``) while it runs: it comes
from a file that only this user can read, or from the environment.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from bookspark.errors import ConfigurationError
from bookspark.support.private_files import read_secret

OPTION, VARIABLE = "--password-file", "BOOKSPARK_PASSWORD"


def _password(file: str) -> str:
    if not file:
        return os.environ.get(VARIABLE, "")
    try:
        password = read_secret(file, OPTION).rstrip(b"\r\n")
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    if not password:
        raise typer.BadParameter(f"{OPTION} {file} is empty; put the password in it, or leave the option out")
    # Undecodable bytes are refused with those of other arguments.
    return password.decode(errors="surrogateescape")


Password = Annotated[
    str,
    typer.Option(
        OPTION,
        metavar="FILE",
        callback=_password,
        help=f"File with the password of the ledgers or log, of this user alone. Default: {VARIABLE}.",
        show_default=False,
    ),
]
"""The password itself; "" without one."""

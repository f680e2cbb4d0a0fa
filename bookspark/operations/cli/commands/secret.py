"""``bookspark secret``: a new secret for ``shared_secret_file``, or a token for the console."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from bookspark.errors import ConfigurationError
from bookspark.support.private_files import PRIVATE_FILE

_BYTES = 32


app = typer.Typer()


@app.command()
def secret(
    file: Annotated[
        Path | None, typer.Option(help="New file, of this user alone (mode 0600). Default: print the secret.")
    ] = None,
) -> None:
    """Make a secret of 32 random bytes, in hexadecimal."""
    made = secrets.token_hex(_BYTES)
    if file is None:
        typer.echo(made)
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    except FileExistsError as error:
        raise ConfigurationError(
            f"{file} exists; name a new file, or add a line to it: bookspark secret >> {file}"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{file} can't be written: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as target:
        target.write(made + "\n")

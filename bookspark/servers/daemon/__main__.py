"""``python -m bookspark.servers.daemon OPTIONS.json``: a bookie process.

Law: the exit status is 0 after a clean stop. Otherwise it is 2, "could not run", as for a command, after a last line
``bookspark bookie: <the fault and its remedy>``. (Status 1 of a command means that it found something.) Log lines go to stderr.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.servers.daemon.bookie_process import prepare_process, run_bookie
from bookspark.store.bookie.bookie_config import bookie_config


def main(arguments: list[str]) -> int:
    """Run the bookie with the options file named by the only argument; returns the exit status."""
    prepare_process()
    try:
        if len(arguments) != 1:
            raise ConfigurationError(
                "name one file with a bookie's options in JSON: python -m bookspark.servers.daemon OPTIONS.json"
            )
        run_bookie(bookie_config(**_options(arguments[0])))
    except BookKeeperError as error:
        problem = " ".join(str(error).split())
    except Exception as error:
        logging.getLogger(__name__).exception("the bookie failed")
        problem = f"failed with {type(error).__name__}: {' '.join(str(error).split())}; the lines above tell where"
    else:
        return 0
    print(f"bookspark bookie: {problem}", file=sys.stderr, flush=True)
    return 2


def _options(path: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, object])
    except OSError as error:
        raise ConfigurationError(f"options file {path} can't be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"options file {path} is not a JSON object: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

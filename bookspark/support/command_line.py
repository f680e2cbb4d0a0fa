"""Exit statuses of the commands of ``bookspark`` and of the jobs, and errors by the names of options.

======  ==============================================================================================================
status  meaning
======  ==============================================================================================================
0       done. A check or an audit has no findings
1       a check or an audit has findings: damage, lacking copies, a violation, or something that it could not judge
2       could not run, or not to its end. One line on standard error has the reason and the remedy. Also for a wrong
        command line, a question not answered with yes, and a closed output
130     Ctrl-C
======  ==============================================================================================================

Law: no command and no job ends its process. A command with findings raises ``typer.Exit(FOUND)``, a failed command raises an
error, and ``exit_status`` alone converts them to a status. An error about an option's value has the option's name.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable
from typing import Any

from bookspark.errors import InvalidArgumentError
from bookspark.support.arguments import checked
from bookspark.support.plain_text import PROBLEM

FOUND = 1
COULD_NOT = 2
INTERRUPTED = 130


def exit_status(app: Callable[..., object], tell: Callable[[Exception], None]) -> int:
    """Run the command of ``app``, a Typer, by ``sys.argv``, and return the exit status. ``tell`` prints any error but those of
    the command line."""
    # Imported here: it comes with the extra [cli], and without it this module must still report that.
    import typer

    usage_error: Any = typer.BadParameter.__base__
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except usage_error as error:
        error.show()
        return COULD_NOT
    except typer.Abort as abort:
        # Ctrl-C at a question is an Abort too.
        if isinstance(abort.__context__, KeyboardInterrupt):
            return INTERRUPTED
        print(f"{PROBLEM}not confirmed, so nothing was done", file=sys.stderr)
        return COULD_NOT
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        # The end of a completion, Typer's reaction to a closed output, or a signal that ends a benchmark.
        if isinstance(end.code, str):
            print(f"{PROBLEM}{end.code}", file=sys.stderr)
        return COULD_NOT if end.code else 0
    except BrokenPipeError:
        # The reader has closed our output (`| head`). Python would complain when it flushes standard output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT
    except Exception as error:
        tell(error)
        return COULD_NOT
    return status if isinstance(status, int) else 0


def judged(command: Callable[..., Any]) -> Callable[..., Any]:
    """``checked`` for the function of a command: an error about a parameter names the option instead. Typer checks bounds and
    choices; this refuses NaN, infinities, numbers of more than 64 bits, and bytes that are not UTF-8."""
    function = checked(command)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InvalidArgumentError as error:
            option = _options(command).get(error.argument, error.argument)
            told = re.sub(rf"(?<![\w-]){re.escape(error.argument)}(?!\w)", lambda _: option, str(error), count=1)
            if told == str(error):
                raise
            raise InvalidArgumentError(told, error.argument) from error

    return call


def _options(command: Callable[..., Any]) -> dict[str, str]:
    """The command-line names of a command's parameters: ``--seconds-max``, ``LEDGER``."""
    found = {}
    for name, hint in typing.get_type_hints(inspect.unwrap(command), include_extras=True).items():
        said = getattr(hint, "__metadata__", ())[-1:]
        for one in said:
            longest = max((text for text in one.param_decls or () if text.startswith("--")), key=len, default="")
            is_option = type(one).__name__ == "OptionInfo"
            words = one.metavar or name.upper()
            found[name] = (longest or f"--{name.replace('_', '-')}") if is_option else words
    return found

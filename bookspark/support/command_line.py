"""How the commands of ``bookspark`` and the jobs end, and how they name what they refuse.

======  ==============================================================================================================
status  what it means
======  ==============================================================================================================
0       done. A check or an audit found nothing
1       a check or an audit found something: damage, lacking copies, a violation, or what it could not judge
2       could not run, or not to its end. One line on standard error says what is wrong and what to do. So ends a wrong
        command line, a question that was not answered with yes, and output that nobody reads any more
130     Ctrl-C
======  ==============================================================================================================

Law: no command and no job ends its process. A command that found something raises ``typer.Exit(FOUND)``, one that can't go on
raises an error, and ``exit_status`` alone makes a status of it. A wrong value of an option is told by the option's name.
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
    """Run the command of ``app``, a Typer, that ``sys.argv`` names, and return the exit status. ``tell`` prints an error that is
    none of the command line."""
    # Imported here: it comes with the extra [cli], and this module has to say so without it.
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
        # Typer's answer when nobody reads the output, or a signal that ends a benchmark.
        if isinstance(end.code, str):
            print(f"{PROBLEM}{end.code}", file=sys.stderr)
        return COULD_NOT
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`). Python would complain when it flushes standard output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT
    except Exception as error:
        tell(error)
        return COULD_NOT
    return status if isinstance(status, int) else 0


def judged(command: Callable[..., Any]) -> Callable[..., Any]:
    """``checked`` for the function of a command: an error that names one of its parameters names the option instead. Typer judges
    bounds and choices; this refuses what has none: NaN, infinities, numbers of more than 64 bits, and bytes that are no UTF-8."""
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
    """What the command line calls the parameters of a command: ``--seconds-max``, ``LEDGER``."""
    found = {}
    for name, hint in typing.get_type_hints(inspect.unwrap(command), include_extras=True).items():
        said = getattr(hint, "__metadata__", ())[-1:]
        for one in said:
            longest = max((text for text in one.param_decls or () if text.startswith("--")), key=len, default="")
            is_option = type(one).__name__ == "OptionInfo"
            words = one.metavar or name.upper()
            found[name] = (longest or f"--{name.replace('_', '-')}") if is_option else words
    return found

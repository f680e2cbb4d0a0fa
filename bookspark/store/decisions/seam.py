"""The one place through which drivers make machines and ask pure functions.

Law: a driver can't tell whether its decisions are recorded. Switched off, ``made`` makes the machine itself, and ``watched``
returns what it got: a step costs nothing. Switched on, a machine is of a subclass whose methods note what they were given and
what they answered (``machines``).

Decision: the class is chosen when the machine is made, rather than a check in each step or a wrapper around the object. A check
would cost every append something for ever, and a wrapper would have to hand on all that drivers read of a machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.store.decisions.forms import name_of
from bookspark.store.decisions.machines import CALLED, LEDGER_FIELDS, NAMED, WatchedLedger, kept, recorded
from bookspark.store.decisions.recorder import this

Machine = TypeVar("Machine")
Answer = TypeVar("Answer")
Parameters = ParamSpec("Parameters")


def made(kind: Callable[Parameters, Machine], *args: Parameters.args, **keywords: Parameters.kwargs) -> Machine:
    """A machine: ``kind(*args, **keywords)``, recorded if this process records."""
    recorder = this.recorder
    if recorder is None:
        return kind(*args, **keywords)
    machine: Machine = recorded(recorder, kind, args, keywords)
    return machine


def watched(ledger: BookieLedger) -> BookieLedger:
    """The ledger, or one that is equal to it and recorded. Nobody may have ``ledger`` but the caller."""
    recorder = this.recorder
    if recorder is None or isinstance(ledger, WatchedLedger):
        return ledger
    found: BookieLedger = recorded(recorder, WatchedLedger, tuple(getattr(ledger, name) for name in LEDGER_FIELDS), {})
    return found


def decided(function: Callable[Parameters, Answer], *args: Parameters.args, **keywords: Parameters.kwargs) -> Answer:
    """What a pure function of the protocol answers: ``function(*args, **keywords)``. A method of a value is a function too:
    ``decided(LogRecord.claim, record, run)``."""
    recorder = this.recorder
    if recorder is None:
        return function(*args, **keywords)
    form = recorder.forms.form
    told: list[Any] = []
    args = tuple(kept(_telling(one, told)) for one in args)  # type: ignore[assignment]
    given = [CALLED, name_of(function), [*map(form, args)], {name: form(one) for name, one in keywords.items()}]  # type: ignore[arg-type]
    try:
        answer = function(*args, **keywords)
    except Exception as error:
        recorder.put([*given, None, form(error), [*map(form, told)]])
        raise
    recorder.put([*given, form(answer), None, [*map(form, told)]])
    return answer


def _telling(value: Any, told: list[Any]) -> Any:
    """A batch of a query whose earlier plan may be asked for: what is told then is noted."""
    before = getattr(value, "before", None)
    if before is None or not callable(before):
        return value

    def asked(number: int) -> Any:
        answer = before(number)
        told.append(answer)
        return answer

    return value._replace(before=asked)


def is_bookie(bookie_id: str) -> None:
    """This process is the bookie ``bookie_id``, which clients name so."""
    recorder = this.recorder
    if recorder is not None:
        recorder.put([NAMED, bookie_id])

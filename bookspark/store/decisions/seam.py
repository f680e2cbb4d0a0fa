"""The only place where drivers make machines and call pure functions.

Law: a driver can't tell whether its decisions are recorded. Switched off, ``made`` makes the plain machine, and a step costs
nothing. Switched on, a machine is of a subclass whose methods note arguments and answers (``machines``).

Decision: the machine's class is chosen when it is made. A check in each step would cost every append, and a wrapper would have
to forward every attribute that drivers read.
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
    """The ledger, or an equal recorded one. Only the caller may hold ``ledger``."""
    recorder = this.recorder
    if recorder is None or isinstance(ledger, WatchedLedger):
        return ledger
    found: BookieLedger = recorded(recorder, WatchedLedger, tuple(getattr(ledger, name) for name in LEDGER_FIELDS), {})
    return found


def decided(function: Callable[Parameters, Answer], *args: Parameters.args, **keywords: Parameters.kwargs) -> Answer:
    """The answer of a pure function of the protocol: ``function(*args, **keywords)``. A method of a value is a function too:
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
    """A query's batch with a ``before`` that notes its answers in ``told``."""
    before = getattr(value, "before", None)
    if before is None or not callable(before):
        return value

    def asked(number: int) -> Any:
        answer = before(number)
        told.append(answer)
        return answer

    return value._replace(before=asked)


def is_bookie(bookie_id: str) -> None:
    """Note that this process is the bookie ``bookie_id``."""
    recorder = this.recorder
    if recorder is not None:
        recorder.put([NAMED, bookie_id])

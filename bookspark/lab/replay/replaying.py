"""A process's record, fed to the pure code again.

Law: every answer is compared. After a different answer, its machine is skipped and all others continue, because each
machine's record is independent. A record that refers to discarded ones (its machine's creation, a definition) counts as
lost, never as equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.actions import AddAnswered, Confirm, SendAdd
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.repair.entry_copying import Room
from bookspark.protocol.writing.writer_events import Append
from bookspark.store.decisions import machines as short
from bookspark.store.decisions.forms import DEFINE_CLASS, DEFINE_VALUE, ERROR, Forms, Values, class_of, function_of
from bookspark.store.decisions.machines import CALLED, MADE, NAMED, answered, methods_of
from bookspark.store.decisions.record_file import SUFFIX, Segment
from bookspark.store.decisions.recorder import version

_decode = msgspec.msgpack.Decoder().decode
_NO_WORDS = "IllegalEventError"
"""Errors whose message quotes entry contents, which the record lacks."""


class Span(NamedTuple):
    """The time of a decision, between two moments in nanoseconds since 1970."""

    begin_ns: int
    end_ns: int


class Step(NamedTuple):
    """A decision of machine ``number`` of class ``kind``, or of a pure function (number 0)."""

    process: str
    bookie: str
    """The process's bookie id; "": no bookie."""
    kind: str
    number: int
    span: Span
    at_ns: int
    """Approximate time within the span, by the record's position in it."""
    method: str
    args: Sequence[Any]
    answer: Any
    error: BaseException | None
    machine: Any


class Difference(NamedTuple):
    """A recorded answer that differs now."""

    process: str
    machine: str
    decision: int
    """Number of the machine's decision, from 1."""
    span: Span
    given: str
    recorded: str
    now: str
    ledger_id: int | None
    """The machine's ledger; None if unknown."""

    @property
    def at(self) -> str:
        return datetime.fromtimestamp(self.span.begin_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-5] + " UTC"


class Counts(NamedTuple):
    """Counts of a process's record."""

    process: str
    machines: int
    decisions: int
    by_kind: Counter[str]
    lost: int
    """Records of machines whose creation is no longer kept."""
    clean: bool
    """Whether the process ended its record itself."""
    torn: int
    """Bytes at the end that are not a whole chunk."""
    differences: list[Difference]
    """The first difference of each machine, at most ``DIFFERENCES_MAX``."""
    span: Span


DIFFERENCES_MAX = 20


class ScriptedRoom(Room):
    """A room that repeats its recorded answers."""

    answers: list[bool]

    def __init__(self) -> None:
        object.__setattr__(self, "bytes_max", 0)
        object.__setattr__(self, "answers", [])

    def fits(self, held: int, size: int) -> bool:
        return bool(self.answers.pop(0)) if self.answers else False


class _Known:
    """A machine in replay. ``off``: it has answered differently, so it is no longer compared."""

    __slots__ = ("admitted", "count", "kind", "machine", "methods", "off", "room")

    def __init__(self, kind: type, machine: Any, room: ScriptedRoom) -> None:
        self.kind, self.machine, self.room = kind, machine, room
        self.methods = methods_of(kind)
        self.count, self.off = 0, False
        self.admitted: Any = None
        """The last decision of a bookie's ledger about an add."""


def records_in(folder: Path) -> dict[str, list[Path]]:
    """The segments of each process's record, in order. Raises ConfigurationError if there is none."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        process, _, segment = path.name.removesuffix(SUFFIX).rpartition(".")
        if segment.isdecimal():
            found.setdefault(process, []).append((int(segment), path))
    if not found:
        raise ConfigurationError(
            f"there is no record of decisions in {folder}: processes with record_decisions make them"
        )
    return {process: [path for _, path in sorted(paths)] for process, paths in sorted(found.items())}


class ProcessReplay:
    """Feeds a process's record to the pure code. ``observe`` is called with each equal decision."""

    def __init__(
        self,
        process: str,
        paths: Sequence[Path],
        observe: Callable[[Step], object] | None = None,
        on_difference: Callable[[Difference], object] | None = None,
    ) -> None:
        self.process = process
        self._on_difference = on_difference
        self._paths = paths
        self._observe = observe
        self.bookie = ""
        """The process's bookie id; "": none, or not known yet."""
        self._values = Values()
        self._forms = Forms(None, numbers=self._values.numbers)
        self._known: dict[int, _Known] = {}
        self._machines = self._decisions = self._lost = 0
        self._by_kind: Counter[str] = Counter()
        self._differences: list[Difference] = []
        self._span, self._at_ns = Span(0, 0), 0

    def run(self) -> Counts:
        """Replay the whole record. Raises ConfigurationError if a segment has another version or is no record."""
        first: int | None = None
        clean, torn, last = False, 0, 0
        for path in self._paths:
            segment = Segment(path, version())
            for chunk in segment.chunks():
                self._span = Span(chunk.begin_ns, chunk.end_ns)
                first, last = chunk.begin_ns if first is None else first, chunk.end_ns
                try:
                    records = _decode(chunk.records)
                    for place, record in enumerate(records):
                        self._at_ns = chunk.begin_ns + (chunk.end_ns - chunk.begin_ns) * place // len(records)
                        self._take(record)
                except ConfigurationError:
                    raise
                except Exception as error:
                    # Answers' errors are compared, and end no replay: this one is of a record that no process made.
                    raise ConfigurationError(f"{path} is no record of decisions: {error!r}") from error
            clean, torn = segment.clean, torn + segment.torn
        return Counts(
            self.process,
            self._machines,
            self._decisions,
            self._by_kind,
            self._lost,
            clean,
            torn,
            self._differences,
            Span(first or 0, last),
        )

    @property
    def _when(self) -> tuple[Span, int]:
        return self._span, self._at_ns

    def _take(self, record: list[Any]) -> None:
        number = record[0]
        try:
            if number > 0:
                if len(record) > 1:
                    self._step(number, record)
                else:
                    self._known.pop(number, None)
                    self._values.machines.pop(number, None)
            elif number == MADE:
                self._make(record)
            elif number == CALLED:
                self._call(record)
            elif number == NAMED:
                self.bookie = record[1]
            elif number in (DEFINE_CLASS, DEFINE_VALUE):
                self._values.define(record)
        except KeyError:
            # The record refers to a definition that is no longer kept.
            self._lost += 1

    def _make(self, record: list[Any]) -> None:
        _, number, name, args, keywords = record
        kind = class_of(name)
        room = self._values.room = ScriptedRoom()
        value = self._values.value
        machine = kind(*map(value, args), **{key: value(one) for key, one in keywords.items()})
        self._known[number] = _Known(kind, machine, room)
        self._values.machines[number] = machine
        self._machines += 1

    def _step(self, number: int, record: list[Any]) -> None:
        known = self._known.get(number)
        if known is None or known.off:
            self._lost += 1
            return
        forms, machine = self._forms, known.machine
        was: Any
        words = ""
        if record[1] < 0:
            method, args, recorded = _short(known, record)
            was, words = forms.form(recorded), repr(recorded)
        else:
            method = known.methods[record[1]]
            args = (
                [self._values.value(one) for one in record[2]] if method != "look" else self._looked(machine, record[2])
            )
            was = record[4] if len(record) > 4 and record[4] is not None else record[3]
            if len(record) > 5:
                known.room.answers[:] = record[5]
        known.count += 1
        answer, error = None, None
        try:
            answer = getattr(machine, method)(*args)
        except Exception as raised:
            error = raised
        now = forms.form(error) if error is not None else answered(forms, machine, method, answer)
        kind = known.kind.__name__
        if method == "admit_add":
            known.admitted = answer
        if not self._same(was, now):
            known.off = True
            what = f"{method}({', '.join(map(repr, args))})" if method != "step" else repr(args[0])
            self._differ(f"{kind} {number}", known.count, what, was, now, error or answer, machine, words)
            return
        self._decisions += 1
        self._by_kind[kind] += 1
        if self._observe is not None:
            self._observe(
                Step(self.process, self.bookie, kind, number, *self._when, method, args, answer, error, machine)
            )

    @staticmethod
    def _looked(machine: Any, form: list[Any]) -> list[Any]:
        """The arguments of a look for lost bookies. A look may set the delay first."""
        machine.delay_seconds = form[-1]
        return form[:-1]

    def _call(self, record: list[Any]) -> None:
        name, args, keywords = record[1], [self._values.value(one) for one in record[2]], record[3]
        function, qualname = function_of(name), name.partition(":")[2]
        told = iter([self._values.value(one) for one in record[6]]) if len(record) > 6 else iter(())
        args = [_told(one, told) for one in args]
        answer, error = None, None
        try:
            answer = function(*args, **{key: self._values.value(one) for key, one in keywords.items()})
        except Exception as raised:
            error = raised
        was = record[5] if record[5] is not None else record[4]
        now = self._forms.form(error if error is not None else answer)
        if not self._same(was, now):
            self._differ(qualname, 1, f"{qualname}({', '.join(map(repr, args))})", was, now, error or answer, None)
            return
        self._decisions += 1
        self._by_kind[qualname] += 1
        if self._observe is not None:
            self._observe(
                Step(self.process, self.bookie, qualname, 0, *self._when, qualname, args, answer, error, None)
            )

    def _words(self, form: Any) -> str:
        try:
            return repr(self._values.value(form))
        except Exception:
            # This version has no class for the recorded value.
            return repr(form)

    def _same(self, was: Any, now: Any) -> bool:
        if was == now:
            return True
        was = self._values.expanded(was)
        if was == now:
            return True
        both_errors = type(was) is list and type(now) is list and was[:1] == now[:1] == [ERROR]
        return bool(both_errors and was[1] == now[1] and was[1].endswith(_NO_WORDS))

    def _differ(
        self, name: str, decision: int, what: str, was: Any, now: Any, answer: Any, machine: Any, words: str = ""
    ) -> None:
        if len(self._differences) >= DIFFERENCES_MAX:
            return
        recorded, told = words or self._words(was), repr(answer)
        if told == recorded:
            recorded, told = repr(was), repr(now)
        difference = Difference(self.process, name, decision, self._span, what, recorded, told, ledger_of(machine))
        self._differences.append(difference)
        if self._on_difference is not None:
            self._on_difference(difference)


def _short(known: _Known, record: list[Any]) -> tuple[str, list[Any], Any]:
    """Method, arguments and answer of a short record (``decisions.machines``)."""
    match record:
        case [_, short.TAKEN, lac, lafr, higher]:
            return "added", [known.admitted, lac, lafr], higher
        case [_, short.HEARD, bookie, first, last, *lac]:
            return "step", [AddAnswered(bookie, first, last, _POSITIVE)], [Confirm(one) for one in lac]
        case [_, _, count, length, bookies, first, last, lac]:
            return "step", [Append(count, length)], [SendAdd(tuple(bookies), first, last, lac)]
    raise ConfigurationError(f"{record!r} is no record of a decision")


_POSITIVE = Positive()


def _told(value: Any, told: Iterator[Any]) -> Any:
    """A batch with its lookup of an earlier plan replaced by the recorded results."""
    return value if getattr(value, "before", None) is None else value._replace(before=lambda number: next(told))


def replayed(
    folder: Path,
    observe: Callable[[Step], object] | None = None,
    on_difference: Callable[[Difference], object] | None = None,
) -> Iterable[Counts]:
    """Replay every process's record in a folder. Raises ConfigurationError for an unreadable record."""
    for process, paths in records_in(folder).items():
        yield ProcessReplay(process, paths, observe, on_difference).run()


def metadata_of(machine: Any) -> LedgerMetadata | None:
    """The metadata of a machine's ledger; None if the machine does not know it."""
    found = getattr(machine, "metadata", None) or getattr(machine, "_metadata", None)
    return found if isinstance(found, LedgerMetadata) else None


def ledger_of(machine: Any) -> int | None:
    """The id of a machine's ledger; None if unknown."""
    metadata = metadata_of(machine)
    found = metadata.ledger_id if metadata is not None else getattr(machine, "ledger_id", None)
    return found if isinstance(found, int) else None

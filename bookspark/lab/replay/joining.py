"""The histories of all processes, joined by ledger: calls and results of its writers, recoverers, readers and bookies.

Law: only recorded facts count. A decision lies between two moments (``Span``) of its host's clock, a tenth of a second
apart. It came before another only if its span ended more than ``MARGIN_NS`` before the other's began. So a violation within that
margin may be missed, but none is reported because of clocks, if all hosts' clocks agree within it.

A killed process loses the end of its record, usually a tenth of a second. Laws that need every step of a writer are not judged
if the writer's record is torn (``Ledger.whole``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from bookspark.lab.replay.replaying import Span, Step, metadata_of
from bookspark.protocol.bookie.bookie_ledger import Decision, LimboNoted
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.writing.writer_events import Append
from bookspark.testing.history import EventKind

MARGIN_NS = 1_000_000_000
_CLIENTS = frozenset(("LedgerWriter", "LedgerRecovery", "RangeRead", "LacRead", "LacWait", "EntryCopying"))
_REPAIRS = frozenset(("LedgerHealing", "LedgerReplication"))


class Bookie:
    def __init__(self) -> None:
        self.rows: set[int] = set()
        """Entries that the bookie acknowledged."""
        self.last_add_confirmed = NO_ENTRY
        """The bookie's highest LAC (last add confirmed)."""
        self.fenced_in = ""
        """The process that fenced the ledger at this bookie."""
        self.taken_after_fence: tuple[str, Span] | None = None
        """Process and time of a writer's add that the bookie accepted after its fence."""
        self.lossy_boots: set[int] = set()


class Seen:
    """A client's call or result, to be judged in order."""

    __slots__ = ("at_ns", "entry_id", "kind", "length", "since_ns", "who")

    def __init__(
        self, kind: EventKind, who: str, at_ns: int, entry_id: int, length: int = 0, since_ns: int = 0
    ) -> None:
        self.kind, self.who, self.at_ns, self.entry_id = kind, who, at_ns, entry_id
        self.length, self.since_ns = length, since_ns


class Ledger:
    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.seen: list[Seen] = []
        self.bookies: defaultdict[str, Bookie] = defaultdict(Bookie)
        self.metadata: LedgerMetadata | None = None
        self.version = -1
        self.begun: LedgerMetadata | None = None
        """The ledger's metadata at the start of its writer."""
        self.writers: set[str] = set()
        """The processes that wrote the ledger."""
        self.confirmed = NO_ENTRY
        """The highest entry confirmed by a writer."""
        self.acked: dict[int, set[str]] = {}
        """The bookies that acknowledged each entry."""
        self.batch_ends: dict[int, int] = {}
        """Last entry of each append → its first entry."""
        self.given_up = False
        """Whether an operator accepted a loss."""

    def whole(self, torn: Collection[str]) -> bool:
        """Whether the record has every step of its writer. ``torn``: processes whose record has no clean end."""
        return bool(self.writers) and self.writers.isdisjoint(torn)

    def know(self, metadata: LedgerMetadata, version: int) -> None:
        self.given_up = self.given_up or metadata.accepted_loss is not None
        if version > self.version:
            self.metadata, self.version = metadata, version


class Joined:
    """The ledgers of a folder. Give ``observe`` to the replay."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self._asked: dict[tuple[str, int], LedgerMetadata] = {}
        """Machine → metadata of its write in progress."""
        self._ledger_of: dict[tuple[str, int], int] = {}
        self._began: dict[tuple[str, int], Span] = {}

    def of(self, ledger_id: int) -> Ledger:
        if ledger_id not in self.ledgers:
            self.ledgers[ledger_id] = Ledger(ledger_id)
        return self.ledgers[ledger_id]

    def observe(self, step: Step) -> None:
        if step.kind == "BookieLedger":
            self._at_bookie(step)
        elif step.kind in _CLIENTS or step.kind in _REPAIRS:
            self._at_client(step)

    # -- bookies

    def _at_bookie(self, step: Step) -> None:
        held = step.machine
        bookie = self.of(held.ledger_id).bookies[step.bookie or step.process]
        bookie.last_add_confirmed = max(bookie.last_add_confirmed, held.last_add_confirmed)
        if step.method == "fence" and isinstance(step.answer.response, Positive):
            bookie.fenced_in = step.process
        elif step.method == "added" and bookie.fenced_in == step.process and step.error is None:
            decision: Decision = step.args[0]
            if not decision.recovery:
                bookie.taken_after_fence = (step.process, step.span)
        elif step.method == "replay" and isinstance(step.args[0], LimboNoted):
            bookie.lossy_boots.add(step.args[0].boot)

    # -- clients

    def _at_client(self, step: Step) -> None:
        who = (step.process, step.number)
        if who not in self._began:
            self._began[who] = step.span
        event, machine = step.args[0], step.machine
        ledger_id = self._of_machine(who, step)
        if ledger_id is None or step.error is not None:
            return
        ledger = self.of(ledger_id)
        self._metadata(who, ledger, event, step)
        if isinstance(event, act.AddAnswered) and isinstance(event.response, Positive):
            rows = ledger.bookies[event.bookie].rows
            for entry_id in range(event.first, event.last + 1):
                rows.add(entry_id)
                ledger.acked.setdefault(entry_id, set()).add(event.bookie)
        if step.kind == "LedgerWriter":
            self._writer(step, ledger, event)
        for action in step.answer:
            match action:
                case act.Deliver(_, last) if step.kind == "RangeRead":
                    self._see(ledger, EventKind.READ, step, last)
                case act.Finish() if step.kind in ("LacRead", "LacWait"):
                    if not machine_knows_more(machine):
                        self._see(ledger, EventKind.LAC, step, machine.last_add_confirmed)
                case act.Fail(error) if step.kind == "RangeRead" and type(error).__name__ == "NoSuchEntryError":
                    self._see(ledger, EventKind.ABSENT, step, machine.next_entry_id)

    def _writer(self, step: Step, ledger: Ledger, event: Any) -> None:
        writer = step.machine
        ledger.writers.add(step.process)
        if isinstance(event, Append):
            last = writer.cursors.last_add_pushed
            ledger.batch_ends[last] = last - event.count + 1
            for entry_id in range(last - event.count + 1, last + 1):
                length = event.byte_length if entry_id == last else 0
                ledger.seen.append(Seen(EventKind.APPENDED, step.process, step.span.begin_ns, entry_id, length))
        for action in step.answer:
            match action:
                case act.Confirm(last):
                    ledger.confirmed = max(ledger.confirmed, last)
                    self._see(ledger, EventKind.ACKED, step, last)
                case act.Finish() if writer.metadata.closed:
                    m = writer.metadata
                    self._see(ledger, EventKind.CLOSED_BY_WRITER, step, m.last_entry_id, m.length)

    def _metadata(self, who: tuple[str, int], ledger: Ledger, event: Any, step: Step) -> None:
        """Note the metadata versions that the machine read or wrote."""
        known: tuple[LedgerMetadata, int] | None = None
        match event:
            case act.MetadataRead(metadata, version):
                known = metadata, version
            case act.MetadataWritten(version) if who in self._asked:
                known = self._asked.pop(who), version
        if known is not None:
            ledger.know(*known)
            if known[0].closed:
                self._see(ledger, EventKind.CLOSED, step, known[0].last_entry_id, known[0].length)
        for action in step.answer:
            if isinstance(action, act.WriteMetadata):
                self._asked[who] = action.metadata

    def _of_machine(self, who: tuple[str, int], step: Step) -> int | None:
        """The ledger of a machine; None if the machine does not know it yet."""
        known = self._ledger_of.get(who)
        if known is None:
            event = step.args[0]
            metadata = event.metadata if isinstance(event, act.MetadataRead) else metadata_of(step.machine)
            if metadata is None:
                return None
            known = self._ledger_of[who] = metadata.ledger_id
            if step.kind == "LedgerWriter":
                self.of(known).know(metadata, step.machine.version)
                self.of(known).begun = metadata
        return known

    def _see(self, ledger: Ledger, kind: EventKind, step: Step, entry_id: int, length: int = 0) -> None:
        who = (step.process, step.number)
        since = self._began[who].begin_ns - MARGIN_NS
        name = f"{step.kind} {step.number} of {step.process}"
        ledger.seen.append(Seen(kind, name, step.span.end_ns, entry_id, length, since))


def machine_knows_more(machine: Any) -> bool:
    """True if the machine ended because the ledger is closed: its LAC is then the ledger's end, already noted as ``CLOSED``."""
    metadata = metadata_of(machine)
    return metadata is not None and metadata.closed

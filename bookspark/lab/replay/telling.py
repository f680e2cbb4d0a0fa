"""A ledger's history in real processes, as steps in words and messages between lanes.

Law: the steps of a process keep their order. Steps of different processes are ordered by their clocks, to about a tenth of a
second, so a bookie's step may stand beside the message that it answers. The arrival of a request is drawn right before its
answer.

The lanes are those of the simulator's stories (``bookspark.lab.simulation.sequence``): the metadata store, clients, bookies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from bookspark.lab.replay.joining import Ledger
from bookspark.lab.replay.replaying import Difference, Step, ledger_of
from bookspark.lab.simulation.sequence import Arrow, Drawing
from bookspark.lab.simulation.story import say_metadata, say_response
from bookspark.protocol.bookie.bookie_ledger import LimboNoted
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.responses import Positive, Response, Unknown, UnknownReason
from bookspark.protocol.writing.writer_events import Append, BookieBack, Close, ExplicitLacAnswered

ROWS_MAX = 300
"""A page shows the last steps up to the violation."""
_AFTER = 10
_WORDS = {
    "LedgerWriter": "writer",
    "LedgerRecovery": "recoverer",
    "RangeRead": "reader",
    "LacRead": "reader",
    "LacWait": "reader",
    "EntryCopying": "repair",
    "LedgerReplication": "repair",
    "LedgerHealing": "healing",
}
_EACH = frozenset(("LedgerWriter", "LedgerRecovery"))
"""Machines with a lane each; other machines share a lane by kind and process."""
NOT_HEARD = frozenset((UnknownReason.TIMEOUT, UnknownReason.UNREACHABLE))


class _Row(NamedTuple):
    at_ns: int
    lane: str
    line: str
    asks: bool = False
    sends: tuple[tuple[str, str], ...] = ()
    """Bookie and words of each sent message."""
    hears: tuple[str, str, bool] | None = None
    """The answering bookie, the answer in words, and whether the bookie received the request."""


class Telling(Drawing):
    """The steps of a ledger. Give ``observe`` and ``differs`` to a replay, and call ``draw`` then."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__()
        self.ledger_id = ledger_id
        self._rows: list[_Row] = []
        self._names: dict[tuple[str, str, int], str] = {}
        self._ours: dict[tuple[str, int], bool] = {}
        self._bookies: set[str] = set()
        self.lines: list[str] = []
        self.left_out = 0
        """Earlier steps that are not drawn."""

    # -- Collection

    def observe(self, step: Step) -> None:
        """Record a decision, if it concerns the ledger."""
        if step.kind == "BookieLedger":
            if step.machine.ledger_id == self.ledger_id:
                self._at_bookie(step)
        elif step.kind in _WORDS and self._is_ours(step):
            self._at_client(step)

    def differs(self, difference: Difference) -> None:
        """Record an answer that differs now."""
        if difference.ledger_id == self.ledger_id:
            line = (
                f"{difference.machine} was given {difference.given}: it answered {difference.recorded}, and the pure code "
                f"answers {difference.now}"
            )
            self._rows.append(_Row(difference.span.end_ns, difference.machine, line))

    def _is_ours(self, step: Step) -> bool:
        who = (step.process, step.number)
        known = self._ours.get(who)
        if known is None:
            event = step.args[0]
            about = event.metadata.ledger_id if isinstance(event, act.MetadataRead) else ledger_of(step.machine)
            if about is None:
                return False
            known = self._ours[who] = about == self.ledger_id
        return known

    def _name(self, step: Step) -> str:
        word = _WORDS[step.kind]
        key = (step.process, word, step.number if step.kind in _EACH else 0)
        if key not in self._names:
            count = sum(other[1] == word for other in self._names) + 1
            self._names[key] = word if word == "writer" and count == 1 else f"{word} {count}"
        return self._names[key]

    def _at_bookie(self, step: Step) -> None:
        bookie = step.bookie or step.process
        self._bookies.add(bookie)
        words = ""
        if step.method == "fence":
            words = f"is asked to fence, and answers {say_response(step.answer.response)}"
        elif step.method == "admit_add" and not isinstance(step.answer.response, Positive):
            words = f"refuses an add: {say_response(step.answer.response)}"
        elif step.method == "replay" and isinstance(step.args[0], LimboNoted):
            words = f"puts the ledger in limbo after its lossy boot {step.args[0].boot}"
        elif step.method == "clear_limbo":
            words = "ends the limbo"
        if words:
            self._rows.append(_Row(step.at_ns, bookie, f"{bookie} {words}"))

    def _at_client(self, step: Step) -> None:
        name, event = self._name(step), step.args[0]
        bookie = getattr(event, "bookie", None)
        hears = None
        if bookie is not None and not isinstance(event, BookieBack):
            self._bookies.add(bookie)
            words, response = say_heard(event)
            heard = not (isinstance(response, Unknown) and response.reason in NOT_HEARD)
            hears = (bookie, words, heard)
            line = (
                f"the {name} hears from {bookie}: {words}"
                if heard
                else f"the {name} has no answer of {bookie}: {words}"
            )
        else:
            line = f"the {name} {say_event(event)}"
        sends: list[tuple[str, str]] = []
        asks = isinstance(
            event, act.MetadataRead | act.MetadataWritten | act.MetadataConflict | act.RecordFull | act.MetadataFailed
        )
        for action in step.answer or ():
            said = say_action(action)
            if said:
                line += f"; {said}"
            asks = asks or isinstance(action, act.WriteMetadata | act.ReadMetadata)
            sends += say_sent(action)
        if step.error is not None:
            line += f"; it refuses that: {step.error}"
        self._bookies.update(to for to, _ in sends)
        self._rows.append(_Row(step.at_ns, name, line, asks, tuple(sends), hears))

    # -- Drawing

    def draw(self, failing_ns: int | None) -> None:
        """Draw the steps up to ``failing_ns`` and a few more; None: up to the last."""
        rows = sorted(self._rows, key=lambda row: row.at_ns)
        if failing_ns is not None:
            rows = rows[: sum(row.at_ns <= failing_ns for row in rows) + _AFTER]
        self.left_out = max(0, len(rows) - ROWS_MAX)
        rows = rows[self.left_out :]
        clients = dict.fromkeys(row.lane for row in rows if row.lane not in self._bookies)
        named = {row.hears[0] for row in rows if row.hears} | {to for row in rows for to, _ in row.sends}
        named |= {row.lane for row in rows if row.lane in self._bookies}
        self.lanes = ("metadata", *clients, *sorted(named))
        lane_of = {lane: number for number, lane in enumerate(self.lanes)}
        waiting: dict[tuple[str, str], list[int]] = {}
        for row in rows:
            me = lane_of[row.lane]
            if row.hears is not None:
                bookie, words, heard = row.hears
                asked = waiting.get((row.lane, bookie), [])
                at = asked.pop(0) if asked else None
                if heard:
                    self._step(lane_of[bookie], f"{bookie} has the request of the {row.lane}")
                    if at is not None:
                        self.arrows[at] = replace(self.arrows[at], arrived=len(self.lines))
                    self.arrows.append(
                        Arrow(words, lane_of[bookie], me, len(self.lines), is_answer=True, arrived=len(self.lines) + 1)
                    )
                elif at is not None:
                    self.arrows[at] = replace(self.arrows[at], given_up=len(self.lines) + 1)
            self._step(me, row.line)
            if row.asks:
                self.asked.add(len(self.lines))
            for to, words in row.sends:
                waiting.setdefault((row.lane, to), []).append(len(self.arrows))
                self.arrows.append(Arrow(words, me, lane_of[to], len(self.lines), is_answer=False))

    def _step(self, lane: int, line: str) -> None:
        self.places.append(lane)
        self.lines.append(line)


def say_heard(event: Any) -> tuple[str, Response]:
    """A bookie's answer in words, and its response class."""
    match event:
        case act.AddAnswered(_, first, last, response):
            return f"add of {_ids(first, last)} {say_response(response)}", response
        case act.ReadAnswered(_, first, last, following):
            end = "" if isinstance(following, Positive) else f"{last + 1} {say_response(following)}"
            came = f"entry {_ids(first, last)}" if last >= first else ""
            return ", ".join(filter(None, (came, end))), following if last < first else Positive()
        case act.LacAnswered(_, response, lac):
            return (f"LAC {lac}" if isinstance(response, Positive) else f"LAC {say_response(response)}"), response
        case act.HeldAnswered(_, first, last, response):
            words = f"has {_ids(first, last)}" if last >= first else f"has none from e{first} on"
            return (words if isinstance(response, Positive) else say_response(response)), response
        case act.SyncAnswered(_, response, synced):
            words = say_response(response) if synced is None else f"synced up to {synced.last_add_synced}"
            return words, response
        case ExplicitLacAnswered(_, response):
            return f"explicit LAC {say_response(response)}", response
    return type(event).__name__, Positive()


def say_event(event: Any) -> str:
    """Any other event of a client, in words."""
    match event:
        case Append(count, byte_length):
            return f"appends {count} {'entry' if count == 1 else 'entries'} of {byte_length} bytes"
        case Close():
            return "is to close the ledger"
        case act.MetadataRead(metadata):
            return f"reads the metadata ({say_metadata(metadata)})"
        case act.MetadataWritten():
            return "learns that its metadata was written"
        case act.MetadataConflict():
            return "learns that the record had changed"
        case act.RecordFull():
            return "learns that the record has no room for it"
        case act.MetadataFailed(error):
            return f"has no answer of the metadata store: {error}"
        case act.BookiesChosen(bookies):
            return f"is to use {', '.join(bookies)}"
        case act.NoBookies():
            return "finds no bookies for an ensemble change"
        case act.DeadlinePassed():
            return "runs out of time"
        case act.Start():
            return "begins"
        case act.ReadIsLate():
            return "has waited long"
        case BookieBack(bookie):
            return f"can reach {bookie} again"
    return f"is given {type(event).__name__}"


def say_action(action: Any) -> str:
    """An action that is no message, in words; "" for a message."""
    match action:
        case act.Confirm(last):
            return f"entry {last} is confirmed"
        case act.Deliver(first, last):
            return f"entry {_ids(first, last)} is read"
        case act.WriteMetadata(metadata):
            return f"it writes the metadata ({say_metadata(metadata)})"
        case act.EnsembleChanged(metadata):
            return f"the ensemble is {' '.join(metadata.last_fragment.ensemble)} now"
        case act.Finish(metadata) if isinstance(metadata, LedgerMetadata) and metadata.closed:
            return f"done, the ledger is {say_metadata(metadata)}"
        case act.Finish():
            return "done"
        case act.Fail(error):
            return f"it ends with {type(error).__name__}: {error}"
    return ""


def say_sent(action: Any) -> list[tuple[str, str]]:
    """Messages of an action: bookie and words."""
    match action:
        case act.SendAdd(bookies, first, last, lac):
            return [(bookie, f"add of {_ids(first, last)} (LAC {lac})") for bookie in bookies]
        case act.SendRead(bookie, first, _, fence):
            return [(bookie, f"{'fencing read' if fence else 'read'} of entry {first} on")]
        case act.SendReadLac(bookie, fence):
            return [(bookie, f"{'fencing ' if fence else ''}LAC read")]
        case act.SendListHeld(bookie, first):
            return [(bookie, f"question for entries from e{first} on")]
        case act.SendSync(bookies):
            return [(bookie, "request to sync") for bookie in bookies]
        case act.SendLac(bookies, lac):
            return [(bookie, f"explicit LAC {lac}") for bookie in bookies]
    return []


def _ids(first: int, last: int) -> str:
    return f"e{first}" if first == last else f"e{first}..e{last}"


def simulator_command(ledger: Ledger) -> str:
    """Command that lets the simulator search for the same violation, with the ledger's ensemble and quorum sizes."""
    m = ledger.metadata
    words = ["bookspark simulate --random 10000"]
    if m is not None:
        words.append(f"--ensemble {m.ensemble_size} --write-quorum {m.write_quorum} --ack-quorum {m.ack_quorum}")
        if len(m.fragments) > 1:
            words.append("--spares 1")
        if m.ledger_type is not LedgerType.PD_JOURNAL:
            words.append(f"--ledger-type {m.ledger_type.value}")
        if m.replication is not Replication.BEST_EFFORT:
            words.append(f"--replication {m.replication.value}")
    words.append(f"--entries {max(1, min(3, len(ledger.batch_ends)))}")
    kinds = {one.who.split(" ")[0] for one in ledger.seen}
    if "LedgerRecovery" in kinds:
        words.append("--recoverers 2")
    if kinds & {"RangeRead", "LacRead", "LacWait"}:
        words.append("--readers 1")
    if any(one.lossy_boots for one in ledger.bookies.values()):
        words.append("--crashes 1")
    return " ".join(words)

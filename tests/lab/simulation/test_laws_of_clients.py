"""Laws about a client's actions, not about a state of the world: random schedules find each planted violation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookspark.lab.simulation.search.random_schedules import RandomSchedules
from bookspark.lab.simulation.view import Violation
from bookspark.protocol.ledger.actions import Confirm, EnsembleChanged
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.ledger.quorum import Verdict
from bookspark.protocol.ledger.transitions import LATE
from bookspark.protocol.reading import lac_read
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.repair import ledger_replication
from bookspark.protocol.writing import writer
from bookspark.protocol.writing.ensemble_change import ChangeMode, EnsembleChanges
from bookspark.protocol.writing.replication import BestEffort
from bookspark.protocol.writing.writer import Adds, ExplicitLac, LedgerWriter
from bookspark.protocol.writing.writer_events import Idle, Sync, TellLac

Step = Callable[..., Any]


def deaf_to(event: type) -> Callable[[Step], Step]:
    return lambda step: lambda self, came: [] if isinstance(came, event) else step(self, came)


def silent_about(action: type) -> Callable[[Step], Step]:
    return lambda step: lambda self, came: [each for each in step(self, came) if not isinstance(each, action)]


def tells_less(append: Step) -> Step:
    def told(*given: Any) -> Any:
        sends = append(*given)
        for send in sends:
            send.last_add_confirmed = max(send.last_add_confirmed - 1, -1)
        return sends

    return told


def twice(step: Step) -> Step:
    return lambda self, came: [
        each for action in step(self, came) for each in ([action] * (2 if isinstance(action, Confirm) else 1))
    ]


def at_once(step: Step) -> Step:
    def begin(self: Any, metadata: Any, version: int) -> Any:
        actions = step(self, metadata, version)
        return actions if metadata.closed else self._fence()

    return begin


def forgets_who_joined(_: Step) -> Step:
    return lambda self, swap: setattr(self, "_untold", self._untold.difference(swap))


def covered(*_: object) -> Verdict:
    return Verdict.PRESENT


def dead_or_alive(_: object) -> Callable[..., bool]:
    return lambda patience, waited_seconds, silent_seconds: waited_seconds >= patience.grace_seconds


def changes(**given: object) -> dict[str, object]:
    return {"ensemble_changes": ChangeMode.AT_ONCE, "recoverers": 0, "readers": 0, "replicators": 0, **given}


IDLE = changes(explicit_lacs=3, closes=False, spares=1, losses=2)
PLAIN = {
    "ledger_type": LedgerType.PD_JOURNAL, "replication": Replication.BEST_EFFORT,
    "abandons": False, "departures": 0, "crashes": 0, "duplicates": 0,
}  # fmt: skip
GUARANTEED = changes(
    replication=Replication.GUARANTEED, spares=1, closes=True, abandons=False, hold_ups=0, departures=0, crashes=0,
)  # fmt: skip
SLOW = changes(hold_ups=2, spares=0, losses=2)
SLOW_AND_GONE = GUARANTEED | {
    "ensemble": 5, "write_quorum": 3, "ack_quorum": 2, "ledger_type": LedgerType.VD_JOURNAL, "hold_ups": 2, "departures": 1,
    "losses": 0, "duplicates": 0, "entries": 1, "explicit_lacs": 0, "deletes": False, "heals": False, "second_ledger": False,
}  # fmt: skip
VOLATILE = changes(ledger_type=LedgerType.VD_JOURNAL, abandons=False)
WRONG: dict[str, tuple[Any, str, Callable[[Any], Any], dict[str, Any], str]] = {
    "a writer that is never idle": (LedgerWriter, "step", deaf_to(Idle), IDLE, "it was idle for long"),
    "a writer that is deaf to who wants its LAC told": (
        LedgerWriter, "step", deaf_to(TellLac), IDLE, "it was to tell its LAC, and told nobody",
    ),
    "a writer that tells another LAC with an entry than its user": (
        Adds, "append", tells_less, {}, "and its user other ones",
    ),
    "a writer that says nothing of its new bookies": (
        LedgerWriter, "step", silent_about(EnsembleChanged), IDLE, "its ensemble is another one, and it told nobody",
    ),
    "a writer that never syncs before it is closed": (
        LedgerWriter, "step", deaf_to(Sync), VOLATILE, "is not confirmed, and nothing happens any more",
    ),
    "a writer that believes answers of strangers, and to what it never sent": (
        Adds, "misfit", lambda _: lambda self, event: None, {}, "it believed what can't be",
    ),
    "a writer that takes answers of the store that it did not ask for": (
        writer, "cell_of", lambda _: lambda *given: LATE, {}, "it believed what can't be",
    ),
    "a writer that gives up for a slow bookie": (
        EnsembleChanges, "unusable", lambda _: property(lambda self: self.failed), SLOW, "it gave up, and only",
    ),
    "a writer that takes a change of its own for somebody else's": (
        EnsembleChanges, "merge", lambda _: lambda *given: None, changes(spares=1, losses=2), "its record is OPEN",
    ),
    "a guaranteed writer that waits for a bookie that is gone, and has another one": (
        EnsembleChanges, "due", lambda _: lambda *given: frozenset(), GUARANTEED, "the writer waits for ever",
    ),
    "a guaranteed writer that replaces nobody, as there is none in place of a slow bookie": (
        EnsembleChanges, "keep_slow", lambda _: lambda self: frozenset(), SLOW_AND_GONE, "the writer waits for ever",
    ),
    "a writer that takes those who joined for told": (
        ExplicitLac, "replace", forgets_who_joined, IDLE | PLAIN, "is not told",
    ),
    "a writer that tells its user everything twice": (LedgerWriter, "step", twice, {}, "it told its user"),
    "a recovery that fences before the record says so": (
        LedgerRecovery, "_begin", at_once, {"recoverers": 1}, "whose record is OPEN",
    ),
    "a reader that is told a LAC by nobody": (
        lac_read, "fencing_verdict", lambda _: covered, {"readers": 1}, "no bookie has told one",
    ),
    "an autorecovery that ends a writer that lives": (
        ledger_replication, "may_fence", dead_or_alive, {"replicators": 1, "spares": 1}, "it ends a writer that lives",
    ),
    "a best-effort writer that never gives up": (
        BestEffort, "gives_up", lambda _: False, changes(departures=2, closes=True), "everything_begun_ends",
    ),
}  # fmt: skip


def found(given: dict[str, Any], schedules: int) -> Violation | None:
    random = RandomSchedules(given)
    return next((broken for seed in range(schedules) if (broken := random.schedule(seed)[2]) is not None), None)


@pytest.mark.parametrize("who", WRONG)
def test_client_that_breaks_a_law_is_found_by_random_schedules(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, plant, given, said = WRONG[who]
    assert found(given, 40) is None
    monkeypatch.setattr(where, name, plant(getattr(where, name)))
    assert said in str(found(given, 3000))

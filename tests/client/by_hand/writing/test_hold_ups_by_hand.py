"""Which bookies hold a ledger up, and for how long it waits for each, over stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.client.writing.hold_ups import HoldUps

# -- hold-ups


class Patience:
    def __init__(self, spent=()):
        self.spent, self.noted = spent, []

    def spend(self, bookies, now):
        self.noted.append((sorted(bookies), now))

    def is_spent(self, bookie):
        return bookie in self.spent


def holding(spent=(), acks=(), heard_at=None, needed=False, pending=True, ack_quorum=2):
    """Hold-ups of a ledger whose entry 5, on b1, b2 and b3, is the oldest."""
    told, quarantined, patience = [], [], Patience(spent)
    add = SimpleNamespace(bookies=("b1", "b2", "b3"), acks=set(acks))
    writer = SimpleNamespace(
        cursors=SimpleNamespace(pending={5: add} if pending else {}),
        metadata=SimpleNamespace(ack_quorum=ack_quorum, ledger_id=1),
    )
    connections = SimpleNamespace(
        patience=patience,
        quietest_first=lambda bookies: tuple(sorted(bookies)),
        quarantine=lambda bookie, why: quarantined.append(bookie),
    )
    kept = SimpleNamespace(oldest_under_way=lambda: (5, heard_at))
    made = HoldUps(writer, connections, kept, told.append)
    made._needs = lambda behind: needed
    return made, told, quarantined, patience


@pytest.mark.parametrize(
    ("behind", "needed", "spent", "waits", "spends"),
    [
        ((), False, (), False, False),
        ((), True, (), False, False),
        (("b1",), True, ("b1",), True, False),
        (("b1",), False, (), True, True),
        (("b1",), False, ("b1",), False, True),
        (("b1", "b2"), False, ("b1",), True, True),
        (("b1", "b2"), False, ("b1", "b2"), False, True),
    ],
)
def test_appends_wait_for_who_is_behind_while_patience_lasts_and_for_whom_they_need(
    behind, needed, spent, waits, spends
):
    made, told, _, patience = holding(spent, needed=needed)
    assert made.waits_for(behind) is waits
    assert [bookies for bookies, _ in patience.noted] == [sorted(behind)] * spends and told == []


@pytest.mark.parametrize(
    ("acks", "heard_at", "pending", "slow"),
    [
        (("b1",), 99.0, True, ["b2", "b3"]),
        (("b1",), 99.6, True, []),
        (("b1",), None, True, []),
        (("b1", "b2"), 99.0, True, []),
        ((), 99.0, True, ["b1", "b2", "b3"]),
        (("b1",), 99.0, False, []),
    ],
)
def test_who_lacks_the_oldest_entry_for_a_while_after_another_had_it_is_slow(acks, heard_at, pending, slow):
    made, told, _, patience = holding((), acks, heard_at, pending=pending)
    made.look(100.0, ())
    assert patience.noted == ([(slow, 100.0)] if slow else []) and told == []


@pytest.mark.parametrize("needed", [True, False])
def test_who_is_slow_for_too_long_is_told_each_time_and_avoided_and_warned_of_once(needed, caplog):
    made, told, quarantined, patience = holding(("b2", "b4"), ("b1",), 99.0, needed=needed)
    for _ in range(2):
        made.look(100.0, ("b4",))
    slow = ["b2", "b3"] if needed else ["b2", "b3", "b4"]
    spent = ("b2",) if needed else ("b2", "b4")
    assert patience.noted == [(slow, 100.0)] * 2
    assert [event.bookies for event in told] == [spent] * 2 and quarantined == list(spent)
    assert caplog.text.count("much slower") == len(spent)

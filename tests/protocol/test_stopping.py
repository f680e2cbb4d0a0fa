"""Dangers of stopping bookies."""

from __future__ import annotations

from itertools import combinations

import pytest

from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.stopping import (
    NOT_RECOVERABLE,
    TOO_FEW_COPIES,
    Danger,
    Known,
    dangers_of,
    fewest_left,
)

A, B, C, D = "a", "b", "c", "d"


def ledger(
    ensemble: tuple[str, ...] = (A, B, C),
    write_quorum: int = 3,
    ack_quorum: int = 2,
    last: int | None = 99,
    **more: object,
) -> LedgerMetadata:
    """A ledger with a single fragment; not closed if ``last`` is None."""
    fields: dict[str, object] = {
        "ledger_id": 7,
        "ensemble_size": len(ensemble),
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "fragments": (Fragment(0, ensemble),),
        **more,
    }
    if last is not None:
        fields |= {"state": LedgerState.CLOSED, "last_entry_id": last, "length": 1}
    return LedgerMetadata(**fields)  # type: ignore[arg-type]


def dangers(metadata: LedgerMetadata, *stopped: str, **known: object) -> list[Danger]:
    return list(dangers_of(metadata, stopped, Known(**known)))  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [99, None])
def test_one_of_three_bookies_may_be_stopped_but_not_two(last: int | None) -> None:
    assert dangers(ledger(last=last), A) == []
    found = dangers(ledger(last=last), A, B)
    assert found[0] == Danger(7, 0, last, 1, 2, TOO_FEW_COPIES)
    assert [one.why for one in found[1:]] == ([] if last is not None else [NOT_RECOVERABLE])


def test_down_bookie_counts_as_gone_but_is_no_danger_itself() -> None:
    assert dangers(ledger(), A, down={B}) == [Danger(7, 0, 99, 1, 2, TOO_FEW_COPIES)]
    assert dangers(ledger(), down={B, C}) == [], "nobody is to be stopped"
    assert dangers(ledger(), D, down={B, C}) == [], "a stranger to the ledger"


def test_only_entries_that_another_bookie_lacks_are_in_danger() -> None:
    assert dangers(ledger(), A, lacking={B: [(10, 19)], C: [(15, 15)]}) == [
        Danger(7, 10, 14, 1, 2, TOO_FEW_COPIES),
        Danger(7, 15, 15, 0, 2, TOO_FEW_COPIES),
        Danger(7, 16, 19, 1, 2, TOO_FEW_COPIES),
    ]
    assert dangers(ledger(), A, lacking={A: [(0, 99)], B: [(0, 99)]}) == [], "what it does not hold is not lost with it"


def test_accepted_loss_is_no_danger() -> None:
    loss = AcceptedLoss("me", 1, (A, B), (Loss(LossKind.ENTRIES, 0, 99, (A, B, C)),))
    assert dangers(ledger(accepted_loss=loss), A) == []


def test_ack_quorum_of_all_copies_spares_none() -> None:
    assert dangers(ledger(ack_quorum=3), A) == [Danger(7, 0, 99, 2, 3, TOO_FEW_COPIES)]


def test_limbo_and_a_stop_together_block_recovery_of_an_open_ledger() -> None:
    assert dangers(ledger(last=None), A, limbo={B}) == [Danger(7, None, None, None, 2, NOT_RECOVERABLE)]
    assert dangers(ledger(), A, limbo={B}) == [], "a closed one needs none"


def test_only_write_sets_with_entries_count_in_striped_ledgers() -> None:
    striped = {"ensemble": (A, B, C, D), "write_quorum": 2, "ack_quorum": 1}
    assert dangers(ledger(**striped), A, C) == []
    assert dangers(ledger(**striped), A, B) == [Danger(7, 0, 99, 0, 1, TOO_FEW_COPIES)]
    # Entries 1 and 2 lie on b, c and on c, d.
    fragments = (Fragment(0, (D, C, B, A)), Fragment(1, (A, B, C, D)))
    assert dangers(ledger(**striped, last=2, fragments=fragments), A, B) == []
    assert dangers(ledger(**striped, last=2, fragments=fragments), B, C) == [Danger(7, 1, 2, 0, 1, TOO_FEW_COPIES)]


def test_empty_closed_ledger_is_in_no_danger() -> None:
    assert dangers(ledger(last=-1), A, B, C) == []


@pytest.mark.parametrize("write_quorum", [1, 2, 3])
@pytest.mark.parametrize("closed", [True, False])
def test_dangers_equal_a_count_entry_by_entry(write_quorum: int, closed: bool) -> None:
    """A simple twin: each of a few entries, every write set, every choice of stopped, down, lacking or limbo bookies."""
    members = (A, B, C)
    choices = [set(some) for count in range(3) for some in combinations(members, count)]
    for ack_quorum in range(1, write_quorum + 1):
        one = ledger(write_quorum=write_quorum, ack_quorum=ack_quorum, last=5 if closed else None)
        for stopped in choices:
            for down in choices:
                for other in choices:
                    lacking = {bookie: [(2, 3)] for bookie in other}
                    gone = stopped | down
                    wrong = {
                        entry
                        for entry in range(6)
                        if (held := {b for b in one.write_set_of(entry) if b not in other or entry not in (2, 3)})
                        & stopped
                        and len(held - gone) < ack_quorum
                    }
                    found = dangers(one, *stopped, down=down, lacking=lacking)
                    pieces = [(d.first_entry_id, d.last_entry_id) for d in found if d.first_entry_id is not None]
                    told = {e for low, high in pieces for e in range(low, 6 if high is None else high + 1)}
                    # A striped piece is reported whole if one of its entries is in danger.
                    assert wrong <= told
                    if write_quorum == 3:
                        assert wrong == told
                    assert bool(wrong) == bool(told) or not closed
                    sets = [one.write_set_of(entry) for entry in range(3)]
                    silent = any(set(s) & stopped and len(set(s) & gone) >= ack_quorum for s in sets)
                    assert any(d.why == NOT_RECOVERABLE for d in found) == (silent and not closed)


def test_fewest_left_counts_the_copies_that_remain() -> None:
    assert fewest_left("abc", 3, 2, False, {"a"}, ()) is None
    assert fewest_left("abc", 3, 2, False, {"a"}, {"b"}) == 1
    assert fewest_left("abc", 3, 2, False, {"a", "b", "c"}, ()) == 0
    assert fewest_left("abc", 3, 2, False, {"d"}, {"b", "c"}) is None
    # Open: two silent bookies are an ack quorum that cannot be asked.
    assert fewest_left("abcd", 4, 2, True, {"a"}, {"b"}) == 2
    assert fewest_left("abcd", 4, 2, False, {"a"}, {"b"}) is None
    # Striped: no entry lies on both a and c.
    assert fewest_left("abcd", 2, 1, False, {"a", "c"}, ()) is None
    assert fewest_left("abcd", 2, 1, False, {"a", "b"}, ()) == 0
    # At 2 of 3, a single silent bookie is no ack quorum.
    assert fewest_left("abc", 3, 2, True, {"a"}, ()) is None
    assert fewest_left("abc", 3, 3, False, {"a"}, ()) == 2

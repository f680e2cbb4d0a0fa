"""The first request for a ledger of which the bookie has no entry."""

from __future__ import annotations

from bookspark.protocol.bookie.first_request import answer_first_request
from bookspark.protocol.bookie.read_only_switch import NEVER_SWITCHED, ReadOnlySwitched, switched
from bookspark.protocol.ledger.ledger_metadata import Fragment
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive, Unknown, UnknownReason
from tests.protocol.ledgers import metadata

KEY = b"k" * 16


def test_bookie_named_in_any_fragment_accepts_the_ledgers_key():
    fragments = (Fragment(0, ("b1", "b2", "b3")), Fragment(4, ("b1", "b4", "b3")))
    moved = metadata(master_key=KEY, fragments=fragments)
    assert answer_first_request("b2", moved, KEY) == answer_first_request("b4", moved, KEY) == Positive()


def test_wrong_password_is_refused():
    assert answer_first_request("b2", metadata(master_key=KEY), b"o" * 16) == UNAUTHORIZED


def test_first_request_for_a_missing_or_foreign_ledger_answers_limbo():
    """The answer counts towards no coverage: the id may be a guess, or not issued yet."""
    for answer in (answer_first_request("b2", None, KEY), answer_first_request("b9", metadata(master_key=KEY), KEY)):
        assert isinstance(answer, Unknown) and answer.reason is UnknownReason.LIMBO


def test_each_setting_of_the_read_only_switch_has_the_next_number():
    assert switched(ReadOnlySwitched(3, False), True) == ReadOnlySwitched(4, True)


def test_order_of_a_change_below_a_higher_one_switches_nothing():
    later = switched(NEVER_SWITCHED, False, order=7)
    assert later == ReadOnlySwitched(1, False, 7)
    assert switched(later, True, order=6) is None
    assert switched(later, True, order=7) == ReadOnlySwitched(2, True, 7, by_change=True)


def test_switch_of_an_operator_is_always_obeyed_and_keeps_the_highest_order():
    by_change = switched(NEVER_SWITCHED, True, order=7)
    assert switched(by_change, True) == ReadOnlySwitched(2, True, 7, by_change=False)

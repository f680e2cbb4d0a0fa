"""Appends with caller-given ids: in order, each id once, and nothing behind a gap."""

from __future__ import annotations

import itertools

import pytest

from bookspark.errors import ConfigurationError, DuplicateEntryIdError, LedgerClosedError
from bookspark.protocol.writing import given_ids
from bookspark.protocol.writing.given_ids import ENTRY_ID_MAX, Given, GivenIds, InOrder, LeftOut, NoMore, Order
from tests.protocol.transitions_kit import TransitionsKit, event_types


def after(*entry_ids, ended=False):
    ids = GivenIds(7)
    for entry_id in entry_ids:
        ids.step(Given(entry_id))
    if ended:
        ids.step(NoMore())
    return ids


def test_every_order_of_five_ids_is_sent_once_and_ascending():
    for order in itertools.permutations(range(5)):
        ids, out = GivenIds(7), []
        for entry_id in order:
            for action in ids.step(Given(entry_id)):
                assert isinstance(action, InOrder)
                out += range(action.first, action.last + 1)
        assert out == [0, 1, 2, 3, 4]
        assert (ids.state, ids.waiting) == (Order.IN_ORDER, set())


def test_missing_id_releases_the_run_behind_the_gap():
    ids = after(0, 2, 3, 5)
    assert ids.state is Order.GAP
    assert ids.step(Given(1)) == [InOrder(1, 3)]
    assert (ids.state, ids.waiting) == (Order.GAP, {5})


@pytest.mark.parametrize("entry_id", [0, 1, 3])
def test_sent_or_waiting_id_is_refused_as_a_duplicate(entry_id):
    ids = after(0, 1, 3)
    with pytest.raises(DuplicateEntryIdError, match=f"entry {entry_id} was appended before"):
        ids.step(Given(entry_id))
    assert ids.step(Given(2)) == [InOrder(2, 3)]


@pytest.mark.parametrize("entry_id", [-1, ENTRY_ID_MAX + 1, 1 << 70])
def test_impossible_id_changes_nothing(entry_id):
    ids = after(0)
    with pytest.raises(ConfigurationError, match="can't be used"):
        ids.step(Given(entry_id))
    assert ids.step(Given(1)) == [InOrder(1, 1)]


def test_end_drops_ids_behind_a_gap():
    ids = after(0, 2, 4)
    assert ids.step(NoMore()) == [LeftOut((2, 4))]
    assert ids.step(NoMore()) == []
    with pytest.raises(LedgerClosedError):
        ids.step(Given(1))


PLACES = {
    "new": after,
    "in_order": lambda: after(0, 1),
    "gap": lambda: after(0, 2),
    "ended": lambda: after(0, ended=True),
    "ended_in_a_gap": lambda: after(0, 2, ended=True),
}
SAMPLES = {Given: lambda ids: Given(ids.last_in_order + 1), NoMore: lambda ids: NoMore()}
KIT = TransitionsKit(PLACES, SAMPLES, lambda ids, event: given_ids.TRANSITIONS[ids.state].get(type(event)))


@pytest.mark.parametrize("event_type", KIT.events())
def test_given_ids_follow_their_table(event_type):
    KIT.check(event_type)


def test_pairs_cover_all_events_and_states():
    assert event_types(given_ids.IdEvent) == SAMPLES.keys()
    assert {PLACES[place]().state for place in PLACES} == set(Order)

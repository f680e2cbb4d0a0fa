"""Bookies that count as lost, and when."""

from __future__ import annotations

import pytest

from bookspark.protocol.repair.audit_plan import LostBookies

ALL = {"a", "b", "c", "d"}


@pytest.fixture
def view() -> LostBookies:
    """The view of an auditor that has seen all four bookies, with a delay of 60 seconds."""
    made = LostBookies(60.0)
    made.look(0.0, ALL, ALL)
    return made


def test_registered_bookies_are_not_lost(view: LostBookies) -> None:
    view.look(1000.0, ALL, ALL)
    assert view.lost == view.to_mark == frozenset() and view.lost_at() == {}


def test_unregistered_bookie_is_lost_after_the_delay(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    assert view.lost_at() == {"a": 70.0} and not view.lost
    view.look(69.9, ALL - {"a"}, ALL)
    assert not view.lost
    view.look(70.0, ALL - {"a"}, ALL)
    assert view.lost == view.to_mark == {"a"} and view.lost_at() == {}


def test_bookie_that_returns_within_the_delay_is_not_lost(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    view.look(69.0, ALL, ALL)
    view.look(80.0, ALL - {"a"}, ALL)
    view.look(139.0, ALL - {"a"}, ALL)
    assert not view.lost, "the delay begins anew"


def test_rolling_restart_loses_no_bookie(view: LostBookies) -> None:
    for turn in range(3):
        for number, bookie in enumerate(sorted(ALL)):
            at = 1000.0 * turn + 100.0 * number
            view.look(at, ALL - {bookie}, ALL)
            view.look(at + 59.0, ALL, ALL)
            assert not view.lost and view.lost_at() == {}


def test_second_loss_during_the_delay_makes_both_bookies_lost(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    view.look(11.0, ALL - {"a", "b"}, ALL)
    assert view.lost == view.to_mark == {"a", "b"}


def test_two_bookies_that_go_together_are_lost_at_once(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a", "b"}, ALL)
    assert view.lost == {"a", "b"}


def test_second_loss_after_the_first_was_marked_has_its_own_delay(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    view.look(70.0, ALL - {"a"}, ALL)
    view.marked({"a"})
    view.look(80.0, ALL - {"a", "b"}, ALL)
    assert view.lost == {"a"} and view.lost_at() == {"b": 140.0}


def test_bookies_missing_at_the_start_of_an_auditor_have_the_whole_delay() -> None:
    view = LostBookies(60.0)
    view.look(0.0, {"a"}, ALL)
    view.look(1.0, {"a", "b"}, ALL)
    assert not view.lost and set(view.lost_at()) == {"c", "d"}
    view.look(60.0, {"a", "b"}, ALL)
    assert view.lost == {"c", "d"}


def test_loss_beside_a_never_seen_bookie_is_a_second_loss() -> None:
    view = LostBookies(60.0)
    view.look(0.0, {"a", "b", "c"}, ALL)
    view.look(1.0, {"a", "b"}, ALL)
    assert view.lost == {"c", "d"}


def test_no_loss_is_decided_while_no_bookie_is_registered(view: LostBookies) -> None:
    view.look(10.0, set(), ALL)
    view.look(1000.0, set(), ALL)
    assert not view.lost and view.lost_at() == {}
    view.look(1001.0, {"a", "b"}, ALL)
    assert view.lost == {"c", "d"}, "what was there before the gap was seen to go"


def test_returned_bookie_is_no_longer_lost(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    view.look(70.0, ALL - {"a"}, ALL)
    view.look(71.0, ALL, ALL)
    assert view.lost == view.to_mark == frozenset()


def test_lost_bookie_is_due_for_marking_until_marked(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    view.look(70.0, ALL - {"a"}, ALL)
    view.look(71.0, ALL - {"a"}, ALL)
    assert view.to_mark == {"a"}, "the first attempt may have failed"
    view.marked({"a"})
    view.look(72.0, ALL - {"a"}, ALL)
    assert view.to_mark == frozenset() and view.lost == {"a"}


def test_delay_can_be_changed(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    view.delay_seconds = 5.0
    view.look(15.0, ALL - {"a"}, ALL)
    assert view.lost == {"a"}


def test_bookie_is_lost_at_once_without_a_delay() -> None:
    view = LostBookies(0.0)
    view.look(0.0, ALL - {"a"}, ALL)
    assert view.lost == {"a"}


def test_seen_bookie_without_a_cookie_is_lost_too(view: LostBookies) -> None:
    view.look(1.0, {*ALL, "new"}, ALL)
    view.look(2.0, ALL, ALL)
    view.look(62.0, ALL, ALL)
    assert view.lost == {"new"}


def test_decommissioned_bookie_is_forgotten_once_marked(view: LostBookies) -> None:
    view.look(10.0, ALL - {"a"}, ALL)
    view.look(70.0, ALL - {"a"}, ALL)
    view.look(71.0, ALL - {"a"}, ALL - {"a"})
    assert view.lost == {"a"}, "its ledgers are not marked yet"
    view.marked({"a"})
    view.look(72.0, ALL - {"a"}, ALL - {"a"})
    assert not view.lost and view.lost_at() == {}

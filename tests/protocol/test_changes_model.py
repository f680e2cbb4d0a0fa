"""Every order of steps, bookie crashes and applier deaths of a change, in small clusters."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookspark.protocol.changes import planner
from bookspark.protocol.changes.observed import Fragments, Placed, Shape
from bookspark.protocol.changes.wanted import Progress, Wanted
from tests.protocol.changes_world import Model, Violated, World, explore, settle

ABC, ABCD = ("a", "b", "c"), ("a", "b", "c", "d")
CLOSED = Placed(1, 0, ABC, 3, 2, False, 10)
OPEN = Placed(2, 0, ABC, 3, 2, True, 0)
STRIPED = Placed(3, 0, ABCD, 2, 1, False, 10)
ALL_NEEDED = Placed(4, 0, ("a", "b"), 2, 2, False, 10)

CHANGES = {
    "restart": (Wanted(restart=frozenset("ab")), [CLOSED, OPEN], 4),
    "restart of all, striped": (Wanted(restart=frozenset("abcd")), [STRIPED, CLOSED], 4),
    "restart below the write quorum": (
        Wanted(restart=frozenset("abc"), below_write_quorum=True),
        [CLOSED, OPEN],
        3,
    ),
    "restart where every copy is needed": (Wanted(restart=frozenset("ab")), [ALL_NEEDED], 4),
    "two at once": (Wanted(restart=frozenset("abcd"), at_once=2), [CLOSED, STRIPED], 4),
    "remove": (Wanted(remove=frozenset("a")), [CLOSED, OPEN], 5),
    "remove two": (Wanted(remove=frozenset("ab")), [CLOSED], 5),
    "move": (Wanted(move={"a": ("d",)}), [CLOSED, ALL_NEEDED], 4),
    "replace a disk": (Wanted(replace_disks={"a": "/disk"}), [CLOSED, OPEN], 4),
    "balance": (Wanted(balance=True), [CLOSED, CLOSED._replace(ledger_id=5), ALL_NEEDED], 4),
}


def model_of(name: str) -> tuple[Model, World]:
    wanted, fragments, bookies = CHANGES[name]
    model = Model(wanted, fragments, bookies, autorecovery=wanted.at_once == 1)
    return model, model.first


@pytest.mark.parametrize("name", CHANGES)
def test_no_order_of_events_lets_a_change_break_the_law(name: str) -> None:
    model, first = model_of(name)
    open_ledger = name in ("remove", "move", "replace a disk")
    first = replace(first, crashes=1, deaths=1, new_ledgers=int(open_ledger))
    assert explore(model, first, 400_000) > 20


@pytest.mark.parametrize("name", CHANGES)
def test_interrupted_change_ends_from_any_state(name: str) -> None:
    """It also leaves no bookie read-only or down."""
    model, first = model_of(name)
    ended: dict[object, None] = {}

    def look(world: World) -> None:
        calm = replace(world, pending=None, noted=False, crashes=0, deaths=0)
        if calm in ended:
            return
        ended[calm] = None
        end, decision = settle(model, calm)
        assert decision.complete, (world, end, decision)
        for bookie in end.bookies:
            assert bookie.registered and not bookie.read_only, (world, end)
        assert not model.wanted.leaving & {bookie.bookie_id for bookie in end.bookies}
        assert not end.quieted | end.away

    explore(model, replace(first, crashes=1, deaths=1), 400_000, look)


def test_search_detects_a_planner_without_the_check_before_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "permitted", lambda *_: "")
    model, first = model_of("restart")
    with pytest.raises(Violated, match="would be"):
        explore(model, replace(first, crashes=1), 400_000)


def test_search_detects_a_planner_that_ignores_bookies_away(monkeypatch: pytest.MonkeyPatch) -> None:
    real = planner.is_in_the_way
    monkeypatch.setattr(planner, "is_in_the_way", lambda observed, name, away, *more: real(observed, name, (), *more))
    model, first = model_of("two at once")
    with pytest.raises(Violated, match="would be on"):
        explore(model, first, 400_000)


def test_search_detects_a_planner_without_the_note_before_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "begun", lambda self, step: self)
    model, first = model_of("restart")
    ends = []

    def look(world: World) -> None:
        end, decision = settle(model, replace(world, pending=None, noted=False, crashes=0, deaths=0))
        ends.append(decision.complete and not any(bookie.read_only for bookie in end.bookies))

    explore(model, replace(first, deaths=1), 400_000, look)
    assert not all(ends)


def test_two_bookies_restarted_together_exchange_no_copies_in_a_cycle() -> None:
    """Below the write quorum neither was read-only, and an open ledger kept one of them up: a copy moved to and fro."""
    wanted = Wanted(restart=frozenset("abcd"), at_once=2, below_write_quorum=True)
    fragments = [Placed(0, 0, ("d", "a", "b"), 1, 1, False, 5), Placed(3, 0, ("b",), 1, 1, True, 0)]
    model = Model(wanted, fragments, 4, autorecovery=False)
    end, decision = settle(model, model.first.with_bookie("a", incarnation=2))
    assert not decision.steps
    assert "ledger 3" in " ".join(decision.waits)
    assert end.fragments[0].ensemble.count("c") == 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_mishaps_never_let_a_change_break_the_law(data: st.DataObject) -> None:
    """Longer courses than the exhaustive search, with more bookies, ledgers and mishaps."""
    names = "abcdef"[: data.draw(st.integers(3, 6))]
    fragments = []
    for ledger_id in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(1, len(names)))
        write_quorum = data.draw(st.integers(1, size))
        ack_quorum = data.draw(st.integers(1, write_quorum))
        is_open = data.draw(st.booleans())
        ensemble = tuple(data.draw(st.permutations(names))[:size])
        fragments.append(Placed(ledger_id, 0, ensemble, write_quorum, ack_quorum, is_open, 0 if is_open else 5))
    some = st.sets(st.sampled_from(names)).map(frozenset)
    remove = data.draw(some)
    restart = data.draw(some) - remove
    rest = sorted(set(names) - remove - restart)
    disks = {rest[0]: "/disk"} if rest and data.draw(st.booleans()) else {}
    wanted = Wanted(
        restart=restart,
        remove=remove,
        replace_disks=disks,
        balance=data.draw(st.booleans()),
        at_once=data.draw(st.integers(1, 3)),
        below_write_quorum=data.draw(st.booleans()),
    )
    model = Model(wanted, fragments, len(names), autorecovery=False)
    world = replace(model.first, crashes=2, deaths=3, new_ledgers=1)
    drawn = data.draw(st.randoms(use_true_random=False))
    for _ in range(150):
        applied, others = list(model.applies(world)), list(model.others(world))
        if not applied and not others:
            break
        world = drawn.choice(applied if applied and (not others or drawn.random() < 0.6) else others)
    end, decision = settle(model, replace(world, pending=None, noted=False, crashes=0, deaths=0))
    if decision.complete:
        assert not any(one.read_only or not one.registered for one in end.bookies)
    else:
        assert decision.waits or decision.refusals


def test_index_by_shape_lists_exactly_the_ledgers_with_that_shape() -> None:
    choose = random.Random(21)
    index, plain = Fragments(), {}
    for _ in range(2000):
        ledger_id = choose.randrange(40)
        each = [
            Placed(ledger_id, at, tuple(choose.sample("abcd", 2)), 2, choose.choice((1, 2)), choose.random() < 0.1, 1)
            for at in range(choose.randrange(3))
        ]
        index.put(ledger_id, each)
        plain[ledger_id] = each
        wanted: dict[Shape, set[int]] = {}
        for one in (one for each in plain.values() for one in each):
            wanted.setdefault(Shape(*one[2:6], one.loss), set()).add(one.ledger_id)
        assert index.by_shape() == wanted
    assert list(index.all()) == [one for ledger_id in index.ledgers() for one in plain[ledger_id]]
    assert len({id(one.ensemble) for one in index.all()}) <= len(wanted), "the ensembles of a shape are one object"

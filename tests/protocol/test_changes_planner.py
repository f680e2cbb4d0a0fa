"""Decisions of the change planner, by example, and the index of fragments against a simple twin.

``test_changes_model`` shows that no order of events breaks the law, but not that a change does too little or too much.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from bookspark.protocol.changes.foresight import foreseen
from bookspark.protocol.changes.observed import Fragments, Observed, ObservedBookie, Placed, Shape, placed
from bookspark.protocol.changes.planner import decide, evacuation, levelling, permitted
from bookspark.protocol.changes.steps import (
    Decision,
    Forget,
    Move,
    ReplaceDisk,
    Restart,
    Resume,
    SetReadOnly,
    Step,
    Stop,
)
from bookspark.protocol.changes.wanted import Before, Progress, Wanted, begin
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.ledger_metadata import Fragment
from bookspark.protocol.ledger.placement import PlacementRule
from tests.protocol.ledgers import metadata

ABC, ABCD = ("a", "b", "c"), ("a", "b", "c", "d")
CLOSED = Placed(1, 0, ABC, 3, 2, False, 10)
OPEN = Placed(2, 0, ABC, 3, 2, True, 0)
ALL_NEEDED = Placed(4, 0, ("a", "b"), 2, 2, False, 10)
RESTART, REMOVE, DISK = (
    Wanted(restart=frozenset("a")),
    Wanted(remove=frozenset("a")),
    Wanted(replace_disks={"a": "/disk"}),
)
QUIET: dict[str, object] = {"read_only": True}
DOWN: dict[str, object] = {"registered": False}
HEALS: dict[str, object] = {"settled": False, "unsettled_why": "heals"}


def observed(
    fragments: Iterable[Placed] = (), bookies: str = "abcd", autorecovery: bool = True, **changed: dict[str, object]
) -> Observed:
    seen = {name: ObservedBookie(name, **changed.get(name, {})) for name in bookies}  # type: ignore[arg-type]
    return Observed(seen, Fragments(fragments), autorecovery_enabled=autorecovery)


def _decided(
    wanted: Wanted,
    fragments: Iterable[Placed] = (),
    bookies: str = "abcd",
    quieted: str = "",
    away: str = "",
    autorecovery: bool = True,
    **changed: dict[str, object],
) -> Decision:
    """Decision in a change that began when every bookie had incarnation 1."""
    before = {name: Before(1, 0) for name in wanted.named()}
    progress = Progress(before, frozenset(quieted), frozenset(away))
    return decide(wanted, progress, observed(fragments, bookies, autorecovery, **changed))


def decided(*arguments: Any, **more: Any) -> Callable[[], Decision]:
    """Defer the decision to the test, so that collecting tests decides nothing."""
    return partial(_decided, *arguments, **more)


AGAIN: dict[str, object] = {"incarnation": 2}
STEPS: dict[str, tuple[Callable[[], Decision], list[Step]]] = {
    "a restart begins read-only": (decided(RESTART, [CLOSED, OPEN]), [SetReadOnly("a")]),
    "it needs no other bookie if its copies can spare it": (decided(RESTART, [CLOSED], "abc"), [SetReadOnly("a")]),
    "read-only, and nobody writes to it": (decided(RESTART, [CLOSED], quieted="a", a=QUIET), [Restart("a")]),
    "it is down, and may be so by the change": (
        decided(RESTART, [CLOSED], quieted="a", away="a", a=DOWN),
        [Restart("a")],
    ),
    "it is back": (decided(RESTART, [CLOSED], quieted="a", away="a", a=QUIET | AGAIN), [Resume("a")]),
    "under the pen, if that is allowed": (
        decided(Wanted(restart=frozenset("a"), below_write_quorum=True), [OPEN]),
        [Restart("a")],
    ),
    "a copy that can't be spared is moved first": (
        decided(RESTART, [ALL_NEEDED], "abc", quieted="a", a=QUIET),
        [Move(4, 0, "a", "c", 10)],
    ),
    "one after another": (decided(Wanted(restart=frozenset("ab")), [CLOSED]), [SetReadOnly("a")]),
    "or two at once": (
        decided(Wanted(restart=frozenset("abc"), at_once=2), [CLOSED], autorecovery=False),
        [SetReadOnly("a"), SetReadOnly("b")],
    ),
    "one that is down comes first": (decided(Wanted(restart=frozenset("ab")), [CLOSED], b=DOWN), [Restart("b")]),
    "what was begun is ended first": (
        decided(Wanted(restart=frozenset("ab")), [CLOSED], quieted="b", b=QUIET),
        [Restart("b")],
    ),
    "one that runs the version already is left alone": (
        decided(Wanted(restart=frozenset("ab"), version="2"), [CLOSED], a={"version": "2"}, b={"version": "1"}),
        [SetReadOnly("b")],
    ),
    "a disk": (decided(DISK, [CLOSED], quieted="a", a=QUIET), [ReplaceDisk("a", "/disk")]),
    "a disk that was not empty": (
        decided(DISK, [CLOSED], quieted="a", away="a", a=QUIET | AGAIN),
        [ReplaceDisk("a", "/disk")],
    ),
    "a disk that was": (
        decided(DISK, [CLOSED], quieted="a", away="a", a=QUIET | AGAIN | {"lossy_boot": 1}),
        [Resume("a")],
    ),
    "leaving begins read-only": (decided(REMOVE, [CLOSED]), [SetReadOnly("a")]),
    "and goes on so if somebody made it writable": (decided(REMOVE, [CLOSED], quieted="a"), [SetReadOnly("a")]),
    "its copies are moved": (decided(REMOVE, [CLOSED], quieted="a", a=QUIET), [Move(1, 0, "a", "d", 10)]),
    "to those that are named": (
        decided(Wanted(move={"a": ("e",)}), [CLOSED], "abcde", quieted="a", a=QUIET),
        [Move(1, 0, "a", "e", 10)],
    ),
    "it has none": (decided(REMOVE, quieted="a", a=QUIET), [Stop("a")]),
    "it is stopped": (decided(REMOVE, quieted="a", away="a", a=DOWN), [Forget("a")]),
    "it is forgotten": (decided(REMOVE, bookies="bcd", quieted="a", away="a"), [Forget("a")]),
    "one that was down before it left": (decided(REMOVE, a=DOWN), [Forget("a")]),
    "it is gone, and nothing of it is left": (decided(REMOVE, bookies="bcd"), []),
    "the change was given up": (decided(Wanted(), [CLOSED], quieted="a", a=QUIET), [Resume("a")]),
    "all is done": (decided(RESTART, [CLOSED], a=AGAIN), []),
    "bytes are levelled once nothing else is to be done": (
        decided(Wanted(balance=True), [CLOSED, CLOSED._replace(ledger_id=5)]),
        [Move(1, 0, "a", "d", 10)],
    ),
    "and not before": (
        decided(Wanted(restart=frozenset("a"), balance=True), [CLOSED, CLOSED._replace(ledger_id=5)]),
        [SetReadOnly("a")],
    ),
}


@pytest.mark.parametrize("what", STEPS)
def test_planner_decides_the_next_steps(what: str) -> None:
    look, steps = STEPS[what]
    assert look() == Decision(tuple(steps))


WAITS = {
    "is being written to a": decided(RESTART, [OPEN], quieted="a", a=QUIET),
    "ledgers are being written to a (1: 2)": decided(REMOVE, [OPEN], quieted="a", a=QUIET),
    "would have 1 of the 2 copies": decided(RESTART, [CLOSED], quieted="a", a=QUIET, b=DOWN),
    "nothing else is begun, because d is down": decided(RESTART, [CLOSED], d=DOWN),
    "nothing else is begun, because d heals": decided(RESTART, [CLOSED], d=HEALS),
    "a is back and not whole yet: heals": decided(RESTART, quieted="a", away="a", a=QUIET | AGAIN | HEALS),
    "a is not whole: heals": decided(RESTART, a=AGAIN | HEALS),
    "runs version 1, not 2": decided(
        Wanted(restart=frozenset("a"), version="2"), quieted="a", away="a", a=QUIET | AGAIN | {"version": "1"}
    ),
    "a is down: start it again": decided(Wanted(), quieted="a", a=DOWN),
    "a is gone, and so is its cookie": decided(Wanted(), bookies="bcd", quieted="a"),
    "d does not take copies now": decided(Wanted(move={"a": ("d",)}), [CLOSED], quieted="a", a=QUIET, d=DOWN),
    "needs 3 bookies, and 2 take copies: start more": decided(REMOVE, [CLOSED], "abc", quieted="a", a=QUIET),
    "no other writable bookie can take the place of a: start one more bookie": decided(REMOVE, [CLOSED], d=QUIET),
    "no copy of entries of ledger 4 counts: start a, b, or delete the ledger if their disks are gone for good": decided(
        REMOVE, [ALL_NEEDED], quieted="a", a=QUIET | HEALS, b=DOWN
    ),
}


@pytest.mark.parametrize("what", WAITS)
def test_decision_without_steps_names_its_wait(what: str) -> None:
    decision = WAITS[what]()
    assert not decision.steps and not decision.refusals
    assert what in "; ".join(decision.waits)


def unreadable() -> Decision:
    seen = observed([CLOSED])
    return decide(RESTART, Progress({}), Observed(seen.bookies, seen.fragments, unreadable={9: "new"}))


REFUSALS = {
    "there is no bookie x": decided(Wanted(restart=frozenset("x"))),
    "a is to leave: don't ask for anything else": decided(Wanted(restart=frozenset("a"), remove=frozenset("a"))),
    "x, which is to get the copies of a": decided(Wanted(move={"a": ("x",)})),
    "b, which is to get the copies of a": decided(Wanted(move={"a": ("b",)}, remove=frozenset("b"))),
    "ledger 9 may name any bookie": unreadable,
    "`bookspark autorecovery disable`": decided(Wanted(restart=frozenset("ab"), at_once=2)),
    "ledger 1 has a, b, c, and no other": decided(REMOVE, [CLOSED], "abc"),
    "ledger 4 has a, b, and no other": decided(RESTART, [ALL_NEEDED], "ab"),
    "start one more bookie, or allow --below-write-quorum": decided(RESTART, [OPEN], "abc"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_impossible_change_is_refused_with_its_reason(what: str) -> None:
    decision = REFUSALS[what]()
    assert not decision.steps and not decision.waits
    assert what in "; ".join(decision.refusals)


def test_restart_of_a_single_bookie_is_allowed_beside_autorecovery() -> None:
    assert not decided(Wanted(restart=frozenset("a"), at_once=2), [CLOSED])().refusals


def test_step_that_takes_a_bookie_down_needs_a_fresh_decision() -> None:
    progress = Progress({"a": Before(1, 0)}, frozenset("a"))
    assert permitted(RESTART, progress, observed([CLOSED], a=QUIET), Restart("a")) == ""
    assert "would have 1 of" in permitted(RESTART, progress, observed([CLOSED], a=QUIET, b=DOWN), Restart("a"))
    assert permitted(RESTART, progress, observed([CLOSED], a=AGAIN), Restart("a")) == "it is not needed any more"
    assert permitted(RESTART, progress, observed([CLOSED], a=AGAIN), Resume("a")) == ""


# -- targets of copies


HOSTS = {"a": {"host": "h1"}, "b": {"host": "h2"}, "c": {"host": "h3"}, "d": {"host": "h2"}, "e": {"host": "h4"}}


def test_copy_goes_to_the_emptiest_bookie_on_another_host() -> None:
    on_d, on_e = (Placed(9, 0, (name,), 1, 1, False, size) for name, size in (("d", 1), ("e", 5)))
    seen = observed([CLOSED, on_d, on_e], "abcde", **HOSTS)
    assert evacuation(seen, "a", [CLOSED], "bcde", 9) == ([Move(1, 0, "a", "e", 10)], None)
    assert evacuation(seen, "a", [CLOSED], "bcd", 9) == ([Move(1, 0, "a", "d", 10)], None)
    assert evacuation(seen, "a", [CLOSED], "bc", 9) == ([], CLOSED)
    assert evacuation(seen, "a", [CLOSED], "bcde", 0) == evacuation(seen, "a", [OPEN], "bcde", 9) == ([], None)


def test_preferred_targets_come_first_and_assigned_copies_count() -> None:
    pieces = [Placed(ledger, 0, ABC, 3, 2, False, 10) for ledger in range(4)]
    seen = observed(pieces, "abcde")
    moves, _ = evacuation(seen, "a", pieces, "de", 9)
    assert [move.target for move in moves] == ["d", "e", "d", "e"]
    moves, _ = evacuation(seen, "a", pieces, "de", 9, preferred="e")
    assert [move.target for move in moves] == ["e"] * 4


def test_skipped_target_gets_no_copy_and_counts_no_load() -> None:
    first, second = (Placed(ledger, 0, ("a", other), 2, 2, False, 100) for ledger, other in ((1, "b"), (2, "x")))
    loads = [Placed(9, 0, (name,), 1, 1, False, size) for name, size in (("c", 5), ("d", 60))]
    seen = observed([*loads, Placed(8, 0, ("b",), 1, 1, False, 1)], "abcdx")
    moves, _ = evacuation(seen, "a", [first, second], "bcd", 9)
    assert [move.target for move in moves] == ["c", "b"]


def test_levelling_moves_copies_from_fullest_to_emptiest_bookies_until_even() -> None:
    pieces = [Placed(ledger, 0, ("a", "b"), 2, 2, False, 10) for ledger in range(8)]
    seen = observed(pieces)
    moves = levelling(seen, "abcd", 99)
    loads = dict(seen.fragments.bytes_of) | {"c": 0, "d": 0}
    for move in moves:
        loads[move.source] -= move.byte_count
        loads[move.target] += move.byte_count
    assert set(loads.values()) == {40} and len(moves) == 8
    assert len({(move.ledger_id, move.first_entry_id) for move in moves}) == len(moves)
    assert levelling(seen, "abcd", 3) == moves[:3]
    assert levelling(seen, "ab", 99) == levelling(seen, "a", 99) == []


def test_balance_takes_from_full_read_only_bookies_too() -> None:
    """With three full bookies and three empty ones there was nothing to be done: only writable bookies gave copies."""
    pieces = [Placed(ledger, 0, ABC, 3, 2, False, 10) for ledger in range(8)]
    full = {name: ObservedBookie(name, read_only=True) for name in "abc"}
    seen = Observed({**full, **{name: ObservedBookie(name) for name in "def"}}, Fragments(pieces))
    while steps := decide(Wanted(balance=True), Progress({}, frozenset(), frozenset()), seen).steps:
        for step in steps:
            assert isinstance(step, Move) and step.target in "def"
            [one] = seen.fragments.of_ledger(step.ledger_id)
            ensemble = tuple(step.target if name == step.source else name for name in one.ensemble)
            seen.fragments.put(step.ledger_id, [one._replace(ensemble=ensemble)])
    assert set(seen.fragments.bytes_of.values()) == {40}


def test_read_only_bookie_below_the_average_gives_nothing_and_gets_nothing() -> None:
    pieces = [Placed(ledger, 0, ("b", "c"), 2, 2, False, 10) for ledger in range(8)]
    seen = observed([*pieces, Placed(9, 0, ("a",), 1, 1, False, 10)])
    assert {move.target for move in levelling(seen, "bcd", 99, "a")} == {"d"}
    assert not any(move.source == "a" for move in levelling(seen, "bcd", 99, "a"))


@pytest.mark.parametrize("left_alone", [OPEN._replace(byte_count=10), CLOSED._replace(byte_count=0)])
def test_levelling_moves_no_open_or_empty_fragment(left_alone: Placed) -> None:
    assert levelling(observed([left_alone]), "abcd", 99) == []


def test_levelling_keeps_copies_on_different_hosts() -> None:
    pieces = [Placed(ledger, 0, ("a", "b"), 2, 2, False, 10) for ledger in range(8)]
    moves = levelling(observed(pieces, "abd", **HOSTS), "abd", 99)
    assert moves and all(move.source == "b" for move in moves), "d has the host of b"


# -- foreseen steps


def test_restart_of_all_bookies_is_foreseen_step_by_step() -> None:
    wanted = Wanted(restart=frozenset("ab"))
    before = Progress({name: Before(1, 0) for name in "ab"})
    steps = list(foreseen(wanted, before, observed([CLOSED, OPEN])))
    one = [(SetReadOnly(name), Restart(name), Resume(name)) for name in "ab"]
    assert steps == [*one[0], *one[1], Decision()]


def test_disk_replacement_and_removal_are_foreseen_without_changing_the_observation() -> None:
    seen = observed([CLOSED, OPEN])
    before = Progress({"a": Before(1, 0)})
    assert list(foreseen(DISK, before, seen)) == [SetReadOnly("a"), ReplaceDisk("a", "/disk"), Resume("a"), Decision()]
    assert list(foreseen(REMOVE, before, seen)) == [
        SetReadOnly("a"),
        Move(1, 0, "a", "d", 10),
        Move(2, 0, "a", "d", 0),
        Stop("a"),
        Forget("a"),
        Decision(),
    ]
    assert seen.bookies == observed().bookies and set(seen.fragments.all()) == {CLOSED, OPEN}


def test_foreseen_steps_end_where_the_change_waits() -> None:
    steps = list(foreseen(REMOVE, Progress({"a": Before(1, 0)}), observed([CLOSED], d=DOWN)))
    assert steps == [_decided(REMOVE, [CLOSED], d=DOWN)]


# -- the index of fragments


def test_placed_lists_fragments_with_ensemble_bytes_and_accepted_loss() -> None:
    two = (Fragment(0, ("b1", "b2", "b3")), Fragment(4, ("b1", "b4", "b3")))
    closed = metadata(fragments=two).close_at(9, 1000)
    assert list(placed(closed)) == [
        Placed(7, 0, two[0].ensemble, 3, 2, False, 400),
        Placed(7, 4, two[1].ensemble, 3, 2, False, 600),
    ]
    assert [(one.open, one.byte_count, one.loss) for one in placed(metadata(fragments=two))] == [
        (False, 0, False),
        (True, 0, False),
    ]
    lost = metadata(fragments=two[:1]).close_at(-1, 0)
    assert [one.byte_count for one in placed(lost)] == [0]
    assert next(placed(replace(lost, accepted_loss=AcceptedLoss("me", 1)))).loss


@pytest.mark.parametrize("seed", range(100))
def test_index_of_fragments_equals_a_full_scan(seed: int) -> None:
    choose = random.Random(seed)
    index, twin = Fragments(), {}
    for _ in range(choose.randint(1, 12)):
        ledger = choose.randrange(4)
        twin[ledger] = [
            Placed(ledger, 10 * at, choose.choice((ABC, ABCD[1:])), 3, 2, choose.random() < 0.3, choose.randrange(9))
            for at in range(choose.randrange(3))
        ]
        index.put(ledger, twin[ledger])
    for found in (index, index.copy()):
        every = [one for each in twin.values() for one in each]
        assert sorted(found.all()) == sorted(every)
        assert set(found.ledgers()) == {one.ledger_id for one in every}
        assert all(list(found.of_ledger(ledger)) == each for ledger, each in twin.items())
        for name in ABCD:
            mine = [one for one in every if name in one.ensemble]
            assert sorted(found.of(name)) == sorted(mine)
            assert sorted(found.open_on(name)) == sorted(one for one in mine if one.open)
            assert found.bytes_of.get(name, 0) == sum(one.byte_count for one in mine)
        shapes: dict[Shape, set[int]] = {}
        for one in every:
            shapes.setdefault(Shape(one.ensemble, 3, 2, one.open, False), set()).add(one.ledger_id)
        assert found.by_shape() == shapes


LEFT: dict[str, object] = {"read_only": True, "read_only_by_change": True}
"""Left so by an earlier change."""


def test_bookie_left_read_only_by_an_earlier_change_is_released_first() -> None:
    seen = observed([CLOSED], b=LEFT)
    progress = begin(RESTART, seen)
    assert progress.quieted == {"b"}
    assert decide(RESTART, progress, seen).steps == (Resume("b"),)


@pytest.mark.parametrize("wanted", [RESTART, REMOVE, DISK])
def test_bookie_left_read_only_by_an_earlier_change_is_quieted_again_by_its_own_change(wanted: Wanted) -> None:
    """It was taken for a bookie that an operator had made read-only, and stayed so after the change."""
    seen = observed([CLOSED], a=LEFT)
    progress = begin(wanted, seen)
    assert decide(wanted, progress, seen).steps == (SetReadOnly("a"),)
    after = decide(wanted, progress.begun(SetReadOnly("a")), seen).steps
    assert after and SetReadOnly("a") not in after


# -- the placement rule


def by_rule(rule: PlacementRule, fragments: Iterable[Placed], bookies: dict[str, dict[str, object]]) -> Observed:
    seen = {name: ObservedBookie(name, **fields) for name, fields in bookies.items()}  # type: ignore[arg-type]
    return Observed(seen, Fragments(fragments), placement=rule)


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (PlacementRule("rack_aware", 2), {"rack": "{}"}),
        (PlacementRule("one_per_host"), {"host": "{}"}),
        (PlacementRule("one_per_zone"), {"labels": "{}"}),
    ],
)
def test_moves_keep_the_placement_rule(rule: PlacementRule, field: dict[str, str]) -> None:
    """The emptiest bookie shares the place of the other copy."""
    (name,) = field

    def at(place: str) -> dict[str, object]:
        return {name: {"zone": place} if name == "labels" else place}

    one = Placed(1, 0, ("a", "b"), 2, 2, False, 10)
    other = Placed(2, 0, ("d", "b"), 2, 2, False, 10)
    bookies = {"a": at("1") | QUIET, "b": at("2"), "c": at("2"), "d": at("3")}
    decision = decide(REMOVE, Progress({"a": Before(1, 0)}, frozenset("a")), by_rule(rule, [one, other], bookies))
    assert [step.target for step in decision.steps if isinstance(step, Move)] == ["d"]
    del bookies["d"]
    decision = decide(REMOVE, Progress({"a": Before(1, 0)}, frozenset("a")), by_rule(rule, [one], bookies))
    assert decision.steps == () and f"by placement {rule}" in "; ".join(decision.waits)


def test_last_known_rack_of_a_bookie_that_is_down_counts_for_moves() -> None:
    one = Placed(1, 0, ("a", "b", "e"), 3, 2, False, 10)
    bookies = {
        "a": {"rack": "1"} | QUIET,
        "b": {"rack": "1"},
        "c": {"rack": "1"},
        "e": {"rack": "2", "registered": False, "settled": False},
    }
    seen = by_rule(PlacementRule("rack_aware", 2), [one], bookies)
    moves, stuck = evacuation(seen, "a", [one], ["c"], 10)
    assert [move.target for move in moves] == ["c"] and stuck is None
    bookies["e"]["rack"] = "1"
    bookies["a"]["rack"] = "2"
    moves, stuck = evacuation(by_rule(PlacementRule("rack_aware", 2), [one], bookies), "a", [one], ["c"], 10)
    assert moves == [] and stuck == one

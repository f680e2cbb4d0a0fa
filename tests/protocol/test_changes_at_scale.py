"""Whole changes of large clusters by the real planner: moved bytes, balance at the end, and the copies left meanwhile."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bookspark.protocol.changes.foresight import foreseen
from bookspark.protocol.changes.observed import Fragments, Observed, ObservedBookie, Placed
from bookspark.protocol.changes.steps import Decision, Restart
from bookspark.protocol.changes.wanted import Wanted, begin
from tests.protocol.changes_at_scale import change, cluster, grow, move, shrink, upgrade

COUNTS = 60, 5_000


def test_upgrade_moves_no_copies_and_restarts_each_bookie_once() -> None:
    figures = upgrade(*COUNTS)
    assert figures.taken_down == 60 and figures.moves == 0
    assert figures.least_copies_over_ack_quorum >= 0


def test_removed_bookies_move_each_copy_once() -> None:
    figures, ratio = shrink(*COUNTS)
    assert ratio <= 1.1 and figures.most_bytes <= 1.2


def test_new_bookies_get_an_even_share_with_minimal_moves() -> None:
    figures, ratio = grow(*COUNTS)
    assert ratio <= 1.1 and figures.most_bytes / figures.fewest_bytes <= 1.2


def test_moved_bookie_gives_its_copies_to_the_new_bookie() -> None:
    figures, ratio = move(*COUNTS)
    assert ratio <= 1.1 and figures.taken_down == 1


def test_moved_copies_share_hosts_hardly_more_than_before() -> None:
    seen = cluster(30, 2_000, hosts=10)

    def shared() -> int:
        hosts = {name: one.host for name, one in seen.bookies.items()}
        return sum(len(one.ensemble) - len({hosts[b] for b in one.ensemble}) for one in seen.fragments.all())

    before = shared()
    change(Wanted(remove=frozenset(["bookie-0000", "bookie-0001"])), seen)
    assert shared() <= before + 5


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_change_of_any_cluster_ends_or_gives_a_reason(data: st.DataObject) -> None:
    names = [f"b{k}" for k in range(data.draw(st.integers(1, 7)))]
    fragments = []
    for ledger_id in range(data.draw(st.integers(0, 8))):
        size = data.draw(st.integers(1, len(names)))
        ensemble = tuple(data.draw(st.permutations(names))[:size])
        write_quorum = data.draw(st.integers(1, size))
        ack_quorum = data.draw(st.integers(1, write_quorum))
        is_open = data.draw(st.booleans())
        fragments.append(Placed(ledger_id, 0, ensemble, write_quorum, ack_quorum, is_open, 0 if is_open else 7))
    subset = st.sets(st.sampled_from(names)).map(frozenset)
    remove = data.draw(subset)
    restart = data.draw(subset) - remove
    wanted = Wanted(restart=restart, remove=remove, balance=data.draw(st.booleans()))
    down = data.draw(subset)
    bookies = {
        name: ObservedBookie(
            name, registered=name not in down, settled=name not in down, incarnation=int(name not in down)
        )
        for name in names
    }
    seen = Observed(bookies, Fragments(fragments))
    *steps, end = foreseen(wanted, begin(wanted, seen), seen)
    assert isinstance(end, Decision)
    if end.complete:
        assert {step.bookie_id for step in steps if isinstance(step, Restart)} >= restart
    else:
        assert end.waits or end.refusals

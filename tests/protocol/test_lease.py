"""The lease's transition table, sentence by sentence, and its laws over random orders of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookspark.protocol.bookie.lease import (
    Action,
    Claim,
    Drop,
    End,
    Event,
    Grant,
    Lease,
    LeaseState,
    Refuse,
    Stop,
    Tick,
)

FIRST, SECOND = 1, 2


def lease() -> Lease:
    return Lease(lease_seconds=60.0, now=100.0)


def held() -> Lease:
    held = lease()
    assert held.step(Claim(FIRST, "task 0"), 101.0) == [Grant(FIRST)]
    return held


def test_unclaimed_bookie_stops_after_the_lease_time() -> None:
    unclaimed = lease()
    assert unclaimed.deadline == 160.0
    assert unclaimed.step(Tick(), 159.9) == []
    [end] = unclaimed.step(Tick(), 160.0)
    assert isinstance(end, End) and "60 s" in end.why
    assert unclaimed.state is LeaseState.STOPPING and unclaimed.deadline is None


def test_held_lease_has_no_deadline() -> None:
    assert held().deadline is None
    assert held().step(Tick(), 1e9) == []


def test_claim_of_a_held_lease_is_refused_with_the_holders_name() -> None:
    assert held().step(Claim(SECOND, "task 1"), 102.0) == [Refuse(SECOND, "the lease is held by task 0", "task 0")]


def test_foreground_bookie_holds_its_own_lease_until_stopped() -> None:
    own = Lease(60.0, 100.0, "itself")
    assert own.deadline is None and own.step(Tick(), 1e9) == []
    assert own.step(Claim(FIRST, "task 0"), 1e9) == [Refuse(FIRST, "the lease is held by itself", "itself")]
    assert own.step(Drop(FIRST), 1e9) == [] and own.state is LeaseState.HELD
    [end] = own.step(Stop("SIGTERM"), 1e9)
    assert isinstance(end, End) and own.state is LeaseState.STOPPING


def test_holder_may_claim_again_under_another_name() -> None:
    same = held()
    assert same.step(Claim(FIRST, "task 7"), 102.0) == [Grant(FIRST)]
    assert same.holder == "task 7"


def test_dropped_lease_counts_down_and_can_be_claimed() -> None:
    dropped = held()
    assert dropped.step(Drop(FIRST), 200.0) == []
    assert (dropped.state, dropped.deadline, dropped.holder) == (LeaseState.UNCLAIMED, 260.0, "")
    assert dropped.step(Claim(SECOND, "task 1"), 259.9) == [Grant(SECOND)]
    assert dropped.deadline is None


def test_connection_without_the_lease_drops_nothing() -> None:
    still = held()
    assert still.step(Drop(SECOND), 200.0) == []
    assert still.state is LeaseState.HELD


def test_claim_after_the_deadline_is_refused_even_without_a_tick() -> None:
    late = lease()
    end, refuse = late.step(Claim(FIRST, "task 0"), 160.0)
    assert isinstance(end, End)
    assert refuse == Refuse(FIRST, "the bookie is stopping", "")


def test_stopping_bookie_refuses_claims_and_ends_once() -> None:
    stopping = held()
    assert stopping.step(Stop("SIGTERM"), 102.0) == [End("SIGTERM")]
    assert stopping.step(Stop("again"), 103.0) == []
    assert stopping.step(Drop(FIRST), 104.0) == []
    assert stopping.step(Tick(), 1e9) == []
    assert stopping.step(Claim(SECOND, "task 1"), 105.0) == [Refuse(SECOND, "the bookie is stopping", "")]


_connections = st.integers(1, 3)
_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Claim, _connections, st.sampled_from(["task 0", "task 1"])),
    st.builds(Drop, _connections),
    st.just(Tick()),
    st.builds(Stop, st.just("SIGTERM")),
)


@given(st.lists(st.tuples(_events, st.floats(0, 40)), max_size=40))
def test_lease_keeps_its_laws_in_every_order_of_events(events: list[tuple[Event, float]]) -> None:
    now, subject, owner, ends = 100.0, lease(), None, 0
    for event, passed in events:
        now += passed
        actions: list[Action] = subject.step(event, now)
        for action in actions:
            match action:
                case Grant(connection):
                    assert ends == 0, "adopted after its end"
                    assert owner in (None, connection), "granted to two"
                    owner = connection
                case End():
                    ends += 1
                    owner = None
        if isinstance(event, Drop) and event.connection == owner:
            owner = None
        assert ends <= 1
        assert (subject.state is LeaseState.HELD) == (owner is not None)
        assert (subject.state is LeaseState.STOPPING) == (ends == 1)
        assert (subject.deadline is not None) == (subject.state is LeaseState.UNCLAIMED)
        if isinstance(event, Claim):
            assert any(isinstance(action, Grant | Refuse) for action in actions), "a claim without an answer"

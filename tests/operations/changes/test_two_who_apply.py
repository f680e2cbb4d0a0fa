"""A process that applies a change, stands still before one of its requests, and wakes after another has gone on or given up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from bookspark.errors import ConfigurationError, MetadataVersionError
from bookspark.operations.changes.applying import Applying
from bookspark.operations.changes.change_record import ChangeState, Kept, new_record
from bookspark.operations.changes.hands import AskOperator, Request
from bookspark.protocol.bookie.read_only_switch import ReadOnlySwitched
from bookspark.protocol.changes.wanted import Before, Progress, Wanted
from tests.local_hands import LocalHands
from tests.operations.changes import two_processes
from tests.operations.changes.two_processes import Cluster, Process

RESTART = Wanted(restart=frozenset("a"))
PAUSES_MAX = 20
"""More pauses than the second process makes if it need not wait for the first."""
AWAKE_REQUESTS = 60
"""Requests of the first process between its waking and the second one's next step."""


def schedule(requests: int, wakes_at: int, successor: Callable[[Applying], object]) -> tuple[Cluster, bool, int]:
    """The first process stands still after so many requests; ``successor`` follows, and restarts the other bookies. The first
    process wakes before the second one's ``wakes_at``-th start of a bookie. Returns the cluster, whether the first process was
    still at work, and the number of starts."""
    cluster, first, second = Cluster(), Process(requests), Process()
    client, applying = cluster.applying(first)

    def apply() -> None:
        with applying:
            applying.begin(RESTART)
            applying.run()

    first.begin(apply)
    stood = not first.go_on(0)
    client.metadata.expire()
    starts = 0

    def start() -> None:
        nonlocal starts
        starts += 1
        if starts == wakes_at:
            first.go_on(AWAKE_REQUESTS)

    second.starts, second.wait = start, lambda: first.go_on(1)
    try:
        follow(cluster, first, second, successor)
    except MetadataVersionError:
        # The first process stood still before it read the record for the first time. So it took the change over.
        assert first.go_on() and isinstance(first.error, ConfigurationError | None)
        follow(cluster, first, second, successor)
    if not first.go_on(2000):
        applying.stop()
        assert first.go_on()
    assert isinstance(first.error, MetadataVersionError | ConfigurationError | None), first.error
    return cluster, stood, starts


class Pauses(threading.Event):
    """The pauses of the second process. In a long wait, each lets the first process make a request."""

    def __init__(self, first: Process) -> None:
        super().__init__()
        self._first, self._count = first, 0

    def wait(self, timeout: float | None = None) -> bool:
        self._count += 1
        if self._count > PAUSES_MAX:
            self._first.go_on(1)
        return super().wait(timeout)


def follow(cluster: Cluster, first: Process, second: Process, successor: Callable[[Applying], object]) -> None:
    with cluster.applying(second)[1] as follower:
        follower._stopping = Pauses(first)
        record = Kept(cluster.store).read()
        if record is not None and record.under_way:
            successor(follower)
        follower.begin(Wanted(restart=frozenset("bc")))
        assert follower.run().state is ChangeState.COMPLETE


def goes_on(follower: Applying) -> None:
    assert follower.run().state is ChangeState.COMPLETE


def gives_up(follower: Applying) -> None:
    follower.give_up()
    assert follower.run().state is ChangeState.GIVEN_UP


def broken(successor: Callable[[Applying], object]) -> Iterator[str]:
    """Broken promises, over all requests of the first process and all starts of bookies by the second one."""
    requests, stood = 0, True
    while stood:
        wakes_at = starts = 1
        while wakes_at <= starts + 1:
            cluster, stood, starts = schedule(requests, wakes_at, successor)
            told = f"first process stood still after {requests} requests, and woke before start {wakes_at} of a bookie"
            yield from (f"{one}: {told}" for one in cluster.broken)
            for bookie in cluster.bookies.values():
                if not bookie.up or bookie.switch.read_only:
                    yield f"{bookie.bookie_id} is left {'read-only' if bookie.up else 'down'}: {told}"
            wakes_at += 1
        requests += 1
    assert requests > 50


@pytest.mark.parametrize("successor", [goes_on, gives_up])
def test_process_that_stood_still_makes_no_step_after_another_process_followed(
    successor: Callable[[Applying], object],
) -> None:
    """A bookie stayed read-only for good, or two bookies were down at once."""
    assert list(broken(successor)) == []


def test_schedules_detect_bookies_that_obey_older_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    def obeys(last: ReadOnlySwitched, read_only: bool, order: int = 0) -> ReadOnlySwitched:
        return ReadOnlySwitched(last.number + 1, read_only)

    monkeypatch.setattr(two_processes, "switched", obeys)
    assert any("is left read-only" in one for one in broken(gives_up))


def test_schedules_detect_hands_that_note_before_they_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalHands.do

    def noted_before(hands: LocalHands, request: Request, note: Callable[[], None]) -> None:
        note()
        real(hands, request, lambda: None)

    monkeypatch.setattr(LocalHands, "do", noted_before)
    assert any("another bookie is down" in one for one in broken(gives_up))


def test_schedules_detect_a_successor_that_does_not_wait_for_a_request_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LocalHands, "seen", lambda hands, request: None)
    assert any("another bookie is down" in one for one in broken(gives_up))


def test_change_goes_on_after_a_restore_of_older_metadata() -> None:
    """The bookies have obeyed higher orders than the restored record has."""
    cluster = Cluster()
    cluster.bookies["a"].switch = ReadOnlySwitched(1, False, order=50)
    with cluster.applying(Process())[1] as applying:
        applying.begin(RESTART)
        assert applying.run().order > 50
    assert cluster.bookies["a"].incarnation == 2 and not cluster.bookies["a"].switch.read_only


def test_give_up_withdraws_the_request_of_an_earlier_process() -> None:
    cluster = Cluster()
    told: list[str] = []
    asked = Progress({"a": Before(1, 0)}, away=frozenset("a"))
    Kept(cluster.store).write(new_record(RESTART, asked, 0))
    client = cluster.applying(Process())[0]
    with Applying(client, AskOperator(told.append), two_processes.QUICK, lambda _: None) as second:  # type: ignore[arg-type]
        second.give_up()
        assert second.run().state is ChangeState.GIVEN_UP
    assert told == ["don't do this any more: restart a (the change is given up)"]

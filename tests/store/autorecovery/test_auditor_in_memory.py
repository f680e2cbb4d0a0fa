"""The auditor over metadata in memory, with lost sessions and lost answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.store.autorecovery.auditor import Auditor
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.metadata.autorecovery.auditors import Auditors, AuditorState
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from tests.awaiting import SECONDS_MAX, await_that
from tests.store.autorecovery.kit import Cluster

FOR_EVER = 3600.0
SECONDS = SECONDS_MAX
Start = Callable[..., Auditor]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.close_ledger(1)
    return made


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an auditor of a cluster."""
    with ExitStack() as stack:

        def started(cluster: Cluster, name: str = "auditor-1") -> Auditor:
            options = {"lost_bookie_delay_seconds": FOR_EVER, "check_interval_hours": 0.0}
            config = AutorecoveryConfig(**options, retry_seconds=0.01, poll_seconds=0.05)
            running = Auditor(cluster, config, name)  # type: ignore[arg-type]
            running.start()
            stack.callback(running.stop)
            return running

        yield started


def test_auditor_takes_over_from_a_stopped_auditor(cluster: Cluster, start: Start) -> None:
    auditors = cluster.metadata.auditors
    second_cluster = Cluster(cluster)
    first = start(cluster)
    await_that(lambda: auditors.auditor() == "auditor-1")
    start(second_cluster, "auditor-2")
    assert first.stop()
    await_that(lambda: auditors.auditor() == "auditor-2")
    await_that(auditors.state)


def test_auditor_with_a_lost_session_is_elected_again(cluster: Cluster, start: Start) -> None:
    auditors = cluster.metadata.auditors
    start(cluster)
    await_that(auditors.state)
    tree = cluster.metadata._tree()
    # Act as the end of a session. Its state goes first, as the next auditor may publish once the election is gone.
    for path in ("auditorstates/auditor-1", "auditorelection"):
        tree.delete(path)
    await_that(lambda: auditors.auditor() == "auditor-1")
    await_that(auditors.state)


def test_new_auditor_publishes_no_state_before_its_first_pass(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new auditor published that no bookie was away, although it had not looked yet."""
    auditors, looks, go_on = cluster.metadata.auditors, threading.Event(), threading.Event()
    bookies = cluster.metadata.bookies

    def held_up() -> dict[str, BookieRegistration]:
        looks.set()
        assert go_on.wait(SECONDS)
        return bookies()

    monkeypatch.setattr(cluster.metadata, "bookies", held_up)
    cluster.metadata.unregister_bookie("a")
    start(cluster)
    assert looks.wait(SECONDS)
    told_before = auditors.auditor(), auditors.state()
    go_on.set()
    assert told_before == ("auditor-1", None)
    assert set(await_that(auditors.state).waiting) == {"a"}


def test_auditor_publishes_a_state_again_after_a_store_failure(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An auditor whose first state was lost published nothing until a bookie went away."""
    failures, publish = iter(range(1)), Auditors.publish_state

    def publish_state(self: Auditors, state: AuditorState) -> None:
        if next(failures, None) is not None:
            raise MetadataStoreError("publishing: no answer")
        publish(self, state)

    monkeypatch.setattr(Auditors, "publish_state", publish_state)
    start(cluster)
    await_that(cluster.metadata.auditors.state)


def test_store_outage_does_not_restart_the_delay_of_a_lost_bookie(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditors = cluster.metadata.auditors
    start(cluster)
    await_that(auditors.state)
    cluster.metadata.unregister_bookie("a")
    before = await_that(lambda: (state := auditors.state()) and state.waiting)
    failures = iter(range(5))
    answers = cluster.metadata.list_cookies

    def list_cookies() -> list[str]:
        if next(failures, None) is not None:
            raise MetadataStoreError("listing the cookies: no answer")
        return answers()

    monkeypatch.setattr(cluster.metadata, "list_cookies", list_cookies)
    await_that(lambda: next(failures, None) is None)
    auditors.trigger()
    await_that(lambda: auditors.triggered() is None)
    state = auditors.state()
    assert state is not None and state.waiting == before
    auditors.set_delay(0)
    await_that(lambda: cluster.found())


def test_auditor_marks_a_lost_bookie_after_a_store_failure(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(range(3))
    answers = cluster.metadata.list_ledgers

    def list_ledgers() -> list[int]:
        if next(failures, None) is not None:
            raise MetadataStoreError("listing the ledgers: no answer")
        return answers()

    monkeypatch.setattr(cluster.metadata, "list_ledgers", list_ledgers)
    auditors = cluster.metadata.auditors
    auditors.set_delay(0)
    start(cluster)
    await_that(auditors.state)
    cluster.metadata.unregister_bookie("a")
    await_that(lambda: set(cluster.found()) == {1})
    cluster.metadata.register_bookie(BookieRegistration("a", "h:1", 2))
    await_that(lambda: (state := auditors.state()) and state.lost == ())


def test_only_the_elected_auditor_reports_open_ledgers(cluster: Cluster, start: Start) -> None:
    cluster.metadata.create_ledger(LedgerMetadata(2, 3, 3, 2, (Fragment(0, ("a", "b", "c")),)))
    first = start(cluster)
    await_that(lambda: first.figures().get("bookspark_autorecovery_open_ledgers") == 1)
    second = start(Cluster(cluster), "auditor-2")
    assert second.figures() == {}
    assert first.stop()
    await_that(lambda: second.figures().get("bookspark_autorecovery_open_ledgers") == 1)

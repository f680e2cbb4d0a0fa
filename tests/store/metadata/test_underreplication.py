"""Underreplication tasks and the auditors' documents: on ZooKeeper, also in BookKeeper's formats, and in memory."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator

import pytest

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.protocol.repair.underreplication_task import Mark, Missed, Reason
from bookspark.store.metadata.autorecovery.auditors import AuditorState, CheckReport
from bookspark.store.metadata.autorecovery.underreplication_tasks import Progress, TaskPicker, Underreplication
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.store.metadata.kit import CREATE, EVENT_SECONDS, MULTI, LossyProxy, begun, clients, ledger

LOST = {"bookie-1": Reason.LOST}


@pytest.fixture(params=["zookeeper", "bookkeeper", "memory"])
def stores(request: pytest.FixtureRequest) -> Iterator[Callable[[], MetadataStore]]:
    """Makes clients of the same cluster, each with its own session; ``bookkeeper``: on ZooKeeper, in BookKeeper's formats."""
    manager = "bookkeeper" if request.param == "bookkeeper" else "hierarchical"
    with clients("" if request.param == "memory" else request.getfixturevalue("chroot"), manager) as new:
        yield new


def in_bookkeepers_formats(store: MetadataStore) -> bool:
    return isinstance(store, ZooKeeperStore) and store.layout.bookkeepers_formats


@pytest.fixture
def store(stores: Callable[[], MetadataStore]) -> MetadataStore:
    return stores()


@pytest.fixture
def tasks(store: MetadataStore) -> Underreplication:
    return store.underreplication


@pytest.fixture
def others(stores: Callable[[], MetadataStore], store: MetadataStore) -> Underreplication:
    """The tasks of the same cluster, through another session."""
    return stores().underreplication


# -- tasks


def test_without_marks_there_are_no_tasks(tasks: Underreplication) -> None:
    assert tasks.list_tasks() == [] and tasks.task(1) is None and tasks.holders() == {}
    assert tasks.take(1, "worker") is None and tasks.holders() == {}


def test_marks_become_tasks_that_every_session_sees(tasks: Underreplication, others: Underreplication) -> None:
    ids = [0, 7, 65535, 65536, 70000, 9_999_999_999]
    tasks.mark(Mark(i, LOST, "bookie-1 is gone") for i in ids)
    assert others.list_tasks() == ids
    found = others.task(65536)
    assert found is not None and found.of(Reason.LOST) == ("bookie-1",) and found.of(Reason.LACKS) == ()
    assert (found.ledger_id, found.detail, found.marks, found.attempts) == (65536, "bookie-1 is gone", 1, 0)
    assert found.marked_at_ms > 0


def test_more_marks_than_a_group_holds_become_tasks(tasks: Underreplication) -> None:
    tasks.mark(Mark(i, LOST) for i in range(600))
    assert tasks.list_tasks() == list(range(600))


def test_marks_of_the_same_ledger_merge(tasks: Underreplication, others: Underreplication) -> None:
    tasks.mark([Mark(1, LOST, "gone"), Mark(1, {"bookie-2": Reason.LACKS})])
    others.mark([Mark(1, {"bookie-3": Reason.MISPLACED, "bookie-2": Reason.LOST}, "and more")])
    found = tasks.task(1)
    assert found is not None
    assert found.bookies == {"bookie-1": Reason.LOST, "bookie-2": Reason.LOST, "bookie-3": Reason.MISPLACED}
    assert (found.detail, found.marks) == ("and more", 3)


def test_concurrent_marks_merge(tasks: Underreplication, others: Underreplication) -> None:
    def mark(store: Underreplication, bookie: str) -> None:
        for _ in range(5):
            store.mark([Mark(1, {bookie: Reason.LOST})])

    threads = [threading.Thread(target=mark, args=each) for each in ((tasks, "bookie-1"), (others, "bookie-2"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(EVENT_SECONDS)
    found = tasks.task(1)
    assert found is not None and found.marks == 10 and set(found.bookies) == {"bookie-1", "bookie-2"}


def test_mark_with_an_invalid_ledger_id_is_refused(tasks: Underreplication) -> None:
    with pytest.raises(ConfigurationError, match="ledger id"):
        tasks.mark([Mark(-1, LOST)])


def test_task_write_whose_reply_is_lost_is_done_once(chroot: str) -> None:
    servers, _, path = chroot.partition("/")
    with LossyProxy(servers) as proxy, contextlib.closing(begun(f"{proxy.address}/{path}")) as store:
        tasks = store.underreplication
        proxy.lose_reply(CREATE)
        tasks.mark(Mark(i, LOST) for i in range(3))
        assert tasks.list_tasks() == [0, 1, 2]
        proxy.lose_reply(CREATE)
        taken = tasks.take(1, "worker")
        assert taken is not None, "the lock is known again by its token"
        proxy.lose_reply(MULTI)
        assert tasks.done(taken)
        proxy.lose_reply(MULTI)
        tasks.mark([Mark(2, LOST)])
        assert tasks.list_tasks() == [0, 2] and proxy.lost == 4


# -- locks


def test_task_is_taken_by_a_single_worker_at_a_time(tasks: Underreplication, others: Underreplication) -> None:
    tasks.mark([Mark(1, LOST)])
    taken = tasks.take(1, "worker-1")
    assert taken is not None and taken.ledger_id == 1 and taken.task == tasks.task(1)
    assert others.take(1, "worker-2") is None
    assert others.holders() == {1: "worker-1"}
    assert tasks.take(1, "worker-1") == taken, "nobody locks itself out when an answer was lost"
    tasks.release(taken)
    assert others.holders() == {} and others.task(1) == taken.task
    assert others.take(1, "worker-2") is not None


def test_a_lock_ends_with_its_session(tasks: Underreplication, stores: Callable[[], MetadataStore]) -> None:
    doomed = stores()
    tasks.mark([Mark(1, LOST)])
    assert doomed.underreplication.take(1, "worker-1") is not None
    doomed.close()
    assert tasks.take(1, "worker-2") is not None, "the task of a worker that died is another's"


class Interrupted:
    """A tree whose calls of ``method`` fail, either before the call or (``made``) after it, as if its answer were lost."""

    def __init__(self, tree, monkeypatch) -> None:
        self._tree, self._patch = tree, monkeypatch

    def fail(self, method: str, path: str, *, made: bool = False) -> None:
        real = getattr(self._tree, method)

        def failing(at, *arguments, **options):
            if not at.startswith(path):
                return real(at, *arguments, **options)
            if made:
                real(at, *arguments, **options)
            raise MetadataStoreError("connection lost")

        self._patch.setattr(self._tree, method, failing)

    def work(self) -> None:
        self._patch.undo()


@pytest.fixture
def interrupted(tasks: Underreplication, monkeypatch) -> Interrupted:
    return Interrupted(tasks._tree, monkeypatch)


ENDS = {
    "release": lambda tasks, taken: tasks.release(taken),
    "failed": lambda tasks, taken: tasks.failed(taken, "no", 0.0),
    "done": lambda tasks, taken: tasks.done(taken),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("method", "path"), [("read", "locks"), ("delete", "locks"), ("write", ""), ("delete", "")])
def test_failed_release_of_a_lock_orphans_no_task(
    tasks: Underreplication, others: Underreplication, interrupted: Interrupted, end: str, method: str, path: str
) -> None:
    """No worker took the task again while that session lived: its lock still stood, so the picker skipped it."""
    tasks.mark([Mark(1, LOST)])
    taken = tasks.take(1, "worker-1")
    assert taken is not None
    interrupted.fail(method, path)
    with contextlib.suppress(MetadataStoreError):
        ENDS[end](tasks, taken)
    mine, another = TaskPicker(tasks), TaskPicker(others)
    if (method, path) == ("delete", "locks") and others.task(1) is not None:
        assert mine.next() == 1, "it may be taken although the lock stands"
        again = tasks.take(1, "worker-1")
        assert again is not None
        with contextlib.suppress(MetadataStoreError):
            tasks.release(again)
    interrupted.work()
    tasks.mark([Mark(1, LOST)])
    tasks.release_left()
    assert others.holders() == {}
    assert another.next() == 1 and others.take(1, "worker-2") is not None
    assert mine.next() is None


@pytest.mark.parametrize("made", [False, True])
def test_lock_request_with_unknown_outcome_orphans_no_task(
    tasks: Underreplication, others: Underreplication, interrupted: Interrupted, made: bool
) -> None:
    tasks.mark([Mark(1, LOST)])
    interrupted.fail("create_and_read", "locks", made=made)
    with pytest.raises(MetadataStoreError):
        tasks.take(1, "worker-1")
    interrupted.work()
    assert TaskPicker(tasks).next() == 1
    assert tasks.take(1, "worker-1") is not None
    tasks.release_left()
    assert others.holders() == {1: "worker-1"}, "a lock that was taken after all is kept"


def test_late_release_keeps_a_lock_taken_by_another_worker(tasks: Underreplication, others: Underreplication) -> None:
    tasks.mark([Mark(1, LOST)])
    first = tasks.take(1, "worker-1")
    assert first is not None
    tasks.release(first)
    assert others.take(1, "worker-2") is not None
    tasks.release(first)
    assert tasks.holders() == {1: "worker-2"}


def test_completed_task_is_removed(tasks: Underreplication, others: Underreplication) -> None:
    tasks.mark([Mark(1, LOST), Mark(2, LOST)])
    taken = tasks.take(1, "worker")
    assert taken is not None and tasks.done(taken)
    assert others.list_tasks() == [2] and others.holders() == {}
    assert tasks.done(taken), "twice is no error"


@pytest.mark.parametrize("bookie", ["bookie-1", "bookie-2"])
def test_a_replica_reported_damaged_during_its_repair_is_repaired_again(
    tasks: Underreplication, others: Underreplication, bookie: str
) -> None:
    tasks.mark([Mark(1, LOST)])
    taken = tasks.take(1, "worker")
    assert taken is not None
    others.mark([Mark(1, {bookie: Reason.LOST})])
    assert not tasks.done(taken)
    again = tasks.take(1, "worker")
    assert again is not None and bookie in again.task.bookies


def test_failed_task_is_postponed_with_its_reason_until_a_new_mark(
    tasks: Underreplication, others: Underreplication
) -> None:
    tasks.mark([Mark(1, LOST)])
    taken = tasks.take(1, "worker")
    assert taken is not None
    tasks.failed(taken, "entries 3..4 can't be read", 1000.0)
    found = others.task(1)
    assert found is not None and (found.attempts, found.error) == (1, "entries 3..4 can't be read")
    assert not others.due(found) and others.holders() == {}
    others.mark([Mark(1, LOST)])
    found = others.task(1)
    assert found is not None and not others.due(found), "the same mark again is no news"
    others.mark([Mark(1, {"bookie-2": Reason.LOST})])
    found = others.task(1)
    assert found is not None and others.due(found) and found.error, "another bookie is"


def test_task_keeps_its_uncopied_entries_until_a_new_mark(tasks: Underreplication, others: Underreplication) -> None:
    tasks.mark([Mark(1, LOST)])
    taken = tasks.take(1, "worker")
    assert taken is not None
    missed = (Missed(3, 4, True, (), {"a": "I/O error"}), Missed(9, 9, False, ("b",), {"b": "not reachable"}))
    tasks.failed(taken, "entries 3..4 can't be read", 0.0, missed)
    found = others.task(1)
    assert found is not None and found.missed == missed
    others.mark([Mark(1, LOST)])
    found = tasks.task(1)
    assert found is not None and found.missed == missed
    others.mark([Mark(1, {"bookie-2": Reason.LOST})])
    found = tasks.task(1)
    assert found is not None and found.missed == ()


def test_failed_task_with_a_new_mark_is_not_postponed(tasks: Underreplication) -> None:
    tasks.mark([Mark(1, LOST)])
    taken = tasks.take(1, "worker")
    assert taken is not None
    tasks.mark([Mark(1, {"bookie-2": Reason.LACKS})])
    tasks.failed(taken, "no bookie", 1000.0)
    found = tasks.task(1)
    assert found is not None and tasks.due(found) and (found.attempts, found.error) == (1, "no bookie")
    assert set(found.bookies) == {"bookie-1", "bookie-2"}


def test_picker_chooses_due_and_unlocked_tasks(tasks: Underreplication, others: Underreplication) -> None:
    tasks.mark(Mark(i, LOST) for i in range(5))
    assert others.take(0, "another") is not None
    put_off = tasks.take(1, "worker")
    assert put_off is not None
    tasks.failed(put_off, "no", 1000.0)
    picker = TaskPicker(tasks)
    picked = [picker.next(exclude=(2,)), picker.next(exclude=(2,))]
    assert sorted(picked) == [3, 4]
    for ledger_id in picked:
        taken = tasks.take(ledger_id, "worker")
        assert taken is not None and tasks.done(taken)
    assert picker.next(exclude=(2,)) is None
    assert picker.next() == 2


# -- the switch, and waiting workers


def test_autorecovery_switch_is_seen_by_every_session(tasks: Underreplication, others: Underreplication) -> None:
    assert tasks.enabled()
    for _ in range(2):
        others.disable()
        assert not tasks.enabled()
    for _ in range(2):
        tasks.enable()
        assert others.enabled()


def test_no_task_is_taken_while_autorecovery_is_disabled(tasks: Underreplication, others: Underreplication) -> None:
    tasks.mark(Mark(i, LOST) for i in range(3))
    picker = TaskPicker(tasks)
    first = picker.next()
    assert first is not None
    others.disable()
    assert tasks.take(first, "worker") is None and others.holders() == {}
    picker.forget()
    assert picker.next() is None
    others.enable()
    assert picker.next() is not None and tasks.take(first, "worker") is not None


def test_waiting_worker_wakes_on_marks_and_on_the_switch(tasks: Underreplication, others: Underreplication) -> None:
    assert tasks.wait(0), "the first time: it has to look"
    assert not tasks.wait(0)
    for change in (
        lambda: others.mark([Mark(1, LOST)]),
        lambda: others.mark([Mark(1, LOST)]),
        others.disable,
        others.enable,
    ):
        change()
        assert tasks.wait(EVENT_SECONDS)
    assert not tasks.wait(0)
    tasks.wake()
    assert tasks.wait(EVENT_SECONDS)


def test_wait_on_a_closed_store_raises(store: MetadataStore) -> None:
    tasks = store.underreplication
    store.close()
    with pytest.raises(MetadataStoreError):
        tasks.wait(0)


def test_progress_lasts_as_long_as_its_workers_session(
    tasks: Underreplication, stores: Callable[[], MetadataStore]
) -> None:
    doomed = stores()
    doomed.underreplication.publish_progress("worker/1", Progress(1.0, 2, 3, 4))
    doomed.underreplication.publish_progress("worker/1", Progress(2.0, 3, 4, 5, 6))
    tasks.publish_progress("worker/2", Progress())
    assert tasks.progress() == {"worker/1": Progress(2.0, 3, 4, 5, 6), "worker/2": Progress()}
    doomed.close()
    assert tasks.progress() == {"worker/2": Progress()}


# -- auditors


def test_elected_auditor_stays_until_its_session_ends(
    store: MetadataStore, stores: Callable[[], MetadataStore]
) -> None:
    doomed = stores()
    assert store.auditors.auditor() is None
    lock = doomed.auditors.elect("auditor-1")
    assert lock is not None and doomed.auditors.elected(lock)
    waiting = store.auditors
    assert waiting.wait(0)
    assert waiting.elect("auditor-2") is None and store.auditors.auditor() == "auditor-1"
    doomed.close()
    assert waiting.wait(EVENT_SECONDS)
    second = waiting.elect("auditor-2")
    assert second is not None and waiting.elect("auditor-2") == second
    store.auditors.resign(second)
    assert store.auditors.auditor() is None and not store.auditors.elected(second)


def test_delay_is_shared_by_all_auditors(store: MetadataStore, stores: Callable[[], MetadataStore]) -> None:
    other, waiting = stores().auditors, store.auditors
    assert waiting.wait(0) and waiting.delay_seconds() is None
    for seconds in (30, 0.5, 0):
        other.set_delay(seconds)
        # BookKeeper's format has whole seconds.
        told = math.ceil(seconds) if in_bookkeepers_formats(store) else seconds
        assert waiting.wait(EVENT_SECONDS) and waiting.delay_seconds() == told
    other.set_delay(None)
    assert waiting.delay_seconds() is None


def test_trigger_lasts_until_a_check_that_began_after_it(store: MetadataStore) -> None:
    auditors = store.auditors
    assert auditors.triggered() is None
    auditors.trigger()
    first = auditors.triggered()
    assert first is not None
    auditors.trigger()
    auditors.answer_trigger(first)
    second = auditors.triggered()
    assert second is not None, "who asked meanwhile gets a check of its own"
    auditors.answer_trigger(second)
    assert auditors.triggered() is None


def test_auditor_publishes_its_state_and_last_check(store: MetadataStore, stores: Callable[[], MetadataStore]) -> None:
    auditors, doomed = store.auditors, stores()
    assert auditors.state() is None and auditors.last_check() is None
    assert doomed.auditors.elect("auditor/1") is not None
    state = AuditorState("auditor/1", {"bookie-1": 7}, ("bookie-2",), True)
    for told in (AuditorState("auditor/1"), state):
        doomed.auditors.publish_state(told)
        assert auditors.state() == told
    for report in (CheckReport(1, 2.0, 3, 4), CheckReport(5, 6.0, 7, 8, {"bookie-1": "does not answer"})):
        auditors.note_check(report)
        assert doomed.auditors.last_check() == report
    doomed.close()
    assert auditors.state() is None and auditors.last_check() is not None


# -- many ledgers


def test_deleted_ledgers_are_left_out_when_many_are_read(store: MetadataStore) -> None:
    for ledger_id in range(5):
        store.create_ledger(ledger(ledger_id))
    store.delete_ledger(3)
    assert [one.value.ledger_id for one in store.read_ledgers(range(7), {})] == [0, 1, 2, 4]

"""Underreplication tasks: ledgers marked by auditors and repaired by replication workers.

Law: a task is removed only at the version read after its lock was taken, so a task marked again stays. A listing is whole or
raises. The locks only prevent double work; an unreleased lock is remembered and released later, and this object may take its
task meanwhile. Below ``/ledgers/underreplication``, as in BookKeeper::

    ledgers                                 its version changes with each group of marks: workers watch it
    ledgers/0000/0000/cafe/f00d/urL…        the task of ledger 0xcafef00d, ten decimal digits
    locks/urL0000000001                     ephemeral: a worker's lock on the task
    disable                                 exists while replication is switched off
    workers/<name>                          ephemeral: a worker's progress

A task's document::

    {"formatVersion": 1, "replica": {"bookie-1": "lost"}, "detail": "…", "ctime": 1700000000000, "marks": 1, "attempts": 0,
     "error": "", "notBefore": 0, "wait": 0}

If the last attempt could not copy some entries, ``formatVersion`` is 2, and ``"missed"`` has for each range of their ids
``[first, last, lost, [bookie not reached, …], {bookie: answer}]``.

In a cluster begun for BookKeeper's clients, tasks and locks are in its formats (``records.bookkeeper_texts``) for its auditor
and workers. Their workers and ours respect each other's locks, and a task marked again by either stays.

Source: ``ZkLedgerUnderreplicationManager`` of BookKeeper.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from bookspark.errors import BookKeeperError, UnreadableRecordError
from bookspark.protocol.repair.underreplication_task import Mark, Missed, Task, new_task
from bookspark.store.metadata.documents.locks import Changes, Lock, give_back, held, holder_of, new_lock, new_token
from bookspark.store.metadata.documents.tree import Tree, publish, put
from bookspark.store.metadata.records.codec import decode_task, encode_task
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.records.names import check_ledger_id, decode_name, encode_name
from bookspark.store.metadata.records.versioned import Versioned, compare_and_set
from bookspark.store.metadata.store_clock import StoreClock

DISABLE = "disable"
_LEDGERS, _LOCKS, _WORKERS = "ledgers", "locks", "workers"
_LEVELS = 4
_MARKS_AT_ONCE = 250
_READ_AT_ONCE = 100
_ATTEMPTS = 20
_TASK = re.compile(r"urL(\d{10})")

log = logging.getLogger(__name__)


class Taken(NamedTuple):
    task: Task
    version: int
    lock: Lock

    @property
    def ledger_id(self) -> int:
        return self.task.ledger_id


class Progress(msgspec.Struct, frozen=True):
    seconds: float = 0.0
    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    failed: int = 0
    clock_ahead_ms: int = 0
    """Lead of the worker's clock over the metadata store's, to the minute; below 0: lag."""


class Underreplication:
    """The tasks of one cluster, through one session. Each thread that calls ``wait`` needs an object of its own."""

    def __init__(self, tree: Tree, clock: StoreClock, bookkeepers: bool = False) -> None:
        """``bookkeepers``: write tasks and locks in BookKeeper's formats."""
        self._tree = tree
        self._bookkeepers = bookkeepers
        self._clock = clock
        self._token = new_token()
        self._changes = Changes(tree, (_LEDGERS, DISABLE))
        self._left_locks: dict[str, Lock] = {}
        """Locks, by path, whose release failed, or which may be held although the answer was lost."""

    # -- tasks

    def mark(self, marks: Iterable[Mark]) -> None:
        """Make or change the tasks of these ledgers, and wake the waiting workers."""
        rest = iter(marks)
        while group := list(islice(rest, _MARKS_AT_ONCE)):
            now_ms = self._clock.now_ms()
            documents = [(task_path(m.ledger_id), self._encoded(new_task(m, now_ms))) for m in group]
            for mark, made in zip(group, self._tree.create_each(documents), strict=True):
                if not made:
                    self._merge(mark)
            self._tree.touch(_LEDGERS)

    def task(self, ledger_id: int) -> Task | None:
        """The task of a ledger; None if it has none. Raises UnreadableRecordError."""
        found = self._read(ledger_id)
        return None if found is None else found.value

    def tasks(self, ledger_ids: Iterable[int], unreadable: dict[int, str]) -> Iterator[Task]:
        """The tasks of these ledgers, as far as they have any. Reasons of undecodable tasks go into ``unreadable``: the caller
        must report them."""
        rest = iter(ledger_ids)
        while group := list(islice(rest, _READ_AT_ONCE)):
            documents = self._tree.read_each([task_path(ledger_id) for ledger_id in group])
            for ledger_id, document in zip(group, documents, strict=True):
                try:
                    if document is not None:
                        yield decode_task(ledger_id, document)
                except UnreadableRecordError as error:
                    unreadable[ledger_id] = str(error)

    def due(self, task: Task) -> bool:
        return task.due(self._clock.now_ms())

    def due_of(self, ledger_ids: Sequence[int]) -> list[int]:
        unreadable: dict[int, str] = {}
        due = [task.ledger_id for task in self.tasks(ledger_ids, unreadable) if self.due(task)]
        # An unreadable task must not block the repair of other ledgers.
        for ledger_id, why in unreadable.items():
            log.warning("ledger %d is left out: %s", ledger_id, why)
        return due

    def list_tasks(self) -> list[int]:
        paths = [_LEDGERS]
        for _ in range(_LEVELS):
            listed = self._tree.children_of_each(paths)
            paths = [f"{path}/{name}" for path, names in zip(paths, listed, strict=True) for name in names]
        leaves = self._tree.children_of_each(paths)
        return sorted(int(found[1]) for names in leaves for name in names if (found := _TASK.fullmatch(name)))

    # -- locks

    def holders(self) -> dict[int, str]:
        """The name of the worker that holds each locked task, by ledger id."""
        names = [name for name in self._tree.children(_LOCKS) if _TASK.fullmatch(name)]
        documents = self._tree.read_each([f"{_LOCKS}/{name}" for name in names])
        found = {int(name[3:]): holder_of(document) for name, document in zip(names, documents, strict=True)}
        return {ledger_id: holder for ledger_id, holder in found.items() if holder is not None}

    def at_work(self) -> set[int]:
        """The ledgers under repair. Locks that this object failed to release don't count."""
        return self.holders().keys() - {int(path[-10:]) for path in self._left_locks.copy()}

    def take(self, ledger_id: int, holder: str) -> Taken | None:
        """Lock a task and then read it, in one round trip. None if another object holds it, the task is gone, or replication
        is switched off."""
        path = f"{_LOCKS}/{_name(ledger_id)}"
        lock = new_lock(path, holder, self._token, self._bookkeepers)
        self._left_locks.pop(path, None)
        try:
            made, (task, disabled) = self._tree.create_and_read(path, lock.document, (task_path(ledger_id), DISABLE))
            if not made and not held(self._tree, lock):
                return None
            if task is not None and disabled is None:
                return Taken(decode_task(ledger_id, task.value), task.version, lock)
        except BaseException:
            # A lost answer must not leave an unknown lock.
            self._left_locks[path] = lock
            raise
        self._release(lock)
        return None

    def release(self, taken: Taken) -> None:
        """Release the lock and leave the task as it is. Raises MetadataStoreError; then ``release_left`` releases it later."""
        self._release(taken.lock)

    def release_left(self) -> None:
        """Release the locks whose release failed before. Another failure leaves them for the next call."""
        for lock in list(self._left_locks.values()):
            try:
                self._release(lock)
            except BookKeeperError as error:
                log.warning("%s is held for nothing until it can be released: %s", lock.path, error)
                return

    def _release(self, lock: Lock) -> None:
        self._left_locks[lock.path] = lock
        give_back(self._tree, lock)
        self._left_locks.pop(lock.path, None)

    def done(self, taken: Taken) -> bool:
        """Remove the task and its lock. False if it was marked again since it was taken: then it stays."""
        path = task_path(taken.ledger_id)
        try:
            removed = self._tree.delete(path, taken.version)
            if removed:
                levels = path.split("/")[:-1]
                self._tree.forget_empty(*("/".join(levels[:n]) for n in range(len(levels), 1, -1)))
        finally:
            self.release(taken)
        return removed

    def failed(self, taken: Taken, error: str, wait_seconds: float, missed: Sequence[Missed] = ()) -> None:
        """Note the reason and ``missed`` in the task, postpone it unless it was marked again, and release the lock."""
        path, task, version = task_path(taken.ledger_id), taken.task, taken.version
        now_ms, wait_ms = self._clock.now_ms(), round(1000 * wait_seconds)
        try:
            for _ in range(_ATTEMPTS):
                if self._tree.write(path, self._encoded(task.failed(error, now_ms, wait_ms, missed)), version):
                    break
                found = self._read(taken.ledger_id)
                if found is None:
                    break
                task, version, wait_ms = found.value, found.version, 0
        finally:
            self.release(taken)

    # -- the switch, and waiting

    def enabled(self) -> bool:
        return self._tree.read(DISABLE) is None

    def enable(self) -> None:
        self._tree.delete(DISABLE)

    def disable(self) -> None:
        """Let workers begin no more repairs; current repairs are finished."""
        self._tree.create(DISABLE, b"")

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for marks or a turn of the switch since the last wait: True, and at the first call at once. False after
        ``timeout_seconds``; look for tasks then as well, because no watch reports a released lock, or a task that became due."""
        return self._changes.wait(timeout_seconds)

    def wake(self) -> None:
        self._changes.wake()

    # -- workers

    def publish_progress(self, worker: str, progress: Progress) -> None:
        publish(self._tree, f"{_WORKERS}/{encode_name(worker)}", proven_struct(progress, f"progress of {worker}"))

    def progress(self) -> dict[str, Progress]:
        """The progress of each worker. Workers with an undecodable document are left out."""
        names = self._tree.children(_WORKERS)
        documents = self._tree.read_each([f"{_WORKERS}/{name}" for name in names])
        found: dict[str, Progress] = {}
        for name, document in zip(map(decode_name, names), documents, strict=True):
            try:
                if document is not None:
                    found[name] = read_struct(document, Progress, f"progress of worker {name}")
            except UnreadableRecordError as error:
                log.warning("%s", error)
        return found

    # -- within

    def _read(self, ledger_id: int) -> Versioned[Task] | None:
        found = self._tree.read(task_path(ledger_id))
        return None if found is None else Versioned(decode_task(ledger_id, found.value), found.version)

    def _merge(self, mark: Mark) -> None:
        path = task_path(mark.ledger_id)
        compare_and_set(
            path, partial(self._tree.read, path), partial(self._marked, mark), partial(put, self._tree, path)
        )

    def _marked(self, mark: Mark, document: bytes | None) -> bytes | None:
        if document is None:
            return self._encoded(new_task(mark, self._clock.now_ms()))
        try:
            return self._encoded(decode_task(mark.ledger_id, document).marked(mark))
        except UnreadableRecordError as error:
            if error.newer:
                # The task stays: newer versions can read it.
                log.warning("ledger %d is marked already: %s", mark.ledger_id, error)
                return None
            log.warning("a damaged task is made anew: %s", error)
            return self._encoded(new_task(mark, self._clock.now_ms()))

    def _encoded(self, task: Task) -> bytes:
        return encode_task(task, self._bookkeepers)


class TaskPicker:
    """Picks the ledger whose task a worker tries next: any task recently due and unlocked, which ``take`` verifies. For one
    thread, except ``forget``."""

    def __init__(self, tasks: Underreplication) -> None:
        self._tasks = tasks
        self._candidates: list[int] = []
        self._due: list[int] = []
        """Candidates whose tasks were recently due."""
        self._forgets = False

    def next(self, exclude: Collection[int] = ()) -> int | None:
        """A ledger not in ``exclude``; None if there is none now, or replication is switched off."""
        if self._forgets:
            self._forgets, self._candidates, self._due = False, [], []
        found = self._from_candidates(exclude)
        return self._from_candidates(exclude) if found is None and self._list() else found

    def forget(self) -> None:
        """List all tasks again before the next pick. From any thread."""
        self._forgets = True

    def _list(self) -> bool:
        self._tasks.release_left()
        if not self._tasks.enabled():
            return False
        at_work = self._tasks.at_work()
        self._candidates = [ledger_id for ledger_id in self._tasks.list_tasks() if ledger_id not in at_work]
        # Spread workers over tasks.
        random.shuffle(self._candidates)
        return bool(self._candidates)

    def _from_candidates(self, exclude: Collection[int]) -> int | None:
        while self._due or self._candidates:
            if not self._due:
                together, self._candidates = self._candidates[:_READ_AT_ONCE], self._candidates[_READ_AT_ONCE:]
                self._due = self._tasks.due_of([ledger_id for ledger_id in together if ledger_id not in exclude])
            else:
                ledger_id = self._due.pop()
                if ledger_id not in exclude:
                    return ledger_id
        return None


def _name(ledger_id: int) -> str:
    return f"urL{check_ledger_id(ledger_id):010}"


def task_path(ledger_id: int) -> str:
    """The path of a ledger's task, below ``underreplication``."""
    digits = f"{check_ledger_id(ledger_id):016x}"
    return "/".join((_LEDGERS, *(digits[at : at + 4] for at in range(0, 16, 4)), _name(ledger_id)))


learn(Progress)

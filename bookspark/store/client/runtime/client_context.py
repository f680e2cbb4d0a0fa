"""A client as handles and machine drivers see it: its options, its runtime, its requests and placement.

Law: a context exists before any connection and may be copied into a forked process (Spark forks its Python workers). Each
process has its own runtime, made on first use. Handles and ``BookKeeper`` are built on the context, and unknown to it.

A client is closed, with a ResourceWarning, when neither it nor a handle of it is referred to any more, as Python does with
files. A forked process never frees its parent's runtime, because that would touch the parent's sockets.

Source: BookKeeper's ``ClientContext``.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

from bookspark.errors import BookKeeperError, MetadataVersionError, NotEnoughBookiesError, RecordFullError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.placement import Placement, Topology
from bookspark.protocol.reading.read_order import ReadOrder
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.client.runtime.calls import Calls
from bookspark.store.client.runtime.runtime import Runtime
from bookspark.store.metadata.placement_rule import read_placement
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.digests import digester, digester_without_password
from bookspark.store.wire.header import NO_KEY
from bookspark.support.threads import check_may_wait

StoreAction = act.ReadMetadata | act.WriteMetadata | act.ChooseBookies
StoreAnswer = (
    act.MetadataRead
    | act.MetadataWritten
    | act.MetadataConflict
    | act.RecordFull
    | act.MetadataFailed
    | act.BookiesChosen
    | act.NoBookies
)

_LISTED_SECONDS_AGO_MAX = 1.0
"""After the death of a bookie, thousands of open ledgers need another one. The listing also ends when the bookies change."""

_of_parents: list[Runtime] = []


class ClientContext:
    """The state of one client, in every process that uses the client. Thread-safe."""

    def __init__(self, connect: Callable[[], MetadataStore], config: ClientConfig) -> None:
        """``connect`` makes the metadata session of a process."""
        self.config = config
        self._connect = connect
        self._read_rotation = random.randrange(1 << 16)
        self._locks: dict[int, threading.RLock] = {}
        self._runtime: Runtime | None = None
        self._calls: Calls | None = None
        self.closed = False

    # -- this process

    @property
    def runtime(self) -> Runtime:
        """This process's connections and threads, made on first use.

        Raises BookKeeperError if the client was closed, MetadataStoreError if the metadata store can't be reached, and
        ConfigurationError if a file that the options name can't be used.
        """
        runtime = self._runtime
        if runtime is None or runtime.pid != os.getpid():
            if not self.closed:
                check_may_wait()
            with self._lock:
                runtime = self._this_process() or self._made()
        return runtime

    @property
    def running(self) -> Runtime | None:
        """This process's connections and threads; None if they were not made yet, or are closed."""
        runtime = self._runtime
        return runtime if runtime is not None and runtime.pid == os.getpid() else None

    def _this_process(self) -> Runtime | None:
        """The runtime of this process, if it was made. Raises BookKeeperError if the client was closed."""
        if self.closed:
            raise BookKeeperError("this client was closed; make another one")
        runtime = self._runtime
        return runtime if runtime is not None and runtime.pid == os.getpid() else None

    def _made(self) -> Runtime:
        """A new runtime. A finalizer that ran meanwhile may have made one too, or closed the client."""
        made = Runtime(self._connect, self.config)
        try:
            other = self._this_process()
        except BookKeeperError:
            made.close()
            raise
        if other is not None:
            made.close()
            return other
        if self._runtime is not None:
            _of_parents.append(self._runtime)
        self._runtime = made
        return made

    @property
    def calls(self) -> Calls:
        """This process's waiting calls in threads. Makes no connection. Raises BookKeeperError if the client was closed."""
        with self._lock:
            if self.closed:
                raise BookKeeperError("this client was closed; make another one")
            if self._calls is None or self._calls.pid != os.getpid():
                self._calls = Calls()
            return self._calls

    @property
    def store(self) -> MetadataStore:
        """The metadata store, in this process's session. Raises what ``runtime`` raises."""
        return self.runtime.store

    @property
    def _lock(self) -> threading.RLock:
        """This process's lock, because the parent's may have been held at the fork. Reentrant, because a finalizer may need
        it."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def close(self) -> None:
        """End this process's connections and threads for good. Open writers end, too."""
        check_may_wait()
        with self._lock:
            self.closed = True
            runtime, self._runtime = self._runtime, None
            calls, self._calls = self._calls, None
        if calls is not None and calls.pid == os.getpid():
            calls.close()
        if runtime is not None:
            if runtime.pid == os.getpid():
                runtime.close()
            else:
                _of_parents.append(runtime)

    def __del__(self) -> None:
        runtime: Runtime | None = getattr(self, "_runtime", None)
        calls: Calls | None = getattr(self, "_calls", None)
        if sys.is_finalizing():
            return
        if calls is not None and calls.pid == os.getpid():
            # The calls' threads would outlast the client; nothing waits for them here.
            calls.close()
        if runtime is None:
            return
        if runtime.pid != os.getpid():
            _of_parents.append(runtime)
            return
        # This may be any thread, and must not wait.
        runtime.callbacks.post(runtime.close)
        warnings.warn(
            "a BookKeeper client was not closed; use it in a with statement, or call close()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    # -- asking bookies and the metadata store

    def requests(self, metadata: LedgerMetadata, password: bytes | None) -> LedgerRequests:
        """This client's requests about one ledger. With ``password`` None, as repair has it, digests that need the password are
        not checked."""
        runtime = self.runtime
        kind = metadata.digest_type
        return LedgerRequests(
            runtime.io,
            runtime.connections,
            metadata.ledger_id,
            metadata.master_key or NO_KEY,
            digester_without_password(kind) if password is None else digester(kind, password),
            self.config.answer_timeout_seconds,
        )

    def read_order(self, delivered_by: str | None) -> ReadOrder:
        """The order in which the replicas of an entry are asked. ``delivered_by``: the bookie that the handle last read from."""
        runtime, config = self.runtime, self.config
        return ReadOrder(
            rotation=self._read_rotation,
            sticky=config.sticky_reads,
            first=delivered_by,
            near=runtime.bookies_on_this_host() if config.read_own_host_first else frozenset(),
            doubtful=frozenset(runtime.connections.quarantined()),
        )

    def answer_from_store(
        self,
        metadata: LedgerMetadata,
        action: StoreAction,
        listed_seconds_ago_max: float = _LISTED_SECONDS_AGO_MAX,
    ) -> StoreAnswer:
        """Carry out a machine's request to the metadata store, and wait for the answer. An error of the store is an answer like
        any other; after ``MetadataFailed`` nothing is known.

        ``listed_seconds_ago_max``: largest age of the listing that sound bookies are chosen from. The bookies are listed anew
        before a quarantined bookie is chosen, or none."""

        def choose(action: act.ChooseBookies) -> tuple[str, ...]:
            with contextlib.suppress(NotEnoughBookiesError):
                return replacements(action, listed_seconds_ago_max, sound_only=True)
            return replacements(action, 0.0, action.sound_only)

        def replacements(action: act.ChooseBookies, seconds_ago_max: float, sound_only: bool) -> tuple[str, ...]:
            topology = self.topology(action.ensemble, seconds_ago_max)
            if sound_only:
                topology = topology.without_quarantined(action.ensemble)
            topology = topology.without(action.refusing)
            return self.placement.choose_replacements(
                topology, action.ensemble, action.replaced, metadata.write_quorum, random.Random()
            )

        store = self.store
        try:
            if isinstance(action, act.ReadMetadata):
                return act.MetadataRead(*store.read_ledger(metadata.ledger_id))
            if isinstance(action, act.WriteMetadata):
                return act.MetadataWritten(store.write_ledger(action.metadata, action.version))
            return act.BookiesChosen(choose(action))
        except MetadataVersionError:
            return act.MetadataConflict()
        except RecordFullError as error:
            return act.RecordFull(error)
        except NotEnoughBookiesError as error:
            return act.NoBookies(error)
        except BookKeeperError as error:
            return act.MetadataFailed(error)

    # -- placement

    def bookies(self, listed_seconds_ago_max: float = 0.0) -> Mapping[str, BookieRegistration]:
        """Every registered bookie by id, from a listing that may be so old: who repairs many ledgers needs no new one for each.
        Raises MetadataStoreError."""
        return self.runtime.bookies(listed_seconds_ago_max)

    @property
    def placement(self) -> Placement:
        """Placement by the cluster's rule. Raises MetadataStoreError, and UnreadableRecordError."""
        return Placement(self.runtime.placement_rule())

    def choose_ensemble(self, ensemble_size: int, write_quorum: int) -> tuple[str, ...]:
        """The first ensemble of a new ledger, smaller if the option ``opportunistic_striping`` allows it. Raises
        NotEnoughBookiesError and MetadataStoreError."""
        size_min = write_quorum if self.config.opportunistic_striping else ensemble_size
        draws = random.Random()
        return self.placement.choose_ensemble(self.topology(), ensemble_size, write_quorum, draws, size_min)

    def possible_ensemble_size(self, ensemble_size: int, write_quorum: int) -> int:
        """Number of bookies that a new ledger would get now; 0 if there are too few. Raises MetadataStoreError."""
        try:
            return len(self.choose_ensemble(ensemble_size, write_quorum))
        except NotEnoughBookiesError:
            return 0

    def topology(self, members: Iterable[str] = (), listed_seconds_ago_max: float = 0.0) -> Topology:
        """The bookies as they are now, for placement, with the last known places of absent ``members``. Raises
        MetadataStoreError."""
        runtime = self.runtime
        bookies = self.bookies(listed_seconds_ago_max)
        writable = [bookie_id for bookie_id, bookie in bookies.items() if not bookie.read_only]
        free_bytes = runtime.free_space.of(writable) if self.config.placement_by_free_space else {}
        places = runtime.last_places(members, math.inf)
        return Topology(bookies, runtime.connections.quarantined(), free_bytes, places)

    def misplaced(self, ledgers: Iterable[LedgerMetadata]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The ledgers with fragments that break the placement policy: (ledger id, the bookies that are in the way).

        Only fragments that get no more entries count, and only bookies that others could replace now.
        """
        ledgers = list(ledgers)
        members = {bookie for metadata in ledgers for fragment in metadata.fragments for bookie in fragment.ensemble}
        # Read anew: a check that was asked for with a change of the rule may come before the news of the change.
        placement, topology, draws = Placement(read_placement(self.store)), self.topology(members), random.Random()
        judged: dict[tuple[tuple[str, ...], int], tuple[str, ...]] = {}
        for metadata in ledgers:
            found: dict[str, None] = {}
            for fragment, last in metadata.fragment_ranges():
                shape = fragment.ensemble, metadata.write_quorum
                if last is not None:
                    if shape not in judged:
                        judged[shape] = placement.misplaced(topology, *shape, draws)
                    found |= dict.fromkeys(judged[shape])
            if found:
                yield metadata.ledger_id, tuple(found)

"""The client: creates, opens, lists and deletes ledgers.

Law: a wrong password has no side effect (it is compared with the metadata before anything is sent, and by each bookie after);
opening with recovery returns a closed ledger or raises; every call ends within the times of ``ClientConfig``.

A client may be made anywhere and used in a forked process (Spark forks its Python workers): connections, threads and the metadata
session are made on first use and belong to the process that made them.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from bookspark.client.client_config import client_config
from bookspark.client.machine_driver import MachineDriver
from bookspark.client.network.connections import Answer
from bookspark.client.network.ledger_requests import LedgerRequests, StoreAction, StoreAnswer, answer_from_store
from bookspark.client.placement.placement import Placement, Topology
from bookspark.client.reading.read_handle import ReadHandle
from bookspark.client.runtime import Runtime
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.errors import (
    BookKeeperError,
    LedgerRecoveryError,
    NoSuchLedgerError,
    ReadError,
    UnauthorizedAccessError,
)
from bookspark.metadata.store import MetadataStore, Versioned
from bookspark.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, accepted_loss_of
from bookspark.protocol.ledger.ledger_choices import check_choices, choice_of, risk_of
from bookspark.protocol.ledger.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerType,
    Replication,
)
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.reading.reader import ReadOrder
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.wire.digests import digester, digester_without_password, master_key
from bookspark.wire.frames import control_frame
from bookspark.wire.header import NO_KEY, Header, Kind
from bookspark.wire.messages import BookieStatus, EntryLogFacts, EntryLogs, Limbo, Ranges

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

_RANGES_PER_REQUEST = 100_000


class BookKeeper:
    """A client of the cluster whose metadata is at ``zookeeper`` (``host:port[,host:port…][/chroot]``, ``zk://`` allowed).

    ``options`` are those of ``client.config.ClientConfig``. Raises MetadataStoreError at the first use if the metadata store
    can't be reached. Thread-safe.
    """

    def __init__(self, zookeeper: str, **options: Any) -> None:
        self.config = client_config(**options)
        self.zookeeper = zookeeper
        self._read_rotation = random.randrange(1 << 16)
        self._placement = Placement(self.config.placement, self.config.racks_min)
        self._locks: dict[int, threading.Lock] = {}
        self._runtime: Runtime | None = None
        self._closed = False

    # -- ledgers

    def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_type: str | LedgerType = LedgerType.PD_JOURNAL,
        replication: str | Replication = Replication.BEST_EFFORT,
    ) -> LedgerHandle:
        """A new, empty, open ledger, and the only handle that can write it. ``docs/durability.md`` tells what each
        ``ledger_type`` and ``replication`` promises. Raises ConfigurationError for choices that make no sense,
        NotEnoughBookiesError."""
        ledger_type = choice_of(LedgerType, ledger_type, "ledger_type")
        replication = choice_of(Replication, replication, "replication")
        check_choices(ensemble_size, write_quorum, ack_quorum, ledger_type, replication)
        store = self.metadata
        new_ledger_id = self.runtime.threads.submit(store.new_ledger_id)  # while the bookies are looked up
        topology = self._topology()
        ensemble = self._placement.choose_ensemble(
            topology,
            ensemble_size,
            write_quorum,
            random.Random(),
            write_quorum if self.config.opportunistic_striping else ensemble_size,
        )
        without_journal = sum(not topology.bookies[bookie].journal_write_data for bookie in ensemble)
        if risk := risk_of(ack_quorum, ledger_type, without_journal):
            log.warning("a ledger is created with %s", risk)
        metadata = LedgerMetadata(
            ledger_id=new_ledger_id.result(),
            ensemble_size=len(ensemble),
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            fragments=(Fragment(0, ensemble),),
            digest_type=digest_type,
            master_key=master_key(password),
            ledger_type=ledger_type,
            replication=replication,
            ctime_ms=time.time_ns() // 1_000_000,
            c_token=random.getrandbits(63),
            custom_metadata=dict(custom_metadata or {}),
        )
        return LedgerHandle(self, metadata, store.create_ledger(metadata), password)

    def open_ledger(self, ledger_id: int, password: bytes = b"", *, accept_loss_as: str | None = None) -> ReadHandle:
        """Open for reading; if the ledger is not closed, recover it first: its writer is fenced, its end found and written.

        ``accept_loss_as``: the name of an operator who takes what no bookie can tell any more for lost, for ledgers that could
        not be recovered otherwise; what that was is written into the metadata under this name (``protocol.accepted_loss``).
        Raises NoSuchLedgerError, UnauthorizedAccessError (nothing was fenced), LedgerRecoveryError (try again).
        """
        found = self._read_metadata(ledger_id, password)
        if not found.value.closed:
            accepted = None if accept_loss_as is None else AcceptedLoss(accept_loss_as, time.time_ns() // 1_000_000)
            found = self._recover(found, password, accepted)
        return ReadHandle(self, found.value, found.version, password)

    def open_ledger_no_recovery(self, ledger_id: int, password: bytes = b"") -> ReadHandle:
        """Open for reading up to the LAC of now; a writer is not disturbed. Raises NoSuchLedgerError, ReadError."""
        handle = ReadHandle(self, *self._read_metadata(ledger_id, password), password)
        handle.read_last_add_confirmed()
        return handle

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete the ledger's metadata. Raises NoSuchLedgerError."""
        self.metadata.delete_ledger(ledger_id)

    def list_ledgers(self) -> list[int]:
        """The ids of all ledgers, ascending; all of them or an error."""
        return self.metadata.list_ledgers()

    def get_ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Raises NoSuchLedgerError."""
        return self.metadata.read_ledger(ledger_id).value

    # -- bookies

    def bookie_status(self, bookie_id: str) -> BookieStatus:
        """What a bookie says of itself. Raises ReadError if it does not answer."""
        answer = self._ask(bookie_id, Header(Kind.STATUS, self.runtime.connections.next_request_id()))
        return msgspec.json.decode(answer.body, type=BookieStatus)

    def list_entry_logs(self, bookie_id: str) -> list[EntryLogFacts]:
        """A bookie's logs, by number. Raises ReadError if it does not answer."""
        answer = self._ask(bookie_id, Header(Kind.ENTRY_LOGS, self.runtime.connections.next_request_id()))
        return msgspec.json.decode(answer.body, type=EntryLogs).logs

    def list_limbo(self, bookie_id: str) -> dict[int, int]:
        """The ledgers that a bookie has in limbo, and the lossy boot that each is in limbo for. Raises ReadError if it does not
        answer."""
        found: dict[int, int] = {}
        cursor = 0
        while cursor >= 0:
            request_id = self.runtime.connections.next_request_id()
            answer = self._ask(bookie_id, Header(Kind.LIMBO, request_id, ledger_id=cursor))
            found.update(msgspec.json.decode(answer.body, type=Limbo).ledgers)
            assert answer.header is not None
            cursor = answer.header.value
        return found

    def list_ranges(self, bookie_id: str, ledger_id: int | None = None) -> pyarrow.Table:
        """Everything that a bookie holds, of one ledger or of all: int64 columns ledger_id, first_entry_id, last_entry_id, log,
        position, bytes; one row per run of consecutive entries on disk. Raises ReadError if it does not answer."""
        import pyarrow

        names = ("ledger_id", "first_entry_id", "last_entry_id", "log", "position", "bytes")
        schema = pyarrow.schema([(name, pyarrow.int64()) for name in names])
        tables = [schema.empty_table()]
        cursor, first_entry_id = 0 if ledger_id is None else ledger_id, 0
        while cursor >= 0:
            header = Header(
                Kind.RANGES,
                self.runtime.connections.next_request_id(),
                ledger_id=cursor,
                first_entry_id=first_entry_id,
                limit=_RANGES_PER_REQUEST,
                value=0 if ledger_id is None else 1,
            )
            answer = self._ask(bookie_id, header)
            columns = [pyarrow.array(column, pyarrow.int64()) for column in Ranges.decode(answer.body)]
            tables.append(pyarrow.Table.from_arrays(columns, schema=schema))
            assert answer.header is not None
            cursor, first_entry_id = answer.header.value, answer.header.first_entry_id
        return pyarrow.concat_tables(tables)

    # -- the client itself

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, in this process's session."""
        return self.runtime.store

    @property
    def runtime(self) -> Runtime:
        """This process's connections and threads, made on first use."""
        runtime = self._runtime
        if runtime is None or runtime.pid != os.getpid():
            with self._lock:
                if self._closed:
                    raise BookKeeperError("this client was closed; make another one")
                if self._runtime is None or self._runtime.pid != os.getpid():
                    self._runtime = Runtime(self._connect, self.config)
                runtime = self._runtime
        return runtime

    @property
    def _lock(self) -> threading.Lock:
        """This process's: its parent's may have been held at the fork."""
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def close(self) -> None:
        """End connections and threads. Ledgers that were not closed stay open, to be recovered by whoever opens them."""
        with self._lock:
            self._closed = True
            runtime, self._runtime = self._runtime, None
        if runtime is not None and runtime.pid == os.getpid():
            runtime.close()

    def __enter__(self) -> BookKeeper:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.zookeeper, msgspec.to_builtins(self.config))

    def requests(self, metadata: LedgerMetadata, password: bytes | None) -> LedgerRequests:
        """The requests of this client about one ledger. Without a password, for repair, digests that take one aren't checked."""
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
        """Which replica of an entry is asked first; ``delivered_by``: the bookie that a handle read from last."""
        runtime, config = self.runtime, self.config
        return ReadOrder(
            rotation=self._read_rotation,
            sticky=config.sticky_reads,
            first=delivered_by,
            near=runtime.bookies_on_this_host() if config.read_own_host_first else frozenset(),
            doubtful=frozenset(runtime.connections.quarantined()),
        )

    def answer_from_store(self, metadata: LedgerMetadata, action: StoreAction) -> StoreAnswer:
        """Do what the machine of a ledger asks of the metadata store, blocking."""

        def choose(action: act.ChooseBookies) -> tuple[str, ...]:
            return self._placement.choose_replacements(
                self._topology(), action.ensemble, action.replaced, metadata.write_quorum, random.Random()
            )

        return answer_from_store(self.metadata, metadata.ledger_id, action, choose)

    def misplaced(self, ledgers: Iterable[LedgerMetadata]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The ledgers with bookies that this client's placement does not want beside the others, and could replace now, in
        fragments that get no more entries."""
        topology, random_numbers = self._topology(), random.Random()
        for metadata in ledgers:
            found: dict[str, None] = {}
            for fragment, last in metadata.fragment_ranges():
                if last is not None:
                    found |= dict.fromkeys(
                        self._placement.misplaced(topology, fragment.ensemble, metadata.write_quorum, random_numbers)
                    )
            if found:
                yield metadata.ledger_id, tuple(found)

    def _topology(self) -> Topology:
        """The bookies as they are now, for placement."""
        runtime = self.runtime
        bookies = runtime.store.bookies()
        writable = [bookie_id for bookie_id, bookie in bookies.items() if not bookie.read_only]
        free_bytes = runtime.free_space.of(writable) if self.config.placement_by_free_space else {}
        return Topology(bookies, runtime.connections.quarantined(), free_bytes)

    def _connect(self) -> MetadataStore:
        return ZooKeeperStore(
            self.zookeeper,
            timeout_seconds=self.config.metadata_timeout_seconds,
            session_timeout_seconds=self.config.metadata_session_timeout_seconds,
        )

    def _read_metadata(self, ledger_id: int, password: bytes) -> Versioned[LedgerMetadata]:
        found = self.metadata.read_ledger(ledger_id)
        if found.value.master_key != master_key(password):
            raise UnauthorizedAccessError(
                f"wrong password for ledger {ledger_id}; use the one it was created with (nothing was fenced)"
            )
        return found

    def _recover(
        self, found: Versioned[LedgerMetadata], password: bytes, accepted_loss: AcceptedLoss | None
    ) -> Versioned[LedgerMetadata]:
        """Run ``LedgerRecovery`` to its end."""
        ledger_id = found.value.ledger_id
        machine = LedgerRecovery(replaces_bookies=True, accepted_loss=accepted_loss)
        driver = MachineDriver(self, found.value, password, self.config.recovery_timeout_seconds)
        try:
            closed = driver.run(machine.step, machine.step(act.MetadataRead(*found)))
        except (NoSuchLedgerError, LedgerRecoveryError, UnauthorizedAccessError):
            raise
        except BookKeeperError as error:
            raise LedgerRecoveryError(f"ledger {ledger_id} was not recovered: {error}") from error
        loss = accepted_loss_of(closed.metadata)
        if loss is not None:
            log.warning(
                "ledger %d was closed at entry %d with a loss that %s accepted; not known: %s",
                ledger_id,
                closed.metadata.last_entry_id,
                loss.by,
                "; ".join(loss.not_known),
            )
        return Versioned(closed.metadata, closed.version)

    def ask(self, bookie_id: str, header: Header) -> Answer:
        """One request to one bookie, blocking: its answer, Unknown if there is none in time."""
        mailbox: list[Answer] = []
        done = threading.Event()

        def answered(answer: Answer) -> None:
            mailbox.append(answer)
            done.set()

        runtime, timeout = self.runtime, self.config.answer_timeout_seconds
        runtime.io.submit(
            runtime.connections.send, bookie_id, header.request_id, control_frame(header), answered, timeout
        )
        done.wait(timeout + self.config.connect_timeout_seconds + 1.0)
        return mailbox[0] if mailbox else Answer(Unknown(UnknownReason.UNREACHABLE, "no answer in time"))

    def _ask(self, bookie_id: str, header: Header) -> Answer:
        """The same. Raises ReadError unless the answer is positive."""
        answer = self.ask(bookie_id, header)
        if not isinstance(answer.response, Positive):
            raise ReadError(f"bookie {bookie_id} did not answer: {answer.response}")
        return answer


def _make(zookeeper: str, options: dict[str, Any]) -> BookKeeper:
    return BookKeeper(zookeeper, **options)

"""The client: creates, opens, lists and deletes ledgers.

Law: a wrong password has no side effect (it is compared with the metadata before anything is sent, and by each bookie after);
opening with recovery returns a closed ledger or raises; every call ends within the times of ``ClientConfig``.

A client may be made anywhere and used in a forked process (Spark forks its Python workers): connections, threads and the metadata
session are made on first use and belong to the process that made them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from bookspark.client.config import client_config
from bookspark.client.connections import Answer, Connections
from bookspark.client.io_loop import IoLoop
from bookspark.client.ledger_handle import LedgerHandle
from bookspark.client.placement import choose_ensemble
from bookspark.client.read_handle import ReadHandle
from bookspark.client.requests import LedgerRequests, Mailbox, StoreAction, StoreAnswer, answer_from_store
from bookspark.metadata.store import MetadataStore, Versioned
from bookspark.metadata.zookeeper import ZooKeeperStore
from bookspark.protocol import actions as act
from bookspark.protocol.errors import (
    BookKeeperError,
    ConfigurationError,
    LedgerRecoveryError,
    NoSuchLedgerError,
    ReadError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerType,
    Replication,
    check_quorums,
)
from bookspark.protocol.recovery import LedgerRecovery
from bookspark.protocol.responses import Positive
from bookspark.wire.digests import digester, master_key
from bookspark.wire.frames import control_frame
from bookspark.wire.header import NO_KEY, Header, Kind
from bookspark.wire.messages import BookieStatus, Ranges

if TYPE_CHECKING:
    import pyarrow

_TICK_SECONDS = 0.05
_RANGES_PER_REQUEST = 100_000


class Runtime:
    """What belongs to one process: the metadata session, the I/O thread, the connections and the open writers."""

    def __init__(self, connect: Callable[[], MetadataStore], config: Any) -> None:
        self.pid = os.getpid()
        self.store = connect()
        self.io = IoLoop("bookspark-client")
        self.threads = ThreadPoolExecutor(2, thread_name_prefix="bookspark-metadata")
        self.connections = Connections(self.store, config, self.threads)
        self._writers: set[LedgerHandle] = set()
        self.io.submit(self._tick)
        self.store.watch_bookies(lambda: self.io.submit(self._bookies_changed))

    def add_writer(self, writer: LedgerHandle) -> None:
        self._writers.add(writer)

    def remove_writer(self, writer: LedgerHandle) -> None:
        self._writers.discard(writer)

    def _tick(self) -> None:
        now = time.monotonic()
        for writer in list(self._writers):
            writer.tick(now)
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _bookies_changed(self) -> None:
        for writer in list(self._writers):
            writer.bookies_changed()

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.io.call(self.connections.close())
        self.io.stop()
        self.threads.shutdown(wait=True, cancel_futures=True)
        self.store.close()


class BookKeeper:
    """A client of the cluster whose metadata is at ``zookeeper`` (``host:port[,host:port…][/chroot]``, ``zk://`` allowed).

    ``options`` are those of ``client.config.ClientConfig``. Raises MetadataStoreError at the first use if the metadata store
    can't be reached. Thread-safe.
    """

    def __init__(self, zookeeper: str, **options: Any) -> None:
        self.config = client_config(**options)
        self.zookeeper = zookeeper
        self.read_preference = random.randrange(1 << 16)
        """Rotates which replica is asked first, so that many readers spread."""
        self._lock = threading.Lock()
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
        ledger_type: LedgerType = LedgerType.PD_JOURNAL,
        replication: str | Replication = Replication.BEST_EFFORT,
    ) -> LedgerHandle:
        """A new, empty, open ledger, and the only handle that can write it. Raises NotEnoughBookiesError."""
        check_quorums(ensemble_size, write_quorum, ack_quorum)
        if ledger_type is not LedgerType.PD_JOURNAL or Replication(replication) is not Replication.BEST_EFFORT:
            raise ConfigurationError(
                "this version writes PD_JOURNAL ledgers with best_effort replication only; leave ledger_type and replication out"
            )
        store = self.metadata
        ensemble = choose_ensemble(store.bookies(), ensemble_size, random.Random())
        metadata = LedgerMetadata(
            ledger_id=store.new_ledger_id(),
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            fragments=(Fragment(0, ensemble),),
            digest_type=digest_type,
            master_key=master_key(password),
            ledger_type=ledger_type,
            replication=Replication(replication),
            ctime_ms=time.time_ns() // 1_000_000,
            c_token=random.getrandbits(63),
            custom_metadata=dict(custom_metadata or {}),
        )
        return LedgerHandle(self, metadata, store.create_ledger(metadata), password)

    def open_ledger(self, ledger_id: int, password: bytes = b"") -> ReadHandle:
        """Open for reading; if the ledger is not closed, recover it first: its writer is fenced, its end found and written.

        Raises NoSuchLedgerError, UnauthorizedAccessError (nothing was fenced), LedgerRecoveryError (try again).
        """
        found = self._read_metadata(ledger_id, password)
        if not found.value.closed:
            found = self._recover(found, password)
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
            if runtime is not None and runtime.pid != os.getpid():
                self._lock = threading.Lock()  # the parent's may have been held at the fork
            with self._lock:
                if self._closed:
                    raise BookKeeperError("this client was closed; make another one")
                if self._runtime is None or self._runtime.pid != os.getpid():
                    self._runtime = Runtime(self._connect, self.config)
                runtime = self._runtime
        return runtime

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

    def requests(self, metadata: LedgerMetadata, password: bytes) -> LedgerRequests:
        """The requests of this client about one ledger."""
        runtime = self.runtime
        return LedgerRequests(
            runtime.io,
            runtime.connections,
            metadata.ledger_id,
            metadata.master_key or NO_KEY,
            digester(metadata.digest_type, password),
            self.config.answer_timeout_seconds,
        )

    def answer_from_store(self, ledger_id: int, action: StoreAction) -> StoreAnswer:
        """Do what a machine asks of the metadata store, blocking."""
        return answer_from_store(self.metadata, ledger_id, action, self.runtime.connections.quarantined())

    def _connect(self) -> MetadataStore:
        return ZooKeeperStore(self.zookeeper, timeout_seconds=self.config.metadata_timeout_seconds)

    def _read_metadata(self, ledger_id: int, password: bytes) -> Versioned[LedgerMetadata]:
        found = self.metadata.read_ledger(ledger_id)
        if found.value.master_key != master_key(password):
            raise UnauthorizedAccessError(
                f"wrong password for ledger {ledger_id}; use the one it was created with (nothing was fenced)"
            )
        return found

    def _recover(self, found: Versioned[LedgerMetadata], password: bytes) -> Versioned[LedgerMetadata]:
        """Run ``LedgerRecovery`` to its end."""
        ledger_id = found.value.ledger_id
        requests = self.requests(found.value, password)
        mailbox = Mailbox(self.config.recovery_timeout_seconds)
        machine = LedgerRecovery(replaces_bookies=True)
        pending = machine.step(act.MetadataRead(found.value, found.version))
        while True:
            for action in pending:
                match action:
                    case act.ReadMetadata() | act.WriteMetadata() | act.ChooseBookies():
                        mailbox.put(self.answer_from_store(ledger_id, action))
                    case act.SendReadLac():
                        requests.read_lac(action, mailbox.put)
                    case act.SendRead():
                        requests.read(action, mailbox.put)
                    case act.SendAdd():
                        requests.recovery_add(action, mailbox.put)
                    case act.Fail():
                        if isinstance(action.error, NoSuchLedgerError | LedgerRecoveryError | UnauthorizedAccessError):
                            raise action.error
                        raise LedgerRecoveryError(
                            f"ledger {ledger_id} was not recovered: {action.error}"
                        ) from action.error
                    case act.Finish(metadata, version):
                        assert metadata is not None
                        return Versioned(metadata, version)
            pending = machine.step(mailbox.take())

    def _ask(self, bookie_id: str, header: Header) -> Answer:
        """One request to one bookie, blocking. Raises ReadError unless the answer is positive."""
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
        if not mailbox or not isinstance(mailbox[0].response, Positive):
            raise ReadError(
                f"bookie {bookie_id} did not answer: {mailbox[0].response if mailbox else 'no answer in time'}"
            )
        return mailbox[0]


def _make(zookeeper: str, options: dict[str, Any]) -> BookKeeper:
    return BookKeeper(zookeeper, **options)

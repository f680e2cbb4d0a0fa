"""``BookKeeper``, the client's entry point: creates, opens, lists and deletes ledgers, and asks bookies about themselves.

Law: no decision is made here. Machines of ``protocol`` decide on recovery, ``protocol.ledger.ledger_choices`` on choices,
``Placement`` on ensembles. Every call ends within the times of ``ClientConfig``, ``collect_now`` within its own limit.

Source: BookKeeper's class of the same name.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from bookspark.errors import (
    BookieError,
    BookKeeperError,
    InvalidArgumentError,
    LedgerExistsError,
    LedgerRecoveryError,
    MetadataStoreError,
    NoSuchLedgerError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.ledger_choices import check_choices, check_digest, risk_of
from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.repair.audit_plan import marks_after_recovery
from bookspark.store.client.client_config import client_config
from bookspark.store.client.inspection import bookie_questions
from bookspark.store.client.inspection.bookie_questions import ask
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.runtime.calls import Calls, in_thread
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.machine_driver import MachineDriver
from bookspark.store.client.runtime.runtime import Runtime
from bookspark.store.client.writing.ledger_handle import LedgerHandle, LedgerHandleAdv
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.records.names import BookieId, ChangeOrder, CopyCount, LedgerId
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.header import Kind, WireError
from bookspark.store.wire.messages import BookieStatus, CollectionStatus, EntryLogFacts, decoded
from bookspark.support.arguments import LastEntryId, Password, Seconds, check_names, checks_arguments
from bookspark.support.extras import extra_needed
from bookspark.support.metrics.described import Figures
from bookspark.support.metrics.tables import CLIENT, ZOOKEEPER

if TYPE_CHECKING:
    import pyarrow
    from prometheus_client.registry import Collector

log = logging.getLogger(__name__)


# -- Orders of an operator to one bookie: collect deleted ledgers now, be read-only.
#
# Law: an order that returns is carried out. After a BookieError (no answer in time, or a restart meanwhile) the outcome is open;
# a repeated order does no harm.


_WHY_NOT = {
    UnknownReason.BAD_REQUEST: "; it knows no such request",
    UnknownReason.FENCED: "; it has obeyed a later order of a change of the cluster",
}
_LOOK_SECONDS = 0.2


def _done(context: ClientContext, bookie_id: str, kind: Kind, **fields: int) -> Answer:
    """The bookie's positive answer. Raises BookieError for any other answer."""
    answer = ask(context, bookie_id, kind, **fields)
    if isinstance(answer.response, Positive) and answer.header is not None:
        return answer
    why = str(answer.response)
    if isinstance(answer.response, Unknown):
        why += _WHY_NOT.get(answer.response.reason, "")
    raise BookieError(f"bookie {bookie_id} did not do it: {why}")


# -- Opening a ledger for reading: with recovery, which ends its writer, or without.
#
# Law: a wrong password has no side effect: it is compared with the metadata before any request, and by each bookie after. Opening
# with recovery returns a closed ledger or raises. Opening without recovery never fences.
#
# Sources: bookkeeper-overview, "Opening a ledger" and "Ledger recovery"; ``protocol.reading.recovery`` decides.


def _recover(
    context: ClientContext, found: Versioned[LedgerMetadata], password: bytes, accepted_loss: AcceptedLoss | None
) -> Versioned[LedgerMetadata]:
    ledger_id = found.value.ledger_id
    machine = made(LedgerRecovery, replaces_bookies=True, accepted_loss=accepted_loss)
    driver = MachineDriver(context, found.value, password, context.config.recovery_timeout_seconds)
    failed: set[str] = set()

    def step(event: act.Event) -> list[act.Action]:
        if isinstance(event, act.LacAnswered | act.AddAnswered) and not isinstance(event.response, Positive):
            failed.add(event.bookie)
        return machine.step(event)

    try:
        closed = driver.run(step, machine.step(act.MetadataRead(*found)))
    except (NoSuchLedgerError, LedgerRecoveryError, UnauthorizedAccessError):
        raise
    except BookKeeperError as error:
        raise LedgerRecoveryError(f"ledger {ledger_id} was not recovered: {error}") from error
    loss = closed.metadata.accepted_loss
    if loss is not None:
        log.warning(
            "ledger %d was closed at entry %d with a loss that %s accepted; not known: %s",
            ledger_id,
            closed.metadata.last_entry_id,
            loss.by,
            "; ".join(loss.not_known),
        )
    if marks := marks_after_recovery(closed.metadata, failed):
        try:
            context.store.underreplication.mark(marks)
        except BookKeeperError as error:
            log.warning("ledger %d: copies that may be lacking are not marked: %s", ledger_id, error)
    return Versioned(closed.metadata, closed.version)


# -- A client's figures for Prometheus, described by ``metrics.tables.CLIENT``.
#
# Law: a scrape changes nothing and makes no connection: a client not used in this process yet, or closed, has no figures. The I/O
# thread, which owns the figures, collects them in one turn.


_ANSWER_SECONDS_MAX = 5.0
_PREFIX = "bookspark_client_"


def client_figures(context: ClientContext) -> tuple[Figures, Mapping[str, str]]:
    """The current figures, and their common label. Raises TimeoutError if the I/O thread hangs."""
    label = {"client": context.config.client_name}
    runtime = context.running
    if runtime is None:
        return {}, label
    answer: Future[Figures] = Future()
    runtime.io.submit(lambda: answer.set_result(_gathered(runtime)))
    figures = dict(answer.result(_ANSWER_SECONDS_MAX))
    if isinstance(runtime.store, ZooKeeperStore):
        figures |= runtime.store.connection.figures.figures()
    return figures, label


def _gathered(runtime: Runtime) -> Figures:
    room, traffic = runtime.room, runtime.connections.traffic
    figures: Figures = {
        "request_seconds": {(Kind(kind).name.lower(),): seconds.copy() for kind, seconds in traffic.seconds.items()},
        "failed_requests_total": {(reason,): count for reason, count in traffic.failed.items()},
        "failed_connections_total": traffic.unreachable,
        "sent_bytes_total": traffic.sent_bytes,
        "received_bytes_total": traffic.received_bytes,
        "appended_entries_total": traffic.appended_entries,
        "appended_bytes_total": traffic.appended_bytes,
        "ensemble_changes_total": traffic.ensemble_changes,
        **runtime.connections.figures(),
        "writers": runtime.writers,
        "kept_bytes": room.held,
        "waiting_appends": len(room.waiting),
    }
    return {f"{_PREFIX}{name}": figure for name, figure in figures.items()}


# -- Creating a ledger: checks its choices, chooses its first ensemble, writes its record.
#
# Law: contradictory choices create nothing. The ledger exists once its record does; no bookie hears of it before the first entry.
#
# Source: BookKeeper's ``LedgerCreateOp``.


Handle = TypeVar("Handle", bound=LedgerHandle)
_IDS_TRIED = 1000
"""Number of new ids to try if users have given them to their ledgers."""


def _told(ledger_id: Future[int], seconds: float) -> int:
    """The new id. This waits with its own deadline: the store's begins only when a thread starts the request."""
    try:
        return ledger_id.result(seconds)
    except TimeoutError:
        ledger_id.cancel()
        raise MetadataStoreError(f"getting a ledger id: no answer from the metadata store in {seconds:g} s") from None


# -- The client


@checks_arguments
class BookKeeper:
    """A client of one cluster: it creates, opens, lists and deletes ledgers.

    ::

        with BookKeeper("127.0.0.1:2181") as bookkeeper:
            with bookkeeper.create_ledger() as ledger:
                ledger.append(b"hello")
            reader = bookkeeper.open_ledger(ledger.ledger_id)
            print([entry.payload for entry in reader.read()])

    Thread-safe: share one client among all threads of a process. It may be pickled, and used in a forked process: connections,
    threads and the session with ZooKeeper are made on first use, and belong to the process that made them.

    Callbacks of appends, ``atexit`` functions and threads that outlast the main one may call every method. A signal handler
    should set a flag only: a call there may wait for the call that it interrupted. A finalizer (``__del__``) that runs in one
    of the client's own threads gets BookKeeperError from calls that wait.

    Every method may raise MetadataStoreError, if ZooKeeper can't be reached or does not answer within
    ``metadata_timeout_seconds``, and BookKeeperError, if the client was closed. Each method lists its other errors.
    """

    def __init__(self, zookeeper: ConnectionString, **options: Any) -> None:
        """Make a client. It connects at its first use.

        Arguments:
            zookeeper: address of the cluster's metadata: ``host:port[,host:port…][/chroot]``; a leading ``zk://`` is allowed.
            options: fields of ``bookspark.store.client.client_config.ClientConfig``, such as ``add_timeout_seconds=10.0``.
                ``conf/bookspark.toml`` lists all of them with their defaults.

        Raises:
            ConfigurationError: an option is unknown, or its value is wrong.
        """
        self.config = client_config(**options)
        self.zookeeper = zookeeper
        self.context = ClientContext(self._connect, self.config)
        """For handles and repairs. Not part of the public API."""

    # -- ledgers

    def create_ledger(
        self,
        ensemble_size: CopyCount = 3,
        write_quorum: CopyCount = 3,
        ack_quorum: CopyCount = 2,
        digest_type: str | DigestType = DigestType.CRC32C,
        password: Password = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_type: str | LedgerType = LedgerType.PD_JOURNAL,
        replication: str | Replication = Replication.BEST_EFFORT,
    ) -> LedgerHandle:
        """Create an empty, open ledger and return its writer: the only handle that can ever append to it.

        No choice can be changed later. ``docs/durability.md`` explains the combined promise of ``ledger_type`` and
        ``replication``.

        Arguments:
            ensemble_size: number of bookies of the ledger (E).
            write_quorum: number of copies of each entry (WQ ≤ E).
            ack_quorum: number of copies that an append waits for (AQ ≤ WQ).
            digest_type: the checksum, or keyed digest (HMAC), of each entry, which readers check.
            password: needed to open the ledger. It also keys the HMAC digests.
            custom_metadata: your own names and values, stored in the ledger's metadata.
            ledger_type: ``PD_JOURNAL``: an append returns once its entry is synced to disk. ``VD_JOURNAL``: once it is in
                memory; ``LedgerHandle.sync`` waits for the disks.
            replication: ``best_effort``: a closed ledger has at least ``ack_quorum`` copies of each entry. ``guaranteed``: it has
                ``write_quorum`` copies.

        Raises:
            ConfigurationError: the choices contradict each other, or can promise nothing.
            NotEnoughBookiesError: fewer writable bookies than ``ensemble_size``, or the placement rule can't be kept; the
                message names each bookie and the reason of its refusal.
        """
        return self._create(
            LedgerHandle,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom_metadata=custom_metadata,
            ledger_type=ledger_type,
            replication=replication,
        )

    def create_ledger_adv(
        self,
        ledger_id: LedgerId | None = None,
        ensemble_size: CopyCount = 3,
        write_quorum: CopyCount = 3,
        ack_quorum: CopyCount = 2,
        digest_type: str | DigestType = DigestType.CRC32C,
        password: Password = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_type: str | LedgerType = LedgerType.PD_JOURNAL,
        replication: str | Replication = Replication.BEST_EFFORT,
    ) -> LedgerHandleAdv:
        """Like ``create_ledger``, with entry ids chosen by the caller, and perhaps the ledger's id too.

        Arguments:
            ledger_id: the ledger's id, or None for a new id. Never reuse an id, not even a deleted ledger's: bookies may still
                have its entries. An id far above all others slows the first append to each later ledger at bookies that are new,
                lost data or collect this ledger: they count all ids up to it as used.
            ensemble_size: this and all others as in ``create_ledger``.
            write_quorum: number of copies of each entry.
            ack_quorum: number of copies that an append waits for.
            digest_type: the checksum, or keyed digest, of each entry.
            password: needed to open the ledger.
            custom_metadata: your own names and values.
            ledger_type: ``PD_JOURNAL`` or ``VD_JOURNAL``.
            replication: ``best_effort`` or ``guaranteed``.

        Raises:
            LedgerExistsError: there is a ledger with this id.
            ConfigurationError: the id can't be used, or the choices contradict each other.
            NotEnoughBookiesError: as in ``create_ledger``.
        """
        return self._create(
            LedgerHandleAdv,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom_metadata=custom_metadata,
            ledger_type=ledger_type,
            replication=replication,
            given_id=ledger_id,
        )

    def _create(
        self,
        kind: type[Handle],
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest_type: Any,
        password: bytes,
        custom_metadata: Mapping[str, bytes] | None,
        ledger_type: Any,
        replication: Any,
        given_id: int | None = None,
    ) -> Handle:
        """The ledger's one writer. ``checks_arguments`` has converted text to members of the enumerations by now."""
        check_choices(ensemble_size, write_quorum, ack_quorum, ledger_type, replication)
        check_digest(digest_type, ledger_type, replication)
        context, store = self.context, self.metadata

        def an_id() -> int:
            if given_id is None:
                return store.new_ledger_id()
            # Bookies have to know the highest id that any ledger had, deleted ledgers included.
            store.note_given_id(given_id)
            return given_id

        # Another thread requests the id, while this one looks the bookies up.
        ledger_id = context.runtime.threads.submit(an_id)
        ensemble = context.choose_ensemble(ensemble_size, write_quorum)
        registered = context.bookies(math.inf)
        without_journal = sum(not registered[bookie].journal_write_data for bookie in ensemble if bookie in registered)
        if risk := risk_of(ack_quorum, ledger_type, without_journal):
            log.warning("a ledger is created with %s", risk)
        metadata = LedgerMetadata(
            ledger_id=_told(ledger_id, context.config.metadata_timeout_seconds),
            ensemble_size=len(ensemble),
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            fragments=(Fragment(0, ensemble),),
            digest_type=digest_type,
            master_key=master_key(password, digest_type),
            password=password if digest_type.bookkeepers else b"",
            ledger_type=ledger_type,
            replication=replication,
            ctime_ms=context.store.clock.known_ms(),
            c_token=random.getrandbits(63),
            custom_metadata=custom_metadata or {},
        )
        tries_left = _IDS_TRIED if given_id is None else 1
        while True:
            tries_left -= 1
            try:
                return kind(context, metadata, store.create_ledger(metadata), password)
            except LedgerExistsError:
                if not tries_left:
                    raise
                metadata = replace(metadata, ledger_id=store.new_ledger_id())

    def open_ledger(
        self,
        ledger_id: LedgerId,
        password: Password = b"",
        *,
        accept_loss_as: str | None = None,
        lost_bookies: Collection[str] = (),
    ) -> ReadHandle:
        """Open a ledger for reading, and end its writer, if any.

        A ledger that is not closed is recovered first: its writer is fenced (its next append fails), the last entry is
        determined, and the ledger is closed there. Use ``open_ledger_no_recovery`` to read a ledger without ending its writer.

        Arguments:
            ledger_id: the ledger.
            password: the password of the ledger's creation.
            accept_loss_as: the name of an operator who accepts the loss of entries for which no bookie can answer any more. Only
                for a ledger that can't be recovered otherwise. The metadata records the name and the loss. Without
                ``lost_bookies``, only losses reported by the bookies themselves count.
            lost_bookies: bookies of this ledger that the operator declares lost for good. The entries of an unreachable bookie
                among them count as lost too. A bookie that answers is believed, named or not.

        Raises:
            NoSuchLedgerError: there is no such ledger.
            UnauthorizedAccessError: the password is wrong; nothing was fenced.
            LedgerRecoveryError: too few bookies answered within ``recovery_timeout_seconds``; nothing was lost, try again.
                With ``accept_loss_as``, the message names the bookies that may have the missing entries.
            ConfigurationError: ``lost_bookies`` names a bookie that the ledger has not, or ``accept_loss_as`` is missing.
        """
        if lost_bookies and accept_loss_as is None:
            raise InvalidArgumentError(
                f"lost_bookies {lost_bookies!r} can't be used alone; give accept_loss_as too, the name of who declares them lost",
                "accept_loss_as",
            )
        record = self._read_metadata(ledger_id, password)
        check_names(lost_bookies, record.value.bookies(), f"bookie of ledger {ledger_id}")
        if not record.value.closed:
            named = tuple(sorted(set(lost_bookies)))
            accepted = (
                None if accept_loss_as is None else AcceptedLoss(accept_loss_as, self.metadata.clock.known_ms(), named)
            )
            record = _recover(self.context, record, password, accepted)
        return ReadHandle(self.context, record.value, record.version, password)

    def open_ledger_no_recovery(
        self, ledger_id: LedgerId, password: Password = b"", *, confirmed: LastEntryId | None = None
    ) -> ReadHandle:
        """Open a ledger for reading without disturbing its writer.

        The handle reads up to the current last add confirmed (LAC). It learns of later entries through
        ``ReadHandle.read_last_add_confirmed`` and ``ReadHandle.read_last_add_confirmed_and_entry``.

        Arguments:
            ledger_id: the ledger.
            password: the password of the ledger's creation.
            confirmed: an entry that the caller can prove to be confirmed, for example because a log's commit names it. The handle
                reads up to there, and no bookie is asked for its LAC. None: the bookies are asked.

        Raises:
            NoSuchLedgerError: there is no such ledger.
            UnauthorizedAccessError: the password is wrong.
            ReadError: too few bookies told their LAC.
        """
        handle = ReadHandle(self.context, *self._read_metadata(ledger_id, password), password)
        if confirmed is None:
            handle.read_last_add_confirmed()
        else:
            handle.confirm(confirmed)
        return handle

    def _read_metadata(self, ledger_id: int, password: bytes) -> Versioned[LedgerMetadata]:
        record = self.metadata.read_ledger(ledger_id)
        if record.value.master_key != master_key(password, record.value.digest_type):
            raise UnauthorizedAccessError(
                f"wrong password for ledger {ledger_id}; use the one it was created with (nothing was fenced)"
            )
        return record

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger, open or closed. Its bookies free the space at their next garbage collection.

        Raises:
            NoSuchLedgerError: there is no such ledger.
        """
        self.metadata.delete_ledger(ledger_id)

    def list_ledgers(self) -> list[int]:
        """Ids of all ledgers of the cluster, ascending. A listing is never partial: it is whole, or MetadataStoreError."""
        return self.metadata.list_ledgers()

    def get_ledger_metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """A ledger's current metadata: its state, quorums, fragments, and, once it is closed, last entry id and length.

        Raises:
            NoSuchLedgerError: there is no such ledger.
        """
        return self.metadata.read_ledger(ledger_id).value

    # -- asynchronous variants: each returns an awaitable future

    create_ledger_async = in_thread(create_ledger)
    create_ledger_adv_async = in_thread(create_ledger_adv)
    open_ledger_async = in_thread(open_ledger)
    open_ledger_no_recovery_async = in_thread(open_ledger_no_recovery)
    delete_ledger_async = in_thread(delete_ledger)
    list_ledgers_async = in_thread(list_ledgers)
    get_ledger_metadata_async = in_thread(get_ledger_metadata)

    # -- bookies

    def bookie_status(self, bookie_id: BookieId) -> BookieStatus:
        """A bookie's report about its process, disks, modes, and the progress of healing.

        Raises:
            ReadError: the bookie did not answer within ``answer_timeout_seconds``.
        """
        return bookie_questions.bookie_status(self.context, bookie_id)

    def collect_now(self, bookie_id: BookieId, seconds_max: Seconds = 3600.0) -> CollectionStatus:
        """Order a bookie to collect deleted ledgers now; returns the result.

        Raises:
            BookieError: the bookie did not answer, restarted, or did not finish within ``seconds_max`` seconds.
        """
        ordered = _done(self.context, bookie_id, Kind.COLLECT)
        assert ordered.header is not None
        number, incarnation = ordered.header.value, ordered.header.incarnation
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            answer = _done(self.context, bookie_id, Kind.STATUS)
            assert answer.header is not None
            if answer.header.incarnation != incarnation:
                raise BookieError(f"bookie {bookie_id} was started anew meanwhile; ask for the collection again")
            try:
                collection = decoded(answer.body, BookieStatus).collection
            except WireError as error:
                raise BookieError(f"bookie {bookie_id} did not answer with its status: {error}") from error
            if collection is not None and collection.number >= number:
                if why := collection.problem:
                    raise BookieError(f"bookie {bookie_id} did not finish its collection: {why}; see its log")
                return collection
            time.sleep(_LOOK_SECONDS)
        raise BookieError(
            f"bookie {bookie_id} still collects after {seconds_max:g} s, and goes on; `bookspark bookie status {bookie_id}` will "
            "tell what it freed"
        )

    def switch_read_only(self, bookie_id: BookieId, read_only: bool, order: ChangeOrder = 0) -> None:
        """Make a bookie read-only, whatever room it has, or revoke that. The mode survives restarts. The bookie still accepts
        writes of ledger recovery and repair. Returns once the mode is durable; the registration follows. ``order``: number of a
        change's order, which a bookie refuses after a higher one; 0: an operator's own switch, which is always obeyed.

        Raises:
            BookieError: the bookie did not answer, could not store the mode, or has obeyed a higher order.
        """
        _done(self.context, bookie_id, Kind.SWITCH_READ_ONLY, value=int(read_only), limit=order)

    def list_entry_logs(self, bookie_id: BookieId) -> list[EntryLogFacts]:
        """The entry logs of a bookie, by number.

        Raises:
            ReadError: the bookie did not answer within ``answer_timeout_seconds``.
        """
        return bookie_questions.entry_logs(self.context, bookie_id)

    def list_limbo(self, bookie_id: BookieId) -> dict[int, int]:
        """The ledgers in a bookie's limbo: ledger id → number of the lossy boot.

        Raises:
            ReadError: the bookie did not answer within ``answer_timeout_seconds``.
        """
        return bookie_questions.limbo(self.context, bookie_id)

    def list_ranges(self, bookie_id: BookieId, ledger_id: LedgerId | None = None) -> pyarrow.Table:
        """A bookie's entries, of one ledger or (None) of all: one row for each run of consecutive entries on disk.

        The columns are int64: ledger_id, first_entry_id, last_entry_id, log (the entry log's number), position (of the run's
        batch in the log, in bytes) and bytes (of that batch).

        Raises:
            ReadError: the bookie did not answer within ``answer_timeout_seconds``.
        """
        return bookie_questions.ranges(self.context, bookie_id, ledger_id)

    # -- the client itself

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, in this process's session: ledgers, bookies, cookies, logs and repairs."""
        return self.context.store

    def metrics(self) -> Collector:
        """This client's figures in this process, for ``prometheus_client`` (extra ``metrics``)::

            prometheus_client.REGISTRY.register(bookkeeper.metrics())

        docs/metrics.md lists the metrics. All have the label ``client``, which is ``client_name``: several clients of one process
        need different names. A scrape changes nothing. Raises ConfigurationError if ``prometheus_client`` is not installed.
        """
        with extra_needed("metrics"):
            from bookspark.support.metrics.families import FiguresCollector
        return FiguresCollector((*CLIENT, *ZOOKEEPER), partial(client_figures, self.context))

    def misplaced(self, ledgers: Iterable[LedgerMetadata]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The ledgers whose copies break the cluster's placement rule: (ledger id, bookies to replace). Counts only fragments
        that get no more entries, and only bookies with a possible replacement."""
        return self.context.misplaced(ledgers)

    def close(self) -> None:
        """End the connections and threads of this process.

        An open ledger stays open, and its handle's pending appends fail with LedgerClosedError; ``open_ledger`` recovers it.
        Closing twice does nothing. A client dropped without ``close`` is closed with a ResourceWarning.
        """
        self.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.zookeeper, msgspec.to_builtins(self.config))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.zookeeper!r})"

    @property
    def _calls(self) -> Calls:
        return self.context.calls

    def _connect(self) -> MetadataStore:
        return ZooKeeperStore(
            self.zookeeper,
            timeout_seconds=self.config.metadata_timeout_seconds,
            session_timeout_seconds=self.config.metadata_session_timeout_seconds,
        )


def _make(zookeeper: str, options: dict[str, Any]) -> BookKeeper:
    return BookKeeper(zookeeper, **options)

"""Fetching: a bookie copies entries from another bookie at a repair's request, so that they pass no third process.

Law: a fetched entry passes every check of an entry that a repair reads and adds: batch checksum, digest, and the master key at
both bookies. It counts once it is synced. A fetch decides nothing: the repair reads and adds the rest itself, and so finds the
bookie at fault. Entries later than the repair's time limit are reported as not fetched, and dropped; otherwise the repair
would consider this bookie hanging. Only registered bookies are asked, with this bookie's secret and certificate. Memory is
bounded: ``_FETCHES_MAX`` answers of ``READ_BYTES`` are under way, each until it is synced. ``_WAITING_MAX`` fetches wait; the
others are refused, and their repairs read and add the entries themselves. A hanging bookie does not delay them for long, because
a recently failed bookie is not asked.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.commit.completions import AllOf
from bookspark.store.bookie.ledgers.metadata_looks import NOBODY
from bookspark.store.bookie.serving.served_bookie import Fetched
from bookspark.store.bookie.storage import Storage
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.connections import Connections
from bookspark.store.client.network.hello import client_security
from bookspark.store.client.network.io_loop import DeadlineTimer, IoLoop
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.digests import digester_without_password
from bookspark.store.wire.entry_batch import EntryBatch, put_header
from bookspark.store.wire.header import Flag, Header, Kind, Status, WireError
from bookspark.store.wire.messages import FetchFrom
from bookspark.support.threads import Threads

_FETCHES_MAX = 8
_WAITING_MAX = 256
_OK, _IO_ERROR = int(Status.OK), int(Status.IO_ERROR)

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Asked:
    header: Header
    source: FetchFrom
    digest_type: DigestType
    fetched: Fetched
    timer: DeadlineTimer | None = None
    came: bool = False
    """Read; delays are this bookie's own fault from now on."""
    over: bool = False


class Fetching:
    """The fetches of one bookie. ``fetch`` is called on its loop."""

    def __init__(self, store: MetadataStore, config: ClientConfig, storage: Storage, post: Post) -> None:
        """``post(function, *arguments)`` calls the function on the bookie's loop. Raises ConfigurationError if a file named by
        the options can't be used."""
        self._storage = storage
        self._post = post
        self._timeout_seconds = config.answer_timeout_seconds
        security = client_security(config)
        self._threads = Threads(1, "fetching-metadata")
        self._io = IoLoop("fetching")
        self._connections = Connections(store, config, security, self._threads, ChunkPool(writable=True))
        self._under_way = 0
        self._waiting: deque[_Asked] = deque()

    def close(self) -> None:
        """End the connections. Fetches under way are answered with the received entries."""
        with suppress(TimeoutError):
            self._io.call(self._connections.close())
        self._io.stop()
        self._threads.stop()

    def fetch(self, header: Header, source: FetchFrom, fetched: Fetched) -> None:
        """Copy the entries of ``header`` from the other bookie, within ``header.limit`` ms (0: this bookie's answer timeout).
        Raises WireError for an unknown digest type."""
        try:
            kind = DigestType(source.digest_type)
        except ValueError:
            raise WireError(f"a fetch with digests of type {source.digest_type!r}") from None
        if len(self._waiting) >= _WAITING_MAX:
            why = f"{_WAITING_MAX} fetches wait already"
            fetched(Status.TOO_MANY_REQUESTS, header.first_entry_id - 1, 0, why)
            return
        asked = _Asked(header, source, kind, fetched)
        if header.limit:
            asked.timer = DeadlineTimer(header.limit / 1000, partial(self._give_up, asked))
        self._waiting.append(asked)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and self._under_way < _FETCHES_MAX:
            asked = self._waiting.popleft()
            if asked.over:
                continue
            self._under_way += 1
            header, source = asked.header, asked.source.bookie_id
            if why := self._connections.quarantined().get(source):
                self._post(self._end, asked, f"{source}: {why}", header.first_entry_id - 1, 0, _OK)
                continue
            requests = LedgerRequests(
                self._io,
                self._connections,
                header.ledger_id,
                header.master_key,
                digester_without_password(asked.digest_type),
                self._timeout_seconds,
            )
            read = act.SendRead(source, header.first_entry_id, header.last_entry_id)
            requests.read(read, partial(self._came, asked))

    def _came(self, asked: _Asked, event: act.Event) -> None:
        """In the I/O thread."""
        assert isinstance(event, act.ReadAnswered)
        why = "" if isinstance(event.following, Positive) else f"{asked.source.bookie_id}: {event.following}"
        adds = [_as_add(batch, asked.header) for batch in event.entries]
        self._on_the_loop(self._add, asked, adds, why)

    def _on_the_loop(self, function: Callable[..., None], *arguments: object) -> None:
        """Called in the I/O thread. The bookie's loop may have ended."""
        with suppress(RuntimeError):
            self._post(function, *arguments)

    def _give_up(self, asked: _Asked) -> None:
        if not asked.came:
            with suppress(ValueError):
                self._waiting.remove(asked)
            why = f"{asked.source.bookie_id}: nothing came in {asked.header.limit} ms"
            self._answer(asked, _OK, asked.header.first_entry_id - 1, 0, why)

    def _add(self, asked: _Asked, adds: Sequence[tuple[Header, EntryBatch]], why: str) -> None:
        asked.came = True
        if not adds or asked.over:
            self._end(asked, why, asked.header.first_entry_id - 1, 0, _OK)
            return
        last = adds[-1][0].last_entry_id
        byte_count = sum(len(batch.frame) for _, batch in adds)
        added = AllOf(len(adds), partial(self._end, asked, why, last, byte_count))
        self._storage.looks.asker = NOBODY
        for header, batch in adds:
            try:
                self._storage.add(header, batch, added)
            except Exception:
                log.exception("a fetched batch of ledger %d can't be added", header.ledger_id)
                added(_IO_ERROR)

    def _end(self, asked: _Asked, why: str, last: int, byte_count: int, status: int) -> None:
        self._under_way -= 1
        if status != _OK:
            last, byte_count = asked.header.first_entry_id - 1, 0
        self._answer(asked, status, last, byte_count, why)
        self._begin()

    def _answer(self, asked: _Asked, status: int, last: int, byte_count: int, why: str) -> None:
        if not asked.over:
            asked.over = True
            if asked.timer is not None:
                asked.timer.cancel()
            asked.fetched(status, last, byte_count, why)


def _as_add(batch: EntryBatch, asked: Header) -> tuple[Header, EntryBatch]:
    header = Header(
        Kind.ADD,
        asked.request_id,
        asked.ledger_id,
        batch.first_entry_id,
        batch.last_entry_id,
        asked.last_add_confirmed,
        Flag.RECOVERY,
        last_add_fully_replicated=asked.last_add_fully_replicated,
        master_key=asked.master_key,
    )
    put_header(batch.frame, header)
    return header, batch

"""Scripted bookies behind real connections, and clients with metadata in memory.

``Bookie`` answers HELLO and hands its requests to the test. ``FakeBookie`` also keeps entries, fences ledgers and tracks their
LAC (last-add-confirmed); its ``answers`` override its answers by kind of request. ``Cluster`` starts several fake bookies and
clients that use them.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import defaultdict, deque
from functools import partial

import msgspec

from bookspark.store.client.bookkeeper import BookKeeper
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.entry_batch import EntryBatch, encode_entries
from bookspark.store.wire.frames import FrameReceiver, control_frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Flag, Header, Kind, Status
from bookspark.store.wire.messages import Acks, BookieStatus, Hello, Ranges
from tests.awaiting import await_that

SECONDS = 60.0
RESPONSE = int(Flag.RESPONSE)


class Bookie:
    """Answers HELLO, STATUS (with its id) and adds, and reads other requests without an answer, unless the test changes that."""

    def __init__(self, bookie_id, *, version=PROTOCOL_VERSION, port=0, greets_only=False):
        self._id, self._version = bookie_id, version
        self.taking = threading.Event()
        self.taking.set()
        self.answering = True
        self.last_add_synced = -1
        """Last synced entry id in its answers."""
        self.statuses = {Kind.HELLO: Status.OK, Kind.STATUS: Status.OK, Kind.ADD: Status.OK}
        """Answers by kind of request; other kinds get no answer."""
        self.headers = queue.SimpleQueue()
        """Headers of all received requests."""
        self._greets_only = greets_only
        """Stop reading after the first HELLO, until ``taking`` is set."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._sockets = []
        self._threads = []
        self._spawn(self._accept)

    def _spawn(self, target, *args):
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                self._sockets.append(accepted)
                self._spawn(self._serve, accepted)

    def _serve(self, accepted):
        receiver = FrameReceiver()
        with contextlib.suppress(OSError):
            while self.taking.wait(SECONDS) and (count := accepted.recv_into(receiver.buffer())):
                for frame in receiver.received(count):
                    self._received(accepted, frame)

    def _received(self, accepted, frame):
        self.headers.put(frame.header)
        if self.answering and frame.header.kind in self.statuses:
            self._answer(accepted, frame.header)
        if self._greets_only:
            self._greets_only = False
            self.taking.clear()

    def _answer(self, accepted, header):
        status = self.statuses[header.kind]
        answer = header._replace(flags=RESPONSE, status=status, value=self._version)
        answer = answer._replace(last_add_synced=self.last_add_synced)
        accepted.sendall(control_frame(answer, self._id.encode()))

    def asked(self, kind):
        """Wait for the next unanswered request of this kind; returns a function that answers it."""
        while (header := self.headers.get(timeout=SECONDS)).kind != kind:
            pass
        return partial(self._answer, self._sockets[-1], header)

    def cut(self):
        """Close all connections; new ones are accepted."""
        while self._sockets:
            _close(self._sockets.pop())

    def end(self):
        self.taking.set()
        for each in [self._listener, *self._sockets]:
            _close(each)
        for thread in self._threads:
            thread.join(SECONDS)


def _close(each):
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


# -- scripted answers: a status, or a function of (bookie, header, body) that returns the answer's bytes


def silence(bookie, header, body):
    """No answer."""
    return b""


def garbage(bookie, header, body):
    """Bytes that are not a frame."""
    return b"these bytes are no frame of Bookspark"


def hang_up(bookie, header, body):
    """Close the connection."""
    raise ConnectionError


def held(bookie, header, body):
    """No answer until ``FakeBookie.release``."""
    bookie.held.append((bookie.asking, header, body))
    return b""


def told(header, body=b"", **fields):
    """The control frame that answers ``header``, with changed ``fields``. For a read it says that no entries were sent."""
    if header.kind == Kind.READ:
        fields = {"last_entry_id": header.first_entry_id - 1} | fields
    return control_frame(
        Header(header.kind, header.request_id, header.ledger_id, flags=RESPONSE)._replace(**fields), body
    )


def batch(header, entries, **fields):
    """A batch frame with ``entries``, part of the answer to ``header``."""
    first, last = entries[0].entry_id, entries[-1].entry_id
    made = Header(Kind.READ, header.request_id, header.ledger_id, first, last, flags=RESPONSE | Flag.MORE)
    return bytes(encode_entries(made._replace(**fields), entries))


class FakeBookie(Bookie):
    """Keeps entries and answers like a bookie, unless ``answers`` or ``answers_once`` override it."""

    def __init__(self, bookie_id, **options):
        self.answers = {}
        """Scripted answers by kind of request."""
        self.answers_once = defaultdict(deque)
        """Scripted answers to the next requests of a kind."""
        self.requests = []
        """Header of each request, with the entries of an add."""
        self.held = []
        self.asking = None
        """Connection of the request in progress."""
        self.entries = defaultdict(dict)
        """Entries by ledger id and entry id."""
        self.confirmed = defaultdict(lambda: -1)
        self.fenced = set()
        self.fences = True
        """False: answers fencing reads without fencing."""
        self.entries_per_answer = 1000
        self._polls = []
        self._doing = threading.RLock()
        super().__init__(bookie_id, **options)

    # -- for the test

    def came(self, kind):
        """Headers of the requests of this kind so far."""
        return [header for header, _ in list(self.requests) if header.kind == kind]

    def await_requests(self, kind, count=1):
        """Wait for ``count`` requests of this kind; returns their headers."""
        await_that(lambda: len(self.came(kind)) >= count, what=lambda: f"{count} times {kind!r}: {self.requests}")
        return self.came(kind)

    def added(self):
        """First and last entry id of each received add."""
        return [(header.first_entry_id, header.last_entry_id) for header in self.came(Kind.ADD)]

    def release(self, index=0):
        """Answer the ``index``-th held request like a bookie."""
        with self._doing:
            self.asking, header, body = self.held.pop(index)
            self._send(self.asking, self.as_a_bookie(header, body))

    def release_all(self):
        """Answer all held requests, and hold no request from now on."""
        with self._doing:
            self.answers.clear()
            while self.held:
                self.release()

    def say(self, content):
        """Send these bytes without a request."""
        with self._doing:
            self._sockets[-1].sendall(content)

    # -- answers of a bookie

    def _received(self, accepted, frame):
        header, body = frame.header, bytes(frame.body)
        if frame.batch is not None:
            body = list(EntryBatch.checked(bytes(frame.batch), header, frame.body_crc).entries())
        with self._doing:
            script = self.answers.get(header.kind, FakeBookie.as_a_bookie)
            if once := self.answers_once[header.kind]:
                script = once.popleft()
            self.requests.append((header, body))
            self.asking = accepted
            try:
                answer = told(header, status=script) if isinstance(script, Status) else script(self, header, body)
                self._send(accepted, answer)
            except ConnectionError:
                _close(accepted)

    def _send(self, accepted, content):
        if content:
            accepted.sendall(content)
        for poll in [poll for poll in self._polls if self._is_due(poll[1])]:
            self._polls.remove(poll)
            poll[0].sendall(self._lac_of(poll[1]))

    def as_a_bookie(self, header, body):
        """Bytes of a bookie's answer; empty: the answer comes later."""
        if self.fences and header.flags & Flag.FENCE:
            self.fenced.add(header.ledger_id)
        answer = getattr(self, f"_{Kind(header.kind).name.lower()}", None)
        return told(header) if answer is None else answer(header, body)

    def _hello(self, header, body):
        self.greeted_by = Hello.decode(body)
        return told(header, self._id.encode(), value=self._version, incarnation=1)

    def _status(self, header, body):
        status = BookieStatus(self._id, 1, 1, [], 0, 0, 1 << 30)
        return told(header, msgspec.json.encode(status), incarnation=1)

    def _add(self, header, entries):
        ledger_id = header.ledger_id
        if ledger_id in self.fenced and not header.flags & Flag.RECOVERY:
            return told(header, status=Status.FENCED)
        self.entries[ledger_id].update((entry.entry_id, entry) for entry in entries)
        self.confirmed[ledger_id] = max(self.confirmed[ledger_id], header.last_add_confirmed)
        if header.flags & Flag.VOLATILE:
            return told(header, last_add_synced=self.last_add_synced, incarnation=1)
        return control_frame(Header(Kind.ACKS, 0), Acks.encode([header.request_id]))

    def _sync(self, header, body):
        self.last_add_synced = max(self.entries[header.ledger_id])
        return told(header, last_add_synced=self.last_add_synced, incarnation=1)

    def _read(self, header, body):
        kept, first, last = self.entries[header.ledger_id], header.first_entry_id, header.last_entry_id
        to, frames = first, []
        while to <= last and to in kept and len(frames) < self.entries_per_answer:
            frames.append(batch(header, [kept[to]]))
            to += 1
        ended = to > last or len(frames) == self.entries_per_answer
        frames.append(
            told(
                header,
                status=Status.OK if ended else Status.NO_SUCH_ENTRY,
                first_entry_id=first,
                last_entry_id=to - 1,
                value=len(frames),
                last_add_confirmed=self.confirmed[header.ledger_id],
            )
        )
        return b"".join(frames)

    def _ranges(self, header, body):
        found = Ranges.empty()
        for entry_id in sorted(self.entries[header.ledger_id]):
            if entry_id >= header.first_entry_id:
                found.append((header.ledger_id, entry_id, entry_id, 0, 0, 1))
        return told(header, found.encode(), value=-1)

    def _write_lac(self, header, body):
        self.confirmed[header.ledger_id] = max(self.confirmed[header.ledger_id], header.last_add_confirmed)
        return told(header)

    def _read_lac(self, header, body):
        if header.limit and not self._is_due(header):
            self._polls.append((self.asking, header))
            return b""
        return self._lac_of(header)

    def _is_due(self, header):
        return self.confirmed[header.ledger_id] >= header.first_entry_id

    def _lac_of(self, header):
        kept = self.entries[header.ledger_id]
        wanted = kept.get(header.first_entry_id) if header.flags & Flag.ENTRY and self._is_due(header) else None
        answer = told(header, last_add_confirmed=self.confirmed[header.ledger_id], value=max(kept, default=-1))
        return (batch(header, [wanted], kind=Kind.READ_LAC) if wanted else b"") + answer


class MemoryBookKeeper(BookKeeper):
    """A client with a metadata store in memory."""

    def __init__(self, store, **options):
        super().__init__("memory:1", **options)
        self.context = ClientContext(store.another, self.config)


PATIENT = {
    "add_timeout_seconds": SECONDS,
    "answer_timeout_seconds": SECONDS,
    "connect_timeout_seconds": SECONDS,
    "bookie_stall_seconds": SECONDS,
    "explicit_lac_interval_seconds": SECONDS,
    "speculative_read_delay_ms": 0,
}
"""Options under which no timeout fires: only the bookies' answers matter."""


class Cluster:
    """Fake bookies b1, b2, … and clients that use them."""

    def __init__(self):
        self.store = MemoryStore()
        self.bookies = {}
        self.writers = []
        """Handles that live as long as the test: a garbage-collected handle sends its LAC to the bookies."""
        self.clients = []

    def start(self, *bookie_ids, **registered):
        """Start bookies; returns them."""
        return [self._start(bookie_id, registered) for bookie_id in bookie_ids]

    def _start(self, bookie_id, registered):
        bookie = self.bookies[bookie_id] = FakeBookie(bookie_id)
        self.store.register_bookie(BookieRegistration(bookie_id, f"127.0.0.1:{bookie.port}", 1, **registered))
        return bookie

    def client(self, **options):
        made = MemoryBookKeeper(self.store, **PATIENT | options)
        self.clients.append(made)
        return made

    def close(self):
        for client in self.clients:
            client.close()
        for bookie in self.bookies.values():
            bookie.end()
        self.store.close()

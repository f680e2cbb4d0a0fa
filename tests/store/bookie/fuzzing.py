"""Fuzzer inputs for all code that a stranger's bytes reach: HELLO, every kind of request, TLS, and ZooKeeper records.

``Target.take(data)`` raises only on a defect: an error in the log, an exception, sent bytes that are no frame, or a request
without an answer. The first byte of ``data`` selects how the rest is used.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from bookspark.errors import BookKeeperError
from bookspark.logs.chain.codec import (
    decode_commit,
    decode_header,
    decode_record,
    encode_commit,
    encode_header,
    encode_record,
)
from bookspark.logs.chain.stamps import stamp_of, stamped
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.logs.commits import Commit, CommitHeader, EntryRange, Fingerprint, Position
from bookspark.protocol.logs.ended_lanes import out_of_index
from bookspark.protocol.logs.lanes import with_lane
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.repair.underreplication_task import Reason, Task
from bookspark.store.bookie.serving.admission import Admission
from bookspark.store.bookie.serving.connection import Connection
from bookspark.store.bookie.serving.porch import first_message_size
from bookspark.store.bookie.serving.server import BookieServer
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.bookkeeper_format import service_info
from bookspark.store.metadata.records.codec import (
    decode_cookie,
    decode_ledger,
    decode_registration,
    decode_task,
    encode_cookie,
    encode_ledger,
    encode_registration,
    encode_task,
)
from bookspark.store.metadata.zookeeper.layout import Layout, parse_address
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.frames import HELLO_BYTES_MAX, FrameReceiver, control_frame
from bookspark.store.wire.header import HEADER_BYTES, PROTOCOL_VERSION, Flag, Header, Kind, WireError
from bookspark.store.wire.messages import Hello
from bookspark.store.wire.security import client_hello_size
from tests.awaiting import SECONDS_MAX
from tests.store.bookie.kit import add_frame
from tests.store.wire.fuzzing import batch, control, damaged_batch

_ANSWER_SECONDS_MAX = SECONDS_MAX
_KIND_OFFSET, _LIMIT_OFFSET = 2, 88
_POLL_MS_MAX = 1


class Errors(logging.Handler):
    """Collects all log records of level error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))


class Transport(asyncio.Transport):
    """A transport that accepts all data at once."""

    def __init__(self) -> None:
        super().__init__(extra={"socket": self})
        self.sent: list[bytes] = []
        self.wrote = asyncio.Event()
        self.ended = False

    def write(self, data):
        self.sent.append(bytes(data))
        self.wrote.set()

    def writelines(self, parts):
        self.write(b"".join(parts))

    def abort(self):
        self.ended = True

    close = abort

    def is_closing(self):
        return self.ended

    def can_write_eof(self):
        return False

    def setsockopt(self, level, option, value):
        """Ignored: the transport stands in for its socket."""

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        pass

    resume_reading = pause_reading


class Known:
    """A remote caller known to the admission."""

    origin, until = "192.0.2.1", float("inf")

    def end(self):
        pass


class Target:
    """A bookie in this process, on the event loop that creates it; ``certificate`` (a PEM file) for TLS."""

    def __init__(self, server: BookieServer, certificate: str) -> None:
        self._server = server
        self._admission = Admission(server.storage, server._bookie.refusals, 64 << 20, 256 << 20)
        self.reached: dict[str, int] = {}
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)
        self._errors = Errors()
        logging.getLogger("bookspark").addHandler(self._errors)

    def close(self) -> None:
        """Stop watching the log."""
        logging.getLogger("bookspark").removeHandler(self._errors)

    async def take(self, data: bytes) -> None:
        """Take one input."""
        what, rest = data[0] if data else 0, data[1:]
        if what < 0xA0:
            greeted, damaged = what & 1, what & 2
            requests = _requests(rest) if not damaged else [rest]
            await self._connection([_HELLO, *requests] if greeted else requests)
        elif what < 0xC0:
            self._shake_hands(rest)
        else:
            self._record((what - 0xC0) % len(RECORDS), rest)
        if self._errors.told:
            raise AssertionError(self._errors.told.pop())

    async def _connection(self, frames: list[bytes]) -> None:
        said = b"".join(frames)
        with suppress(WireError):
            size = first_message_size(said)
            assert 8 <= size <= HELLO_BYTES_MAX
            assert len(said) < 8 or size > HEADER_BYTES
        transport = Transport()
        connection = Connection(self._server._bookie, self._admission, self._server._chunks, Known(), "fuzzed")
        connection.connection_made(transport)
        at = 0
        while at < len(said) and not transport.ended:
            room = connection.get_buffer(-1)
            assert 0 < len(room) <= 17 << 20
            part = said[at : at + len(room)]
            room[: len(part)] = part
            connection.buffer_updated(len(part))
            at += len(part)
            while connection._waiting and connection._transport is not None:
                # A transport reads no more until these requests are handled.
                await asyncio.sleep(0)
        # Every request is answered: long polls when they time out, others from a thread.
        dispatch = connection._dispatch
        while (dispatch._answers.under_way or connection._waiting) and connection._transport is not None:
            transport.wrote.clear()
            await asyncio.wait_for(transport.wrote.wait(), _ANSWER_SECONDS_MAX)
        await asyncio.sleep(0)
        refused = connection._transport is None
        connection.connection_lost(None)
        answers = _frames(b"".join(transport.sent))
        self._note("refused" if refused else "answered")
        for answer in answers:
            assert answer.header.flags & Flag.RESPONSE or answer.batch is not None
            self._note(f"{answer.header.kind}:{answer.header.status}")

    def _shake_hands(self, data: bytes) -> None:
        with suppress(WireError):
            assert 5 <= client_hello_size(data) <= 5 + (1 << 14)
        coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
        coming.write(data)
        try:
            self._tls.wrap_bio(coming, going, server_side=True).do_handshake()
        except ssl.SSLWantReadError:
            self._note("TLS goes on")
        except ssl.SSLError:
            self._note("TLS refused")

    def _record(self, what: int, data: bytes) -> None:
        name, decode, encode = RECORDS[what]
        try:
            value = decode(data)
        except BookKeeperError:
            self._note(f"{name} refused")
            return
        self._note(f"{name} taken")
        if encode is not None:
            document = encode(value)
            # A log's record omits empty fields.
            assert decode(document) == value or encode(decode(document)) == document

    def _note(self, what: str) -> None:
        self.reached[what] = self.reached.get(what, 0) + 1


def _decode_text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: decode(data.decode("utf-8", "replace"))


RECORDS: list[tuple[str, Callable[[bytes], object], Callable[[object], bytes] | None]] = [
    ("ledger", lambda data: decode_ledger(7, data), encode_ledger),
    ("registration", lambda data: decode_registration("bookie-1", data), encode_registration),
    ("cookie", lambda data: decode_cookie(data, "a cookie"), encode_cookie),
    ("task", lambda data: decode_task(7, data), encode_task),
    ("layout", lambda data: Layout("/a").follow(data), None),
    ("address", _decode_text(parse_address), None),
    ("log", lambda data: decode_record(data, "orders"), encode_record),
    ("header", lambda data: decode_header(data, 7), encode_header),
    ("commit", lambda data: decode_commit(data, 7, 1), encode_commit),
    ("row", lambda data: stamp_of(data, "here"), lambda row: stamped(row[0], row[1], row[4], row[2], row[3])),
]
"""Records of ZooKeeper and of a log's ledgers: name, decoder, encoder."""
_HELLO = control_frame(Header(Kind.HELLO, 1, value=PROTOCOL_VERSION), Hello("a fuzzer").encode())


def _requests(data: bytes) -> list[bytes]:
    """Frames with valid checksums from pieces of ``data``: control frames of all kinds, adds, and damaged adds."""
    frames = []
    for start in range(0, len(data), HEADER_BYTES + 8):
        piece = data[start + 1 : start + HEADER_BYTES + 8]
        what = data[start]
        if what < 0xC0:
            header = bytearray(piece[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"))
            header[_KIND_OFFSET] = what & 15 if what < 0x80 else header[_KIND_OFFSET]
            if header[_KIND_OFFSET] == Kind.READ_LAC:
                limit = min(_POLL_MS_MAX, int.from_bytes(header[_LIMIT_OFFSET : _LIMIT_OFFSET + 4], "little"))
                header[_LIMIT_OFFSET : _LIMIT_OFFSET + 4] = limit.to_bytes(4, "little")
            frames.append(control(bytes(header) + piece[HEADER_BYTES:]))
        elif what < 0xD0:
            frames.append(batch(piece))
        elif what < 0xE0:
            frames.append(damaged_batch(piece))
        else:
            first = piece[0] if piece else 0
            frames.append(
                add_frame(what & 7, first, first + (what >> 3 & 3), flags=(piece[1] if len(piece) > 1 else 0) & 0x3B)
            )
    return frames


def _frames(sent: bytes) -> list:
    """Decode the sent bytes, which must be whole frames."""
    receiver, found, at = FrameReceiver(), [], 0
    while at < len(sent):
        room = receiver.buffer()
        part = sent[at : at + len(room)]
        room[: len(part)] = part
        found += receiver.received(len(part))
        at += len(part)
    assert receiver._start == receiver._end, "the last frame is whole"
    return found


def seeds() -> list[bytes]:
    """Start inputs for a fuzzer that reach deep code."""
    ids = (0).to_bytes(8, "little") * 2
    made = [b"\x01" + bytes([kind, 1, 0, kind, 0]) + bytes(11) + ids + bytes(80) for kind in range(16)]
    made += [b"\x01" + bytes([0xE1, 0]) + bytes(118) + bytes([3, 1, 0, 3, 0]) + bytes(115)]
    made += [b"\x02" + _HELLO, b"\x03" + _HELLO, b"\x00" + bytes([1]) + bytes(119)]
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client.wrap_bio(coming, going).do_handshake()
    made.append(b"\xa0" + going.read())
    names = [name for name, _, _ in RECORDS]
    return made + [bytes([0xC0 + names.index(name)]) + document for name, document in _documents()]


def _documents() -> Iterator[tuple[str, bytes]]:
    """Valid records of each kind, with all optional fields."""
    loss = AcceptedLoss("an operator", 5, ("c",), (Loss(LossKind.ENTRIES, 0, 4, ("c",)),), ("c",))
    fragments = (Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "b", "d")))
    ledger = LedgerMetadata(7, 3, 3, 2, fragments, ctime_ms=5, custom_metadata={"team": b"billing"})
    closed = replace(ledger, state=LedgerState.CLOSED, last_entry_id=9, length=99)
    yield "ledger", encode_ledger(ledger)
    yield "ledger", encode_ledger(replace(closed, accepted_loss=loss))
    kind = DigestType.BOOKKEEPER_CRC32C
    theirs = replace(closed, digest_type=kind, master_key=master_key(b"secret", kind), password=b"secret")
    yield "ledger", encode_ledger(theirs)
    registration = BookieRegistration("bookie-1", "127.0.0.1:3181", 5)
    yield "registration", encode_registration(registration)
    yield "registration", service_info("127.0.0.1:3182", encode_registration(registration))
    yield "cookie", encode_cookie(Cookie("bookie-1", ("/disk1",), "instance", "nonce"))
    yield "task", encode_task(Task(7, {"a": Reason.LOST}, "a host is gone", 5))
    yield "layout", b"2\nhierarchical:1"
    yield "address", b"zk://h1:2181,h2/a/b?tls_ca=/c&sasl_file=/d"
    record = LogRecord("orders", ctime_ms=5).claim("run-1", "query").with_commit_ledger(8, "run-1", 1, ())
    yield "log", encode_record(with_lane(record, 1, "service:billing", "/checkpoint").batch_write_begun("run-2"))
    yield "log", encode_record(out_of_index(with_lane(record, 1, "service:billing", after=1), 1))
    print_of = Fingerprint(100, "5b7d", "0c9d", "e5d4")
    yield "header", encode_header(CommitHeader(1, Position(4, 400, 5000), {"q": 3}, {"q": print_of}, 9))
    yield (
        "commit",
        encode_commit(
            Commit("q", 4, "run-1", 1, (EntryRange(8, 0, 9, 10, 100),), 9, fingerprint=print_of, first_row=400)
        ),
    )
    yield (
        "commit",
        encode_commit(
            Commit("service:a", 4, "run-1", 1, (), 9, first_row=400, first_byte=900, open_ledger=7, stamped=True)
        ),
    )
    yield "row", stamped(5, 6, b"value", b"key", (("trace", b"1"),))

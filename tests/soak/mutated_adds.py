"""Send mutated ADD frames to both doors of a bookie process, while honest clients append at both. Rounds are minutes.

A frame is flipped, cut, spliced with another one, or gets other lengths, ids or Arrow metadata; half of them get new checksums,
so that the checks behind the checksums decide. Each connection must end within a deadline. The bookie must live, log no traceback
and keep its memory; every honest append must be acknowledged, and be readable afterwards. ``--first`` is the seed.
"""

from __future__ import annotations

import random
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from crc32c import crc32c

from bookspark.local import LocalCluster
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.servers.bookkeeper.messages import Operation
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from bookspark.store.wire.batch_prefix import BODY_LENGTH_OFFSET, HEADER_END, HEADER_OFFSET, PREFIX_BYTES, ROWS_OFFSET
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.frames import FrameReceiver, control_frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Header, Kind, Status, WireError
from tests.awaiting import time_passes
from tests.servers.bookkeeper.kit import KEY, PASSWORD, Caller, add_2, body, request
from tests.soak._command import main
from tests.soak.slow_bookies import resident_bytes
from tests.store.bookie.kit import add_frame

_STRANGE_LEDGERS = 8
_STRANGE_ENTRIES = 12
_ENDS_WITHIN_SECONDS = 30.0
_WARM_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_LISTENS_SECONDS = 0.02
_PAUSE_SECONDS = 0.002
"""After each connection. The bookie and this process together take about one core."""
_GROWTH_BYTES_MAX = 64 << 20
_HONEST_EVERY = 20
_ASSIGNMENT = 1 << 20 | 1 << 10
"""Of a volatile ledger: ensemble size 1, write quorum 1, position 0."""
_HELLO = control_frame(Header(Kind.HELLO, 1, value=PROTOCOL_VERSION))
_NUMBERS = (0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 0xFFFF, FRAME_BYTES_MAX, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_CRC_AT, _HEADER_CRC_AT, _HEADER_CRC_BYTES = HEADER_OFFSET + 92, HEADER_OFFSET + 108, 108

Mutation = Callable[[bytearray, random.Random], bytes]


# -- Mutations of any bytes


def _flipped(frame: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
    return bytes(frame)


def _cut(frame: bytearray, chance: random.Random) -> bytes:
    return bytes(frame[: chance.randrange(len(frame))])


def _number_written(frame: bytearray, chance: random.Random) -> bytes:
    size, order = chance.choice((2, 4, 8)), chance.choice(("little", "big"))
    at = chance.randrange(max(1, len(frame) - size))
    number = chance.choice(_NUMBERS) % (1 << 8 * size)
    frame[at : at + size] = number.to_bytes(size, order)
    return bytes(frame)


def _doubled(frame: bytearray, chance: random.Random) -> bytes:
    first, end = sorted(chance.randrange(len(frame) + 1) for _ in range(2))
    return bytes(frame[:end] + frame[first:])


def _dropped(frame: bytearray, chance: random.Random) -> bytes:
    first, end = sorted(chance.randrange(len(frame) + 1) for _ in range(2))
    return bytes(frame[:first] + frame[end:])


def _random(frame: bytearray, chance: random.Random) -> bytes:
    first, end = sorted(chance.randrange(len(frame) + 1) for _ in range(2))
    frame[first:end] = chance.randbytes(end - first)
    return bytes(frame)


def _whole(frame: bytearray, chance: random.Random) -> bytes:
    return bytes(frame)


_ANYWHERE: tuple[Mutation, ...] = (_flipped, _cut, _number_written, _doubled, _dropped, _random, _whole)


# -- Mutations of a batch frame


def _arrow_metadata(frame: bytearray, chance: random.Random) -> bytes:
    """The flatbuffer behind the header: lengths, rows, buffers, nodes, tables."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.choice((BODY_LENGTH_OFFSET, ROWS_OFFSET, chance.randrange(HEADER_END, PREFIX_BYTES - 8)))
        struct.pack_into("<q", frame, at, chance.choice(_NUMBERS))
    return bytes(frame)


def _columns(frame: bytearray, chance: random.Random) -> bytes:
    """Ids, lengths and offsets in the body."""
    for _ in range(chance.choice((1, 2, 4))):
        at = PREFIX_BYTES + 4 * chance.randrange(max(1, (len(frame) - PREFIX_BYTES) // 4))
        frame[at : at + 4] = (chance.choice(_NUMBERS) % (1 << 32)).to_bytes(4, "little")
    return bytes(frame)


def _header_fields(frame: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 3))):
        frame[HEADER_OFFSET + chance.randrange(_HEADER_CRC_BYTES)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(frame)


_OF_BATCHES: tuple[Mutation, ...] = (_arrow_metadata, _columns, _header_fields)


def _with_checksums(frame: bytes) -> bytes:
    """The frame with checksums that fit, if it is long enough to have any."""
    if len(frame) < PREFIX_BYTES:
        return frame
    made = bytearray(frame)
    struct.pack_into("<I", made, _CRC_AT, crc32c(made[PREFIX_BYTES:]))
    struct.pack_into("<I", made, _HEADER_CRC_AT, crc32c(made[HEADER_OFFSET : HEADER_OFFSET + _HEADER_CRC_BYTES]))
    return bytes(made)


def _mutated(make: Callable[[], bytes], mutations: tuple[Mutation, ...], chance: random.Random) -> bytes:
    """A mutated frame, perhaps with a part of another one behind its beginning."""
    frame = chance.choice(mutations)(bytearray(make()), chance)
    if chance.random() < 0.15:
        other = make()
        frame = frame[: chance.randrange(len(frame) + 1)] + other[chance.randrange(len(other)) :]
    return frame


# -- The two doors


class _OwnDoor:
    """The door of Bookspark's own protocol. The ids of its ledgers are not given out."""

    name = "own"

    def __init__(self, address: str, ledgers: list[int]) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)

    def bytes_of_a_connection(self, chance: random.Random) -> bytes:
        def frame() -> bytes:
            ledger_id = 1_000_000 + chance.randrange(_STRANGE_LEDGERS)
            first = chance.randrange(_STRANGE_ENTRIES)
            return bytes(
                add_frame(
                    ledger_id,
                    first,
                    first + chance.choice((0, 0, 1, 3)),
                    payload=bytes(chance.choice((0, 1, 100, 3000))),
                    flags=chance.choice((0, 0, 0, 2, 4, 6)),
                    limit=_ASSIGNMENT,
                    value=0,
                    request_id=chance.randrange(1, 100),
                )
            )

        parts = [_HELLO]
        for _ in range(chance.choice((1, 1, 2, 4))):
            mutated = _mutated(frame, (*_ANYWHERE, *_OF_BATCHES, *_OF_BATCHES), chance)
            parts.append(_with_checksums(mutated) if chance.random() < 0.6 else mutated)
        return b"".join(parts)

    def outcomes(self, answered: bytes) -> list[str]:
        receiver, found = FrameReceiver(), []
        while answered:
            room = receiver.buffer()
            part, answered = answered[: len(room)], answered[len(room) :]
            room[: len(part)] = part
            # What the bookie sends is always a frame: an error here is a violation.
            for frame in receiver.received(len(part)):
                if frame.header.kind != Kind.HELLO:
                    # The answer to an unknown kind has that kind.
                    kind = Kind(frame.header.kind).name if frame.header.kind in list(Kind) else "other"
                    found.append(f"{kind}:{Status(frame.header.status).name}")
        return found


class _BookKeepersDoor:
    """The door for BookKeeper's clients, in ledgers that exist."""

    name = "bookkeeper"

    def __init__(self, address: str, ledgers: list[int]) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self._ledgers = ledgers

    def bytes_of_a_connection(self, chance: random.Random) -> bytes:
        def frame() -> bytes:
            ledger_id, entry_id = chance.choice(self._ledgers), chance.randrange(_STRANGE_ENTRIES)
            made = body(ledger_id, entry_id, bytes(chance.choice((0, 1, 100, 3000))), entry_id - 1)
            if chance.random() < 0.3:
                made = chance.choice(_ANYWHERE)(bytearray(made), chance)
            if chance.random() < 0.5:
                return add_2(KEY, made, chance.choice((0, 0, 1, 2)))
            fields = {"ledgerId": ledger_id, "entryId": entry_id, "masterKey": KEY, "body": made}
            fields |= {"writeFlags": chance.choice((0, 0, 1)), "flag": chance.choice((1, 2))}
            return request(Operation.ADD_ENTRY, chance.randrange(100), "add", **fields)

        parts = []
        for _ in range(chance.choice((1, 1, 2, 4))):
            mutated = _mutated(frame, _ANYWHERE, chance)
            if chance.random() < 0.6 and len(mutated) > 4:
                # The length that fits: the message behind it decides.
                mutated = struct.pack(">I", len(mutated) - 4) + mutated[4:]
            parts.append(mutated)
        return b"".join(parts)

    def outcomes(self, answered: bytes) -> list[str]:
        found, at = [], 0
        while len(answered) - at >= 4:
            (size,) = struct.unpack_from(">I", answered, at)
            assert 4 <= size <= FRAME_BYTES_MAX, f"an answer of {size} bytes"
            found.append("answer of version 2" if answered[at + 4] == 2 else "answer of version 3")
            at += 4 + size
        return found


def _answers(address: tuple[str, int], said: bytes, listens: bool) -> tuple[bytes, str]:
    """All bytes that the bookie answers to ``said`` on a connection of its own, and how the connection ended. ``listens``: only
    end it after a moment without answers."""
    answered = bytearray()
    with socket.create_connection(address, _ENDS_WITHIN_SECONDS) as connection:
        with suppress(OSError):
            connection.sendall(said)
            if listens:
                connection.settimeout(_LISTENS_SECONDS)
                with suppress(TimeoutError):
                    while piece := connection.recv(1 << 16):
                        answered += piece
                connection.settimeout(_ENDS_WITHIN_SECONDS)
            connection.shutdown(socket.SHUT_WR)
        try:
            while piece := connection.recv(1 << 16):
                answered += piece
        except ConnectionResetError:
            return bytes(answered), "reset"
    return bytes(answered), "ended"


# -- The honest clients


class _Honest:
    """Appends at both doors, and reads it all in the end."""

    def __init__(self, client, address: str) -> None:  # type: ignore[no-untyped-def]
        self._client = client
        self._ledger = client.create_ledger(1, 1, 1, password=b"honest")
        host, _, port = address.rpartition(":")
        other = client.create_ledger(1, 1, 1, digest_type=DigestType.BOOKKEEPER_CRC32C, password=PASSWORD)
        self._other, self._caller = other.ledger_id, Caller((host, int(port)))
        self.appended = self._length = 0

    @staticmethod
    def payload(number: int) -> bytes:
        return (b"%d," % number) * 50

    def append(self) -> None:
        number, payload = self.appended, self.payload(self.appended)
        assert self._ledger.append(payload) == number
        self._length += len(payload)
        made = body(self._other, number, payload, number - 1, self._length)
        fields = {"ledgerId": self._other, "entryId": number, "masterKey": KEY, "body": made, "flag": 2}
        self._caller.send(request(Operation.ADD_ENTRY, number, "add", **fields))
        assert self._caller.statuses(1) == {number: 0}
        self.appended += 1

    def check(self) -> None:
        """Read every append, through both doors."""
        last = self.appended - 1
        with self._client.open_ledger_no_recovery(self._ledger.ledger_id, password=b"honest", confirmed=last) as reader:
            number = -1
            for number, entry in enumerate(reader.read(0, last)):
                assert (entry.entry_id, entry.payload) == (number, self.payload(number))
            assert number == last
        for number in range(self.appended):
            fields = {"ledgerId": self._other, "entryId": number}
            self._caller.send(request(Operation.READ_ENTRY, number, "read", **fields))
            answer = self._caller.answer()
            assert answer.status == 0 and answer.read.body.endswith(self.payload(number))


# -- The run


def _check_log(log: Path) -> None:
    content = log.read_bytes()
    assert b"Traceback" not in content, content[content.index(b"Traceback") :][:2000].decode(errors="replace")


def mutated_adds(minutes: int, first: int = 0) -> Mapping[str, object]:
    chance = random.Random(first or 20)
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutated-adds-"))
        place = stack.enter_context(EmbeddedZooKeeper(Path(home, "zookeeper"))).connection_string
        begin_cluster(place, LedgerManager.BOOKKEEPER)
        cluster = stack.enter_context(LocalCluster(1, Path(home, "bookies"), place, bookkeeper_port=-1))
        [bookie] = cluster.bookies
        client = stack.enter_context(cluster.bookkeeper())
        [registered] = client.metadata.bookies().values()
        address = registered.bookkeeper_address
        made = [
            client.create_ledger(1, 1, 1, digest_type=DigestType.BOOKKEEPER_CRC32C, password=PASSWORD).ledger_id
            for _ in range(_STRANGE_LEDGERS)
        ]
        honest = _Honest(client, address)
        doors = _OwnDoor(bookie.address, made), _BookKeepersDoor(address, made)
        pid, log = bookie.pid, Path(bookie.directories[0], "bookie.log")
        assert pid is not None
        counts: dict[str, Counter[str]] = {door.name: Counter() for door in doors}
        sizes: list[int] = []
        began = looked = time.monotonic()
        while (now := time.monotonic()) < began + 60 * minutes:
            door = doors[counts["own"]["connections"] > counts["bookkeeper"]["connections"]]
            said = door.bytes_of_a_connection(chance)
            try:
                answered, end = _answers(door.address, said, listens=chance.random() < 0.25)
                outcomes = door.outcomes(answered)
            except (OSError, AssertionError, WireError) as error:
                raise AssertionError(f"{door.name} door: {error!r} after {said.hex()}") from error
            counts[door.name]["connections"] += 1
            counts[door.name].update([end, *outcomes])
            if counts["own"]["connections"] % _HONEST_EVERY == 0:
                honest.append()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                assert bookie.pid == pid, "the bookie died"
                _check_log(log)
                if now - began >= min(_WARM_SECONDS, 20 * minutes):
                    sizes.append(resident_bytes(pid))
            time_passes(_PAUSE_SECONDS)
        honest.append()
        honest.check()
        assert bookie.pid == pid, "the bookie died"
        _check_log(log)
        growth = max(sizes) - sizes[0]
        result = {
            "seed": first or 20,
            "minutes": minutes,
            **{name: dict(counted) for name, counted in counts.items()},
            "honest_appends": 2 * honest.appended,
            "rss_mib": [
                round(sizes[0] / (1 << 20), 1),
                round(max(sizes) / (1 << 20), 1),
                round(sizes[-1] / (1 << 20), 1),
            ],
            "growth_mib": round(growth / (1 << 20), 1),
            "log_bytes": log.stat().st_size,
            "violations": 0,
        }
        assert growth <= _GROWTH_BYTES_MAX, result
        return result


if __name__ == "__main__":
    main(__doc__, mutated_adds, 60)

"""The tables and examples of docs/formats.md agree with the code."""

from __future__ import annotations

import ast
import json
import re
import struct
from array import array
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from crc32c import crc32c

from bookspark.protocol.bookie.bookie_ledger import FenceNoted
from bookspark.protocol.ledger.ledger_metadata import WRITE_QUORUM_LABEL, DigestType
from bookspark.protocol.logs import ended_lanes, log_record, retention
from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.servers.daemon import directories, lease_server
from bookspark.store.bookie.disk import (
    checkpoint,
    control_log,
    rewritten_block,
    rewritten_log,
    synced_note,
    unclean_marker,
)
from bookspark.store.bookie.disk.entry_log import LOG_SUFFIX, LOGS, NOTE_SUFFIX, SCHEMA
from bookspark.store.bookie.disk.file_system import SPARE_FILES
from bookspark.store.bookie.disk.index import ChangingRows, location
from bookspark.store.bookie.holdings import scrubbing
from bookspark.store.metadata.records import codec
from bookspark.store.metadata.records.bookkeeper_texts import LAYOUT
from bookspark.store.metadata.zookeeper.layout import Layout, LedgerManager
from bookspark.store.wire import batch_prefix, entry_batch, frames, messages
from bookspark.store.wire.digests import digester, master_key
from bookspark.store.wire.header import HEADER_BYTES, PROTOCOL_VERSION, Flag, Header, Kind, Status
from bookspark.testing.memory_files import MemoryFileSystem

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/formats.md").read_text()


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        return [row[self.columns.index(name)] for row in self.rows]


def section(heading: str) -> str:
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[2]


def tables(heading: str) -> list[Table]:
    blocks = re.findall(r"(?:^\|.*\|\n)+", section(heading), re.MULTILINE)
    split = [[[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in b.splitlines()] for b in blocks]
    return [Table(lines[0], lines[2:]) for lines in split]


def listed(heading: str) -> list[str]:
    """The names that a list's items begin with."""
    return re.findall(r"^\* `([^`]*)`", section(heading), re.MULTILINE)


def numbered(heading: str) -> dict[str, tuple[int, str]]:
    """name → number and class, of items like "OK (0, Positive): …"; the class is Unknown unless named."""
    items = re.findall(r"^\* (\w+) \((\d+)(?:, (\w+))?\)", section(heading), re.MULTILINE)
    return {name: (int(number), kind or "Unknown") for name, number, kind in items}


def numbers(heading: str) -> dict[str, int]:
    return {name: number for name, (number, _) in numbered(heading).items()}


def example(name: str) -> bytes:
    found = re.search(rf"^```json {re.escape(name)}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1].encode()


def size_of(kind: str) -> int | None:
    """Bytes of a type in a table, such as u32, "112 bytes" or 14 × (i64, i64); None if it has any size."""
    if pairs := re.fullmatch(r"(\d+) × \(i64, i64\)", kind):
        return 16 * int(pairs[1])
    fixed = re.fullmatch(r"[ui](\d+)|(\d+) bytes", kind)
    return fixed and (int(fixed[1]) // 8 if fixed[1] else int(fixed[2]))


def places(table: Table) -> dict[int, int]:
    """offset → size, of the rows with a fixed size."""
    sizes = map(size_of, table.column("type"))
    return {int(offset): size for offset, size in zip(table.column("offset"), sizes, strict=True) if size is not None}


def test_every_example_is_checked():
    named = set(re.findall(r"^```json (.*)$", PAGE, re.MULTILINE))
    assert named == {*STRUCTS, *DOCUMENTS}


# -- on disk


def test_files_of_a_directory_match_the_table():
    names = set(listed("A bookie's directories"))
    logs = {f"{LOGS}/<number>{suffix}" for suffix in (LOG_SUFFIX, NOTE_SUFFIX, rewritten_log.REWRITTEN_SUFFIX)}
    others = {
        control_log.NAME,
        control_log.NOTE_NAME,
        checkpoint.NAME,
        unclean_marker.NAME,
        scrubbing.NAME,
        "checkpoint.<number>",
        "spare.<number>",
    }
    small = directories.NOT_DATA - {"lost+found", "COOKIE.tmp", *SPARE_FILES}
    assert names == logs | others | small


def test_entry_log_begins_with_its_schema():
    assert places(tables("Entry logs")[0]) == {0: len(SCHEMA)}


class TestBatchFrame:
    def frame(self, payloads=(b"one", b"and two", b"")):
        digest = digester(DigestType.CRC32C, b"")
        entries, length = [], 100
        for number, payload in enumerate(payloads, start=7):
            length += len(payload)
            entries.append(entry_batch.Entry(5, number, 6, length, payload, digest(5, number, 6, length, payload)))
        header = Header(Kind.ADD, 99, 5, 7, 6 + len(entries), 6)
        return bytes(entry_batch.encode_entries(header, entries)), entries

    def test_offsets_match_the_table(self):
        frame, entries = self.frame()
        table = tables("Batch frames")[0]
        offsets = places(table)
        assert offsets[16] == HEADER_BYTES and batch_prefix.HEADER_OFFSET == 16
        assert int(table.column("offset")[-1]) == batch_prefix.PREFIX_BYTES
        body = len(frame) - batch_prefix.PREFIX_BYTES
        assert frame[:4] == b"\xff" * 4
        assert struct.unpack_from("<i", frame, 4) == (batch_prefix.PREFIX_BYTES - 8,) == (520,)
        assert struct.unpack_from("<II", frame, 8) == (132, 0)
        assert struct.unpack_from("<q", frame, 152) == (body,)
        assert struct.unpack_from("<q", frame, 184) == (len(entries),)
        buffers = struct.unpack_from("<28q", frame, 200)
        assert offsets[200] == struct.calcsize("<28q") and buffers[3] == 8 * len(entries)
        assert struct.unpack_from("<12q", frame, 432) == (len(entries), 0) * 6
        assert offsets[432] == struct.calcsize("<12q")

    def test_body_has_its_parts_in_the_documented_order(self):
        frame, entries = self.frame()
        n, at = len(entries), batch_prefix.PREFIX_BYTES
        columns = struct.unpack_from(f"<{4 * n}q", frame, at)
        assert columns == tuple(entry[i] for i in range(4) for entry in entries)
        at += 32 * n
        for values in ([e.payload for e in entries], [e.digest for e in entries]):
            ends = struct.unpack_from(f"<{n + 1}i", frame, at)
            assert ends == tuple(sum(map(len, values[:i])) for i in range(n + 1))
            at += (4 * (n + 1) + 7) & -8
            assert frame[at : at + ends[-1]] == b"".join(values)
            at += (ends[-1] + 7) & -8
        assert at == len(frame)

    def test_sizes_in_the_text_match_the_code(self):
        assert len(self.frame([b""])[0]) == int(re.search(r"CRC32C digest has (\d+) bytes", PAGE)[1])
        assert int(re.search(r"an entry costs (\d+) bytes", PAGE)[1]) == entry_batch.ENTRY_OVERHEAD_BYTES
        assert entry_batch.FRAME_BYTES_MAX == 16 << 20
        assert entry_batch.PAYLOAD_BYTES_MAX == entry_batch.FRAME_BYTES_MAX - (64 << 10)


def test_header_fields_match_the_table():
    table = tables("The header")[0]
    values = {
        "protocol version": PROTOCOL_VERSION,
        "kind": 3,
        "flags": 16,
        "status": 6,
        "body CRC32C": 0x89ABCDEF,
        "request_id": 1,
        "ledger_id": 2,
        "first_entry_id": 3,
        "last_entry_id": 4,
        "last_add_confirmed": 5,
        "last_add_fully_replicated": 6,
        "last_add_synced": 7,
        "incarnation": 8,
        "limit": 9,
        "value": 10,
        "reserved": 0,
    }
    fields = {name: value for name, value in values.items() if name in Header._fields}
    packed = Header(**fields, master_key=bytes(range(16))).encode(values["body CRC32C"])
    assert len(packed) == HEADER_BYTES
    values["header CRC32C"] = crc32c(packed[:108])
    end = 0
    for offset, kind, cell in table.rows:
        field = cell.partition(":")[0]
        assert int(offset) == end, field
        end += size_of(kind)
        found = packed[int(offset) : end]
        if field == "master_key":
            assert found == bytes(range(16))
        else:
            assert int.from_bytes(found, "little", signed=kind[0] == "i") == values[field], field
    assert end == HEADER_BYTES


def test_digest_sizes_match_the_table():
    assert numbers("Digests") == {kind.name: digester(kind, b"x").size for kind in DigestType}
    assert len(master_key(b"")) == 16


def test_block_of_a_rewritten_log_matches_the_table():
    (table,) = tables("Rewritten logs")
    offsets = places(table)
    frame, entries = TestBatchFrame().frame()
    batch = entry_batch.EntryBatch(frame)
    block = rewritten_block.encode_block(Header(Kind.ADD, 0, 5), *batch.columns(7, 9))
    assert int(table.column("offset")[-1]) == rewritten_block.BLOCK_PREFIX_BYTES
    assert struct.unpack_from("<i", block, 4) == (rewritten_block.BLOCK_PREFIX_BYTES - 8,) == (544,)
    assert struct.unpack_from("<q", block, 152) == (len(block) - rewritten_block.BLOCK_PREFIX_BYTES,)
    assert struct.unpack_from("<q", block, 192) == (len(entries),)
    assert struct.unpack_from("<12q", block, 456) == (len(entries), 0) * 6
    assert offsets[224] == struct.calcsize("<28q") and struct.unpack_from("<4q", block, 224)[2] == 0
    value, limit = struct.unpack_from("<q", block, 16 + 96), struct.unpack_from("<I", block, 16 + 88)
    assert limit == (sum(len(entry.payload) for entry in entries),)
    assert value == (crc32c(block[128:552], crc32c(block[:16])),)
    assert rewritten_log.HEAD == b"ARROW1\0\0" + SCHEMA
    assert rewritten_log.footer([]).startswith(bytes.fromhex("ffffffff00000000"))


def test_synced_note_matches_the_table():
    files = MemoryFileSystem()
    files.make_directory("/d")
    note = synced_note.SyncedNote(files, "/d/n", 3)
    note.write(1000)
    content = files.open("/d/n").read(100, 0)
    assert list(places(tables("Synced notes")[0]).items()) == [(0, 8), (8, 4), (12, 4)]
    assert content == struct.pack("<qII", 1000, crc32c(struct.pack("<qq", 3, 1000)), 0)


def test_control_log_records_match_the_tables():
    (head,) = tables("The control log")
    assert places(head) == {0: 4, 4: 4}
    fields = {name: kind._fields for kind, name in control_log._NAMES.items()}
    listed_fields = re.findall(r"^\* `([^`]*)`\((.*?)\): ", section("The control log"), re.MULTILINE)
    assert {name: tuple(text.split(", ")) for name, text in listed_fields} == fields
    shown = re.search(r"```hex\n(.*)\n```", section("The control log"))[1]
    assert control_log.encode_records([FenceNoted(1)]) == bytes.fromhex(shown)


def test_checkpoint_matches_the_tables():
    snapshot = checkpoint.Snapshot(None, location(3, 2000), frozenset({1, 2}), whole=True, decisions=4)
    rows = ChangingRows.empty()
    rows.insert(10, 19, location(3, 400), 900)
    rows.insert(20, 20, location(3, 1300), 80)
    snapshot.add(7, 15, -1, 10, rows)
    snapshot.end()
    named, part = tables("The checkpoint")
    content = snapshot.encode([checkpoint.Part(9, 200, 77)])
    assert content[:8] == b"BSPKCKP4"
    assert list(places(named)) == [0, 8, 12, 16, 24, 32, 40, 48]
    assert struct.unpack_from("<I", content, 12) == (0,)
    assert struct.unpack_from("<5q", content, 16) == (3, 2000, 1, 2, 4)
    assert array("q", content[56:]).tolist() == [9, 200, 77, 1, 2]
    [block] = snapshot.blocks
    assert part.column("offset") == ["0", "8", "16", "16 + 40 n"]
    wheres = [location(3, 400), location(3, 1300)]
    values = [1, 2, 7, 15, -1, 10, 2, 10, 20, *wheres, 10 << 32 | 900, 1 << 32 | 80]
    assert array("q", b"".join(map(bytes, block.encode()))).tolist() == values


def test_lease_status_fields_match_the_text():
    told = set(re.search(r"Status is (.*?)\.", section("Small files"), re.DOTALL)[1].replace("`", "").split(", "))
    assert told == set(lease_server.Status.__struct_fields__)


# -- on the wire


@pytest.mark.parametrize(("heading", "enum"), [("Kinds", Kind), ("Flags", Flag), ("Statuses", Status)])
def test_wire_numbers_match_the_page(heading, enum):
    assert numbers(heading) == {m.name: m.value for m in enum.__members__.values()}


def test_status_classes_match_the_table():
    classes = {name: kind for name, (_, kind) in numbered("Statuses").items()}
    assert classes == {s.name: type(Header(Kind.READ, 0, status=s).response()).__name__ for s in Status}
    assert type(Header(Kind.READ, 0, status=999).response()).__name__ == "Unknown"


def test_frames_match_the_tables():
    batch = TestBatchFrame().frame()[0]
    control = frames.control_frame(Header(Kind.STATUS, 1), b"body")
    first, second = tables("Frames")[0].column("first bytes")
    assert batch.startswith(bytes.fromhex(first))
    assert control.startswith(second.strip('"').encode())
    assert places(tables("Frames")[1]) == {0: 4, 4: 4, 8: HEADER_BYTES}
    assert control[120:] == b"body" and struct.unpack_from("<I", control, 4) == (4,)


def test_assignment_is_packed_into_value_and_limit():
    from bookspark.protocol.ledger.sync_cursor import Assignment

    header = Header(Kind.SYNC, 1).with_assignment(Assignment(50, 5, 3, 4))
    assert (header.value, header.limit) == (50, 5 << 20 | 3 << 10 | 4)


# -- documents

# Encoded as they are.
STRUCTS = {
    "LOCK": directories.Process,
    "ENTRY_LOGS": messages.EntryLogs,
    "LIMBO": messages.Limbo,
    "HELLO": messages.Hello,
    "challenge": messages.Challenge,
    "lock": "bookspark.store.metadata.documents.locks:_LockDocument",
    "ended lane": ended_lanes.Ended,
    "retention": retention.Retention,
    "block of ended lanes": "bookspark.logs.chain.registry:EndedBlock",
}


def _record(data: bytes) -> bytes:
    from bookspark.logs.chain import codec as logs

    return logs.encode_record(logs.decode_record(data, "orders"))


def _name(data: bytes) -> bytes:
    from bookspark.logs.chain import codec as logs

    return logs.encode_name(logs.decode_name(data, "orders"))


def _header(data: bytes) -> bytes:
    from bookspark.logs.chain import codec as logs

    return logs.encode_header(logs.decode_header(data, 7))


def _commit(data: bytes) -> bytes:
    from bookspark.logs.chain import codec as logs

    return logs.encode_commit(logs.decode_commit(data, 7, 1))


def _accepted_loss(data: bytes) -> bytes:
    """In the record of the page's ledger, closed."""
    loss = {"formatVersion": 2, "length": 90, "lastEntryId": 9, "state": "CLOSED", "acceptedLoss": json.loads(data)}
    closed = json.dumps(json.loads(example("ledger")) | loss).encode()
    return json.dumps(json.loads(codec.encode_ledger(codec.decode_ledger(1, closed)))["acceptedLoss"]).encode()


# Decoded and encoded again by their codecs.
DOCUMENTS = {
    "ledger": lambda data: codec.encode_ledger(codec.decode_ledger(1, data)),
    "accepted loss": _accepted_loss,
    "cookie": lambda data: codec.encode_cookie(codec.decode_cookie(data, "of the page")),
    "registration": lambda data: codec.encode_registration(codec.decode_registration("bookie-5f2c9a1e", data)),
    "task": lambda data: codec.encode_task(codec.decode_task(1, data)),
    "name": _name,
    "record": _record,
    "header": _header,
    "commit": _commit,
}


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_example_survives_decode_and_encode(name):
    kind = STRUCTS[name]
    if isinstance(kind, str):
        module, _, attribute = kind.partition(":")
        kind = getattr(__import__(module, fromlist=[attribute]), attribute)
    document = example(name)
    assert json.loads(msgspec.json.encode(msgspec.json.decode(document, type=kind))) == json.loads(document)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_example_survives_decode_and_encode_in_field_order(name):
    document = example(name)
    again = json.loads(DOCUMENTS[name](document))
    assert again == json.loads(document)
    assert list(again) == list(json.loads(document)), "fields in the order that they are written in"


def test_zookeeper_paths_match_the_code():
    told = set(listed("ZooKeeper"))
    layout, flat = Layout(""), Layout("", LedgerManager.FLAT)
    bookkeepers = Layout("", LedgerManager.BOOKKEEPER, bookkeepers_formats=True)
    assert f"`{bookkeepers.mark('<instance id>')}`" in PAGE and f"`{bookkeepers.idgiven}`" in PAGE
    assert LAYOUT.decode() in PAGE
    made = {
        layout.layout,
        layout.instance_id,
        layout.mark("<instance id>"),
        layout.available + "/<bookie id>",
        layout.readonly + "/<bookie id>",
        layout.cookies + "/<bookie id>",
        layout.idgen,
        layout.idgiven,
        layout.ledger(1),
        flat.ledger(1),
    }
    assert made <= told
    assert layout.document() == b"2\nhierarchical:1" and flat.document() == b"2\nflat:1"
    rest = told - made
    below = {path for path in rest if path.startswith(layout.underreplication)}
    metadata = ROOT / "bookspark/store/metadata"
    sources = "".join(path.read_text() for at in ("autorecovery", "documents") for path in (metadata / at).glob("*.py"))
    for path in below:
        assert f'"{path.removeprefix(layout.underreplication).split("/")[1]}"' in sources, path
    kinds = {path.split("/")[2] for path in rest - below}
    assert all(path.startswith("/bookspark/") for path in rest - below)
    source = "".join(path.read_text() for path in (ROOT / "bookspark").rglob("*.py"))
    assert all(f'"{kind}"' in source for kind in kinds)


def test_reasons_and_labels_match_the_code():
    assert re.search(r"reasons are (.*?)\.", PAGE)[1] == "`lost`, `lacks` and `misplaced`"
    assert [reason.value for reason in Reason] == ["lost", "lacks", "misplaced"]
    labels = {name for name in listed("Entries of a log") if name.startswith("bookspark.")}
    of_logs = {value for name, value in vars(log_record).items() if name.endswith("_LABEL")}
    assert labels == of_logs | {WRITE_QUORUM_LABEL}


def test_tables_of_a_snapshot_are_in_the_written_order():
    tree = ast.parse((ROOT / "bookspark/spark/snapshots/snapshot.py").read_text())
    order = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ORDER"
    )
    in_order = re.search(r"it\s+has\s+the\s+last:\s+(.*?)\.", section("Snapshots and offsets"), re.DOTALL)
    assert in_order and tuple(re.findall(r"`(\w+)`", in_order[1])) == order

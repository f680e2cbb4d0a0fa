"""Creating a ledger by hand, and payloads on their way into frames: each bound from both sides."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pyarrow as pa
import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.placement.placement import Topology
from bookspark.client.writing import ledger_creation
from bookspark.client.writing.ledger_creation import NewLedger
from bookspark.client.writing.outgoing import Outgoing
from bookspark.client.writing.payloads import PayloadRun, payload_of, payloads_of, runs_of
from bookspark.errors import (
    ConfigurationError,
    EntryTooLargeError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataStoreError,
)
from bookspark.metadata.records.bookie_registration import BookieRegistration
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.wire.columns import offsets_of
from bookspark.wire.digests import digester, master_key
from bookspark.wire.entry_batch import ENTRY_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, Entry, encode_entries
from bookspark.wire.header import Header, Kind
from tests.client.by_hand.test_choosing import racks

# -- creating a ledger


class Store:
    """The first ``taken`` creations find the id in use."""

    def __init__(self, taken=0, silent=False):
        self.taken, self.silent, self.ids, self.noted, self.made = taken, silent, iter(range(5, 5000)), [], []

    def new_ledger_id(self):
        return next(self.ids)

    def note_given_id(self, given):
        self.noted.append(given)

    def create_ledger(self, metadata):
        self.made.append(metadata)
        if self.taken:
            self.taken -= 1
            raise LedgerExistsError("taken")
        return 3

    def submit(self, function):
        future = Future()
        if not self.silent:
            future.set_result(function())
        self.future = future
        return future


def create(store, *, striping=False, risky=False, **choices):
    chosen = []
    found = racks(b1="", b2="", b3="")
    found = Topology(
        {name: BookieRegistration(name, "here:1", 1, journal_write_data=not risky) for name in found.bookies}
    )
    context = SimpleNamespace(
        store=store,
        runtime=SimpleNamespace(threads=store),
        config=ClientConfig(opportunistic_striping=striping, metadata_timeout_seconds=0.01 if store.silent else 10.0),
        topology=lambda: found,
        placement=SimpleNamespace(choose_ensemble=lambda *what: chosen.append(what) or ("b1", "b2", "b3")),
    )
    given = {
        "ensemble_size": 4, "write_quorum": 3, "ack_quorum": 2, "digest_type": DigestType.CRC32C, "password": b"pw",
        "custom_metadata": {"a": b"b"}, "ledger_type": LedgerType.PD_JOURNAL, "replication": Replication.BEST_EFFORT,
    }  # fmt: skip
    made = ledger_creation.create_ledger(context, NewLedger(**given | choices), lambda *what: what)
    ((topology, size, quorum, _, size_min),) = chosen
    assert (topology, size, quorum, size_min) == (found, 4, 3, 3 if striping else 4)
    return context, made


@pytest.mark.parametrize("striping", [True, False])
def test_a_new_ledger_has_a_new_id_its_choices_and_the_ensemble_that_was_found(striping):
    store = Store()
    context, (given, metadata, version, password) = create(store, striping=striping)
    assert (given, version, password) == (context, 3, b"pw") and store.made == [metadata] and store.noted == []
    assert (metadata.ledger_id, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (5, 3, 3, 2)
    assert metadata.last_fragment.ensemble == ("b1", "b2", "b3") and metadata.custom_metadata == {"a": b"b"}
    assert (metadata.master_key, metadata.password) == (master_key(b"pw", DigestType.CRC32C), b"")


def test_a_given_id_is_noted_and_used_once_and_a_new_one_is_looked_for_until_it_is_free():
    store = Store()
    _, (_, metadata, *_) = create(store, ledger_id=77)
    assert metadata.ledger_id == 77 and store.noted == [77]
    store = Store(taken=1)
    with pytest.raises(LedgerExistsError):
        create(store, ledger_id=77)
    assert len(store.made) == 1
    store = Store(taken=999)
    _, (_, metadata, *_) = create(store)
    assert metadata.ledger_id == 5 + 999 and [made.ledger_id for made in store.made] == list(range(5, 1005))
    with pytest.raises(LedgerExistsError):
        create(Store(taken=1000))


def test_a_store_that_does_not_tell_an_id_ends_the_creation_and_is_not_asked_any_more():
    store = Store(silent=True)
    with pytest.raises(MetadataStoreError, match=r"getting a ledger id: no answer from the metadata store in 0\.01 s"):
        create(store)
    assert store.future.cancelled() and store.made == []


@pytest.mark.parametrize("risky", [True, False])
def test_a_ledger_that_may_lose_what_it_acknowledged_is_warned_of(risky, caplog):
    create(Store(), risky=risky, ack_quorum=1)
    assert ("a ledger is created with" in caplog.text) is risky
    assert create(Store(), ack_quorum=3)[1][1].ack_quorum == 3
    with pytest.raises(ConfigurationError):
        create(Store(), ack_quorum=4)


def test_a_digest_of_bookkeepers_is_for_what_its_clients_know():
    kind = next(kind for kind in DigestType if kind.bookkeepers)
    with pytest.raises(ConfigurationError, match="is for ledgers that BookKeeper's own clients"):
        create(Store(), digest_type=kind, ledger_type=LedgerType.VD_JOURNAL)


def test_the_password_is_kept_where_bookkeepers_digests_need_it():
    kind = next(kind for kind in DigestType if kind.bookkeepers)
    assert create(Store(), digest_type=kind)[1][1].password == b"pw"


# -- payloads


CUT = [((50, 50), [2]), ((50, 51), [1, 1]), ((0, 100), [2]), ((999, 1), [1, 1]), ((), [])]
TWO = 100 + 2 * ENTRY_OVERHEAD_BYTES


@pytest.mark.parametrize(("sizes", "counts"), CUT)
def test_runs_are_cut_by_their_sizes(sizes, counts):
    runs = runs_of([bytes(size) for size in sizes], TWO, one_each=False)
    assert [run.count for run in runs] == counts
    assert [run.byte_length for run in runs] == ([sum(sizes)] if counts == [2] else list(sizes))


def test_a_run_is_of_its_pieces_or_of_the_parts_of_one():
    parts = PayloadRun((b"abc",), 3, offsets_of((1, 2)))
    assert (parts.count, parts.is_list, list(map(bytes, parts.payloads()))) == (2, False, [b"a", b"bc"])
    pieces = PayloadRun((b"a", b"bc"), 3)
    assert (pieces.count, pieces.is_list, pieces.offsets) == (2, True, parts.offsets)


ARRAYS = [
    (pa.array([b"x", *map(bytes, sizes)], kind)[1:], sizes, counts)
    for sizes, counts in CUT
    for kind in (pa.binary(), pa.large_binary())
]
"""Made here: the first array of a process takes seconds."""


@pytest.mark.parametrize(("array", "sizes", "counts"), ARRAYS)
def test_arrays_are_cut_as_lists_are(array, sizes, counts):
    runs = runs_of(payloads_of(array, "f"), TWO, one_each=False)
    assert [run.count for run in runs] == counts
    assert [run.byte_length for run in runs] == ([sum(sizes)] if counts == [2] else list(sizes))


@pytest.mark.parametrize(
    ("array", "payloads"),
    [
        (pa.array([], pa.binary()), []),
        (pa.chunked_array([pa.array(["a"]), pa.array(["bc"])]), [b"a", b"bc"]),
        (pa.array(["", ""], pa.large_string()), [b"", b""]),
    ],
)
def test_arrays_of_any_make_are_taken(array, payloads):
    runs = runs_of(payloads_of(array, "f"), TWO, one_each=False)
    assert [bytes(payload) for run in runs for payload in run.payloads()] == payloads and len(runs) == bool(payloads)


def test_the_largest_entry_fits_and_no_larger_one():
    largest = bytes(PAYLOAD_BYTES_MAX)
    for given in ([largest], pa.array([largest])):
        assert runs_of(given, 10, one_each=False)[0].byte_length == PAYLOAD_BYTES_MAX
    for given in ([largest + b"x"], pa.array([b"", largest + b"x"])):
        with pytest.raises(EntryTooLargeError):
            runs_of(given, 10, one_each=False)


@pytest.mark.parametrize(
    "given", ["text", "", b"bytes", b"", bytearray(), memoryview(b""), 7, {b"a"}, [b"a", 7], [None]]
)
def test_what_is_no_list_of_bytes_is_refused(given):
    with pytest.raises(InvalidArgumentError):
        payloads_of(given, "append_batch")


def test_a_list_of_bytes_is_taken_as_it_is_whether_arrow_is_there_or_not(monkeypatch):
    given = [b"a", b"b"]
    assert payloads_of(given, "f") is given
    assert payloads_of((b"a", bytearray(b"b")), "f") == given
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert payloads_of((b"a", bytearray(b"b")), "f") == given
    with pytest.raises(InvalidArgumentError):
        payload_of("text", "append")


# -- frames


def outgoing(*waiting, frame_bytes=100 + 2 * ENTRY_OVERHEAD_BYTES, striped=False):
    made = Outgoing(1, digester(DigestType.CRC32C, b""), frame_bytes, striped=striped)
    made.put(waiting)
    return made


def frames(made):
    taken = []
    while made:
        taken.append([bytes(piece) for piece in made.take().payloads()])
    return taken


def test_what_waits_goes_together_up_to_the_frame_size():
    for sizes, counts in (((50, 50, 1), [2, 1]), ((50, 51), [1, 1]), ((999, 1), [1, 1]), ((100, 0, 0), [2, 1])):
        assert [len(frame) for frame in frames(outgoing(*map(bytes, sizes)))] == counts
        assert [len(frame) for frame in frames(outgoing(*map(bytes, sizes), striped=True))] == [1] * len(sizes)
    run = PayloadRun([b"1", b"2"], 2)
    assert frames(outgoing(b"0", run, frame_bytes=3 + 3 * ENTRY_OVERHEAD_BYTES)) == [[b"0", b"1", b"2"]]
    assert frames(outgoing(b"0", run, frame_bytes=2 + 3 * ENTRY_OVERHEAD_BYTES)) == [[b"0"], [b"1", b"2"]]
    assert frames(outgoing(b"0", run, frame_bytes=9 + 2 * ENTRY_OVERHEAD_BYTES)) == [[b"0"], [b"1", b"2"]]


@pytest.mark.parametrize("count", [1, 2])
def test_a_frame_is_that_of_its_entries(count):
    made = outgoing(*[b"%d" % n for n in range(count)])
    header = Header(Kind.ADD, 5, 1, 7, 6 + count, 4)
    digest, rows = digester(DigestType.CRC32C, b""), []
    for n in range(count):
        length = 101 + n
        rows.append(Entry(1, 7 + n, 4, length, b"%d" % n, digest(1, 7 + n, 4, length, b"%d" % n)))
    assert bytes(made.encode(header, made.take(), 100)) == bytes(encode_entries(header, rows))


@pytest.mark.parametrize(
    ("count", "idle", "first"), [(255, True, 255), (256, True, 128), (257, True, 129), (256, False, 256)]
)
def test_of_many_appends_half_goes_out_where_nothing_is_under_way(count, idle, first):
    made = outgoing(*[b"x"] * count, frame_bytes=1 << 20)
    assert made.take(idle=idle).count == first and len(made) == count - first
    made.clear()
    assert not made and made.waiting == made.taken == []

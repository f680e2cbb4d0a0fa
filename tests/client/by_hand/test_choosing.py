"""Placement, creation and payloads by hand: each bound from both sides."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from random import Random
from types import SimpleNamespace

import pyarrow as pa
import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.placement.placement import Placement, Topology, _neighbours, _shuffled
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
    NotEnoughBookiesError,
)
from bookspark.metadata.records.bookie_registration import BookieRegistration
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.wire.columns import offsets_of
from bookspark.wire.digests import digester, master_key
from bookspark.wire.entry_batch import ENTRY_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, Entry, encode_entries
from bookspark.wire.header import Header, Kind


class Fixed(Random):
    """Each number the same: bookies are chosen in the order of their names, by weight."""

    def random(self):
        return 0.5


def racks(**places):
    return Topology({name: BookieRegistration(name, "here:1", 1, rack=rack) for name, rack in places.items()})


def hosts(**places):
    return Topology({name: BookieRegistration(name, "here:1", 1, host=host) for name, host in places.items()})


def avoiding(topology, *names):
    return Topology(topology.bookies, dict.fromkeys(names, "why"), topology.free_bytes)


# -- who is chosen


def test_as_many_places_as_bookies_are_filled_and_no_more():
    for ring, chosen in (
        ([None] * 3, ("a", "b", "c")),
        (["x", None, None, None], ("x", "a", "b", "c")),
        ([None] * 4, None),
    ):
        topology = racks(a="A", b="B", c="C", x="X")
        assert Placement()._fill(ring, ["a", "b", "c"], topology, 3, Fixed()) == chosen
    assert Placement()._fill([], [], racks(), 3, Fixed()) == ()


def test_half_of_the_attempts_avoid_bookies_in_quarantine_and_the_others_do_not():
    """To keep the racks apart is more important."""
    seen = []

    class Noting(Placement):
        def _fill_in_order(self, ring, order, last, topology, write_quorum):
            seen.append(bool(last))

    topology = avoiding(racks(a="A"), "a")
    assert Noting()._fill([None], ["a"], topology, 1, Random(0)) is None
    assert seen == [True] * 5 + [False] * 5


@pytest.mark.parametrize(
    ("place", "size", "write_quorum", "near"),
    [(0, 5, 2, {1, 4}), (2, 5, 3, {0, 1, 3, 4}), (0, 3, 3, {1, 2}), (1, 4, 1, set()), (0, 6, 3, {1, 2, 4, 5})],
)
def test_neighbours_are_those_that_share_a_write_set(place, size, write_quorum, near):
    assert _neighbours(place, size, write_quorum) == near


def test_a_place_is_filled_from_the_rack_that_its_neighbours_have_least():
    topology = racks(a1="A", a2="A", b1="B", b2="B", c1="C")
    aware = Placement("rack_aware")
    fill = aware._fill_in_order
    # In the order given: a1, then another rack than its neighbours'.
    assert fill([None] * 3, ["a1", "a2", "b1", "c1"], {}, topology, 3) == ("a1", "b1", "c1")
    assert fill([None] * 4, ["a1", "a2", "b1", "b2"], {}, topology, 2) == ("a1", "b1", "a2", "b2")
    # Only those count that share a write set with it.
    assert fill([None] * 4, ["a1", "b1", "a2", "c1"], {}, topology, 2) == ("a1", "b1", "a2", "c1")
    assert fill([None] * 4, ["a1", "b1", "a2", "c1"], {}, topology, 3) == ("a1", "b1", "c1", "a2")
    # Of two racks that are there already, the one that is there less often.
    assert fill(["a1", "b1", "b2", None], ["b3", "a2"], {}, racks(a1="A", a2="A", b1="B", b2="B", b3="B"), 4)[3] == "a2"
    # Who is avoided comes last, whatever its rack.
    assert fill([None] * 2, ["a1", "b1", "a2"], {"b1": "why"}, topology, 2) == ("a1", "a2")
    assert Placement()._fill_in_order([None] * 2, ["a1", "a2", "b1"], {}, topology, 2) == ("a1", "a2")
    assert Placement()._fill_in_order([None] * 2, ["a1"], {}, topology, 2) is None


@pytest.mark.parametrize(
    ("ensemble", "racks_min", "write_quorum", "enough"),
    [
        ("a1 a2 b1", 2, 2, False),  # a1 and a2 share a write set
        ("a1 b1 a2", 2, 2, False),  # a2 and a1 do, around the end
        ("a1 b1 a2 b2", 2, 2, True),
        ("a1 b1 c1", 3, 2, True),  # two copies lie on two racks at most
        ("a1 a2 b1", 2, 3, True),
        ("a1 a2", 1, 2, True),
        ("a1 gone", 2, 2, True),  # of whose rack nothing is known
        ("gone lost", 2, 2, False),
    ],
)
def test_each_write_set_lies_on_as_many_racks_as_are_wanted(ensemble, racks_min, write_quorum, enough):
    topology = racks(a1="A", a2="A", b1="B", b2="B", c1="C")
    aware = Placement("rack_aware", racks_min)
    assert aware._on_enough_racks(tuple(ensemble.split()), topology, write_quorum) is enough
    assert Placement("random", racks_min)._on_enough_racks(tuple(ensemble.split()), topology, write_quorum)


def test_a_replacement_clashes_with_nobody_who_stays_and_may_with_who_goes():
    topology = hosts(b1="h1", b2="h2", b3="h2", b4="h1")
    one = Placement("one_per_host")
    assert one.choose_replacements(topology, ("b1", "b2"), ["b2"], 2, Fixed()) == ("b3",)
    assert one.choose_replacements(topology, ("b1", "b2"), ["b1"], 2, Fixed()) == ("b4",)
    assert set(one.choose_replacements(topology, ("b1", "b2"), ["b1", "b2"], 2, Fixed())) == {"b3", "b4"}
    # Of one that is not registered nothing is known that could clash.
    assert one.choose_replacements(topology, ("gone", "b1"), ["b1"], 2, Fixed())[0] in ("b2", "b3", "b4")
    with pytest.raises(NotEnoughBookiesError) as raised:
        one.choose_replacements(hosts(b1="h1", b4="h1"), ("b1", "b9"), ["b9"], 2, Fixed())
    assert "b4 shares host h1 with b1" in str(raised.value)


def test_members_in_the_way_are_those_behind_the_first_on_each_host_or_any_on_too_few_racks():
    topology = hosts(b1="h1", b2="h2", b3="h1", b4="h2")
    assert list(Placement("one_per_host")._in_the_way(("b1", "b2", "b3", "b4"), topology, 2)) == [("b3", "b4")]
    assert list(Placement("one_per_host")._in_the_way(("b1", "b2"), topology, 2)) == []
    topology = racks(a1="A", a2="A", b1="B")
    aware = Placement("rack_aware", 2)
    assert list(aware._in_the_way(("a1", "a2"), topology, 2)) == [("a1",), ("a2",)]
    assert list(aware._in_the_way(("a1", "b1"), topology, 2)) == []
    asked = []
    aware.choose_replacements = lambda topology, ensemble, members, quorum, random: asked.append((members, quorum))
    assert aware.misplaced(topology, ("a1", "a2"), 2, Fixed()) == ("a1",) and asked == [(("a1",), 2)]


def test_an_ensemble_is_as_large_as_there_are_bookies_down_to_what_is_needed():
    topology = racks(a="A", b="B", c="C")
    for size_min, chosen in ((2, 3), (3, 3)):
        assert len(Placement().choose_ensemble(topology, 4, 2, Fixed(), size_min)) == chosen
    assert len(Placement().choose_ensemble(topology, 2, 2, Fixed(), 1)) == 2
    with pytest.raises(NotEnoughBookiesError, match="an ensemble of 4 needs 4"):
        Placement().choose_ensemble(topology, 4, 2, Fixed())
    quorums = []
    placement = Placement()
    placement._fill = lambda ring, usable, topology, quorum, random: quorums.append((len(ring), quorum)) or ("a",)
    assert placement.choose_ensemble(topology, 4, 2, Fixed()) == ("a",) and quorums == [(4, 2)]


def test_without_quarantine_are_those_that_are_sound_and_the_ensemble():
    topology = avoiding(racks(a="A", b="B", c="C"), "a", "b")
    assert set(topology.without_quarantined(("a",)).bookies) == {"a", "c"}
    assert topology.without_quarantined(()).quarantined == topology.quarantined


def test_bookies_come_in_the_order_of_their_weights_where_chance_is_equal():
    assert _shuffled(["a", "b", "c"], {"a": 1, "b": 100, "c": 10}, Fixed()) == ["b", "c", "a"]
    # One that is not known has the average of 40: between 100 and 10.
    assert _shuffled(["a", "b", "c", "d"], {"a": 10, "b": 100, "c": 10}, Fixed())[:2] == ["b", "d"]
    assert _shuffled(["a", "b"], {}, Fixed()) == ["a", "b"]
    assert _shuffled(["a", "b"], {"a": 0, "b": 1}, Fixed()) == ["a", "b"], "what is full counts as one byte"


def test_what_is_told_of_too_few_bookies_has_each_with_its_rack():
    told = Placement("rack_aware", 2)._told(["a1", "a2"], "; b1 is read-only", racks(a1="A", a2="A", b1="B"), "none")
    assert told == "2 (a1 on rack 'A', a2 on rack 'A'; b1 is read-only), not enough on at least 2 racks"
    assert Placement("rack_aware", 1)._told([], "", racks(), "none") == "0 (none)"
    assert Placement()._told(["a"], "", avoiding(racks(a="A"), "a"), "none") == "1 (a (why))"


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


@pytest.mark.parametrize(("sizes", "counts"), CUT)
def test_arrays_are_cut_as_lists_are(sizes, counts):
    for kind in (pa.binary(), pa.large_binary()):
        array = pa.array([b"x", *map(bytes, sizes)], kind)[1:]
        runs = runs_of(payloads_of(array, "f"), TWO, one_each=False)
        assert [run.count for run in runs] == counts
        assert [run.byte_length for run in runs] == ([sum(sizes)] if counts == [2] else list(sizes))
    assert runs_of(payloads_of(pa.array([], pa.binary()), "f"), TWO, one_each=False) == []
    chunked = pa.chunked_array([pa.array(["a"]), pa.array(["bc"])])
    (run,) = runs_of(payloads_of(chunked, "f"), TWO, one_each=False)
    assert list(map(bytes, run.payloads())) == [b"a", b"bc"]
    (run,) = runs_of(payloads_of(pa.array(["", ""], pa.large_string()), "f"), TWO, one_each=False)
    assert list(map(bytes, run.payloads())) == [b"", b""]


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

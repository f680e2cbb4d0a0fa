"""Two master keys for one ledger at one bookie: the metadata decides (``protocol.bookie.key_meeting``)."""

import threading
import weakref
from dataclasses import replace

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.bookie.bookie_boot import phase_one
from bookspark.protocol.bookie.key_meeting import KeyMeeting, answer_meeting
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.servers.daemon.bookie_process import key_check
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.store.bookie.kit import KEY, OTHER_KEY, Pumped, add_frame, config, crash_image

STRANGER, STRANGER_2 = OTHER_KEY, b"s" * 16
STRANGERS = b"by a stranger"


def metadata(ledger_id=7, key=KEY):
    return LedgerMetadata(ledger_id, 2, 2, 1, (Fragment(0, ("b1", "b2")),), master_key=key)


@pytest.fixture
def store():
    return MemoryStore()


def opened(store, *directories, **options):
    return Pumped(config(*directories), check_key=key_check(store), **options)


@pytest.fixture
def bookie(tmp_path, store):
    pumped = opened(store, tmp_path / "d")
    yield pumped
    pumped.storage.close()


def payloads(bookie, ledger_id=7):
    return [entry.payload for entry in bookie.read(ledger_id, 0, 100, sparse=True)[0]]


OWNERS = [b"00000000:payload"]


def test_metadata_is_asked_once_before_the_stop_and_once_after_it():
    assert answer_meeting(metadata(), KEY) == Positive()
    assert answer_meeting(metadata(), STRANGER) == UNAUTHORIZED
    unknown = answer_meeting(None, KEY)
    assert isinstance(unknown, Unknown) and unknown.reason is UnknownReason.LIMBO, "not refused: its record may come"
    for last in (Positive(), UNAUTHORIZED, unknown):
        meeting = KeyMeeting()
        assert meeting.looked(Positive()) is None and meeting.stopped
        assert meeting.looked(last) == last
    meeting = KeyMeeting()
    assert meeting.looked(UNAUTHORIZED) == UNAUTHORIZED and not meeting.stopped


def add(bookie, key):
    return bookie.add(7, 0, master_key=key)


def fence(bookie, key):
    return bookie.fence(7, key)


def write_lac(bookie, key):
    return bookie.run(bookie.storage.write_last_add_confirmed, 7, key, 5)


def sync(bookie, key):
    return bookie.run(bookie.storage.sync, 7, key, Assignment(0, 1, 1, 0))


def read(bookie, key):
    statuses = []
    bookie.storage.when_readable(7, key, lambda: statuses.append(Status.OK), statuses.append)
    bookie.wait(lambda: bool(statuses))
    return Status(statuses[0])


@pytest.mark.parametrize("request_of", [add, fence, write_lac, sync, read])
def test_strangers_entries_go_with_the_first_request_of_the_metadatas_key(bookie, store, request_of):
    """Once the owner was refused for ever: a stranger needs one ADD for an id that comes next."""
    assert bookie.add(7, 0, 3, master_key=STRANGER, payload=STRANGERS) is Status.OK
    assert request_of(bookie, KEY) is Status.LIMBO, "no record yet: unknown, not refused"
    store.create_ledger(metadata())
    # The add of a ledger begun anew waits for a second question, which this storage can't ask: its fence is unsure.
    assert request_of(bookie, KEY) in (Status.OK, Status.LIMBO)
    assert payloads(bookie) == []
    assert bookie.add(7, 0, master_key=KEY, flags=Flag.RECOVERY) is Status.OK
    assert payloads(bookie) == OWNERS
    assert bookie.add(7, 1, master_key=STRANGER, payload=STRANGERS, flags=Flag.RECOVERY) is Status.UNAUTHORIZED


@pytest.mark.parametrize("request_of", [add, fence, write_lac, sync, read])
def test_key_that_the_metadata_lacks_is_refused_and_changes_nothing(bookie, store, request_of):
    store.create_ledger(metadata())
    assert bookie.add(7, 0) is Status.OK
    assert request_of(bookie, STRANGER) is Status.UNAUTHORIZED
    assert payloads(bookie) == OWNERS
    assert bookie.add(7, 1) is Status.OK, "no fence, no stop"


def test_entries_of_two_strangers_and_their_fences_are_nobodys(bookie, store):
    assert bookie.add(7, 0, master_key=STRANGER, payload=STRANGERS, last_add_confirmed=-1) is Status.OK
    assert bookie.fence(7, STRANGER) is Status.OK
    store.create_ledger(metadata())
    assert bookie.fence(7, STRANGER_2) is Status.UNAUTHORIZED
    assert bookie.add(7, 0, master_key=KEY, flags=Flag.RECOVERY) is Status.OK
    ledger = bookie.storage.holdings.ledger(7)
    assert not ledger.fenced and ledger.last_add_confirmed == -1 and payloads(bookie) == OWNERS
    assert ledger.fence_unsure, "an earlier fence of the owner may be lost: its adds need the metadata"


class Watched(MemoryStore):
    """Each read of a record waits for ``go_on``; ``fails``: ZooKeeper is away."""

    def __init__(self):
        super().__init__()
        self.looks, self.fails = 0, False
        self.asked, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def read_ledger(self, ledger_id):
        self.looks += 1
        self.asked.release()
        assert self.go_on.acquire(timeout=60)
        if self.fails:
            raise MetadataStoreError("ZooKeeper does not answer")
        return super().read_ledger(ledger_id)

    def await_look(self):
        assert self.asked.acquire(timeout=60)


@pytest.fixture
def watched(tmp_path):
    store = Watched()
    pumped = opened(store, tmp_path / "w")
    yield store, pumped
    store.go_on.release(100)
    pumped.storage.close()


def test_kept_key_waits_for_no_look_while_zookeeper_is_away(watched):
    store, bookie = watched
    assert bookie.add(7, 0) is Status.OK and store.looks == 0, "equal keys: nothing is looked up"
    told = []
    bookie.storage.fence(7, STRANGER, told.append)
    store.await_look()
    assert bookie.add(7, 1) is Status.OK and not told
    store.fails = True
    store.go_on.release()
    bookie.wait(lambda: bool(told))
    assert told == [Status.LIMBO], "unknown, not refused"
    assert bookie.add(7, 2) is Status.OK


def test_owner_of_a_ledger_made_anew_while_the_metadata_is_read_keeps_its_entries(watched):
    """The record of the first look is of an earlier ledger with this id. Entries go only by a look that began after the last of
    them."""
    store, bookie = watched
    store.create_ledger(metadata(key=STRANGER))  # an earlier owner, whose request is on its way
    assert bookie.add(7, 0) is Status.OK
    told, behind = [], []
    bookie.storage.fence(7, STRANGER, told.append)
    store.await_look()
    store.go_on.release()
    bookie.wait(lambda: bookie.storage.holdings.ledger(7).stopped)
    store.await_look()
    bookie.submit(add_frame(7, 1), behind.append)
    assert not behind, "requests of the kept key wait now"
    store.delete_ledger(7)
    store.create_ledger(metadata())
    store.go_on.release()
    bookie.wait(lambda: bool(told and behind))
    assert told == [Status.UNAUTHORIZED] and behind == [Status.OK]
    assert bookie.ids(7) == [0, 1]


class Peer:
    """An asker that counts its waiting bytes."""

    origin, bytes = "10.0.0.9", 0

    def waits(self, more):
        self.bytes += more


def test_requests_to_a_stopped_ledger_go_with_their_connection(watched):
    """They waited for the second look, in no budget, after their peer had gone."""
    store, bookie = watched
    store.create_ledger(metadata(key=STRANGER))
    assert bookie.add(7, 0) is Status.OK
    told, behind, kept = [], [], []
    bookie.storage.fence(7, STRANGER, told.append)
    store.await_look()
    store.go_on.release()
    bookie.wait(lambda: bookie.storage.holdings.ledger(7).stopped)
    bookie.submit(add_frame(7, 1), kept.append)
    gone = Peer()
    bookie.storage.looks.asker = gone
    bookie.submit(add_frame(7, 2), behind.append)
    bookie.storage.looks.forget(gone)
    store.go_on.release(10)
    bookie.wait(lambda: bool(told and kept))
    assert told == [Status.OK] and behind == []


def test_looks_are_shared_and_cached(watched):
    store, bookie = watched
    store.create_ledger(metadata())
    assert bookie.add(7, 0) is Status.OK
    told = []
    for _ in range(4):
        bookie.storage.fence(7, STRANGER, told.append)
    assert told == []
    store.await_look()
    store.go_on.release()
    bookie.wait(lambda: len(told) == 4)
    for _ in range(100):
        bookie.storage.fence(7, STRANGER, told.append)
    assert told == [Status.UNAUTHORIZED] * 104
    assert store.looks == 1


@pytest.mark.parametrize("ends", [False, True], ids=["stays", "ends"])
def test_adds_behind_a_comparison_wait_for_metadata_as_their_peers(tmp_path, ends):
    """They waited as nobody's, outside of the budget, and stayed when their connection ended."""
    store, files = Watched(), FaultyFileSystem(RealFileSystem())
    bookie = opened(store, tmp_path, file_system=files, soon=lambda function: bookie._posted.put((function, ())))
    assert bookie.add(7, 0) is Status.OK
    for kind in ("open", "read", "read_cached"):
        files.add(f"{kind} */logs/*.arrows 1.. hold")
    repeated, others, synced = [], [], []
    peer = bookie.storage.looks.asker = Peer()
    bookie.submit(add_frame(7, 0), repeated.append)
    for _ in range(3):
        bookie.submit(add_frame(7, 1, payload=bytes(1 << 20), master_key=STRANGER), others.append)
    bookie.storage.sync(7, STRANGER, Assignment(0), synced.append)
    bookie.storage.looks.asker = Peer()
    files.wait_held()
    if ends:
        bookie.storage.looks.forget(peer)
    files.clear()
    bookie.wait(lambda: bool(repeated))
    assert repeated == [Status.OK] and bookie.storage.bytes_in_flight == 0
    assert peer.bytes > 3 << 20 or (ends and peer.bytes == 0)
    store.go_on.release(10)
    bookie.storage.close()
    assert (len(others), len(synced), peer.bytes) == ((0, 0, 0) if ends else (3, 1, 0))


def test_connection_that_ended_during_a_comparison_is_kept_by_nothing(tmp_path):
    """A bookie without further requests kept it, with its buffers, as the asker of the next question."""
    files = FaultyFileSystem(RealFileSystem())
    bookie = opened(Watched(), tmp_path, file_system=files, soon=lambda function: bookie._posted.put((function, ())))
    assert bookie.add(7, 0) is Status.OK
    for kind in ("open", "read", "read_cached"):
        files.add(f"{kind} */logs/*.arrows 1.. hold")
    peer = bookie.storage.looks.asker = Peer()
    kept, repeated = weakref.ref(peer), []
    bookie.submit(add_frame(7, 0), repeated.append)
    files.wait_held()
    bookie.storage.looks.forget(peer)
    del peer
    assert kept() is not None
    files.clear()
    bookie.wait(lambda: bool(repeated))
    assert repeated == [Status.OK] and kept() is None
    bookie.storage.close()


def test_waiting_requests_end_with_the_bookie(tmp_path):
    store = Watched()
    bookie = opened(store, tmp_path)
    assert bookie.add(7, 0) is Status.OK
    told = []
    bookie.storage.fence(7, STRANGER, told.append)
    store.await_look()
    store.go_on.release(10)
    bookie.storage.close()
    assert told == [Status.LIMBO]


@pytest.mark.parametrize("before", ["nothing", "checkpoint", "control log", "seal"])
@pytest.mark.parametrize("after", ["nothing", "checkpoint", "control log"])
@pytest.mark.parametrize("directories", [1, 2])
def test_decision_outlives_crashes(tmp_path, store, before, after, directories):
    """Checkpoints, control logs and entry logs from before the decision hold the stranger's entries: no boot takes them back."""
    paths = [tmp_path / f"d{number}" for number in range(directories)]
    bookie = opened(store, *paths)

    def write(what):
        if what == "checkpoint":
            bookie.checkpoint()
        elif what == "control log":
            bookie.steps(bookie.storage._records.rewrite())
            assert bookie.run(bookie.storage.settle) is Status.OK
        elif what == "seal":
            bookie.seal()

    for ledger_id in (7, 8, 9):
        for entry_id in range(10):
            assert bookie.add(ledger_id, entry_id, master_key=STRANGER, payload=STRANGERS) is Status.OK
        if ledger_id != 9:
            assert bookie.run(bookie.storage.write_last_add_confirmed, ledger_id, STRANGER, 5) is Status.OK
        assert bookie.fence(ledger_id, STRANGER) is Status.OK
        store.create_ledger(replace(metadata(), ledger_id=ledger_id))
    bookie.storage.holdings.ledgers.rest_all()
    write(before)
    for entry_id in (0, 2):
        assert bookie.add(7, entry_id, flags=Flag.RECOVERY) is Status.OK
    assert read(bookie, KEY) is Status.OK
    bookie.storage.when_readable(9, KEY, lambda: None, lambda status: None)
    bookie.wait(lambda: bookie.storage.holdings.ledger(9).master_key == KEY)
    assert bookie.run(bookie.storage.settle) is Status.OK
    write(after)
    images = [crash_image(path, tmp_path / f"image-{path.name}") for path in paths]
    bookie.storage.close()
    for _ in range(2):
        again = opened(store, *images)
        ledger = again.storage.holdings.ledger(7)
        assert (ledger.master_key, ledger.fenced, ledger.last_add_confirmed) == (KEY, False, -1)
        assert payloads(again) == [b"00000000:payload", b"00000002:payload"]
        ledger = again.storage.holdings.ledger(9)
        assert (ledger.master_key, ledger.fenced, payloads(again, 9)) == (KEY, False, [])
        assert again.storage.holdings.ledger(8).fenced and len(payloads(again, 8)) == 10, "undecided: nothing is lost"
        assert again.add(7, 0, flags=Flag.RECOVERY) is Status.OK, "a repeated add"
        again.checkpoint()
        again.storage.close()


def test_crash_before_the_owners_entry_leaves_either(tmp_path, store):
    bookie = opened(store, tmp_path / "d")
    assert bookie.add(7, 0, master_key=STRANGER, payload=STRANGERS) is Status.OK
    before = crash_image(tmp_path / "d", tmp_path / "before")
    store.create_ledger(metadata())
    assert bookie.fence(7) is Status.OK
    after = crash_image(tmp_path / "d", tmp_path / "after")
    bookie.storage.close()
    for image, held in ((before, 1), (after, 0)):
        again = opened(store, image)
        assert len(payloads(again)) == held
        assert again.fence(7) is Status.OK
        assert payloads(again) == []
        again.storage.close()


def test_number_of_a_decision_whose_record_is_lost_is_not_used_again(tmp_path, store):
    """A checkpoint may be durable before the record of the last decision. The next decision voids what that checkpoint holds."""
    bookie = opened(store, tmp_path / "d")
    for ledger_id in (7, 8):
        assert bookie.add(ledger_id, 0, master_key=STRANGER, payload=STRANGERS) is Status.OK
        store.create_ledger(replace(metadata(), ledger_id=ledger_id))
    older = (tmp_path / "d" / "control.log").read_bytes(), (tmp_path / "d" / "control.synced").read_bytes()
    assert bookie.fence(7) is Status.OK
    bookie.checkpoint()
    image = crash_image(tmp_path / "d", tmp_path / "image")
    bookie.storage.close()
    for name, content in zip(("control.log", "control.synced"), older, strict=True):
        (image / name).write_bytes(content)
    again = opened(store, image)
    assert again.fence(8) is Status.OK
    again = crash_image(image, tmp_path / "later"), again.storage.close()
    last = opened(store, again[0])
    assert payloads(last, 8) == []
    last.storage.close()


def test_lossy_boot_keeps_no_strangers_entries_under_the_metadatas_key(tmp_path, store):
    bookie = opened(store, tmp_path / "d")
    assert bookie.add(7, 0, master_key=STRANGER, payload=STRANGERS) is Status.OK
    bookie.storage.close()

    def lossy(storage):
        storage.lossy_boots.note_lossy_boot(phase_one("b1", [metadata()], 7))
        storage.end_phase_one()

    for before_start in (lossy, lambda storage: None):
        again = opened(store, tmp_path / "d", before_start=before_start)
        ledger = again.storage.holdings.ledger(7)
        assert (ledger.master_key, ledger.fenced, ledger.limbo, payloads(again)) == (KEY, True, True, [])
        again.storage.close()

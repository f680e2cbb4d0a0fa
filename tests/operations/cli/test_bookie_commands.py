"""``bookspark bookie``: commands on the directories of a stopped bookie and on a serving bookie."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from bookspark.errors import BookieError
from bookspark.local import LocalCluster
from bookspark.operations.cli.commands import bookie
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.servers.daemon.bookie_process import why_lossy
from bookspark.servers.daemon.directories import DirectoryLocks, read_cookie, write_cookie
from bookspark.store.bookie.disk import file_system
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.messages import BookieStatus, HealingStatus
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.awaiting import await_that
from tests.operations.cli.conftest import Run
from tests.store.bookie.kit import Pumped, config


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """Two directories of one bookie: entries 0–9 and 10 of ledger 4, and 0–2 of ledger 5, in three logs."""
    directories = [tmp_path / "disk1", tmp_path / "disk2"]
    storage = Pumped(config(*directories, entry_log_bytes_max=900))
    storage.add(4, 0, 9)
    storage.add(5, 0, 2, payload=b"\xff\xfe")
    storage.add(4, 10, last_add_confirmed=9)
    storage.storage.close()
    names = tuple(map(str, directories))
    for directory in names:
        write_cookie(directory, Cookie("bookie-1", names, "instance", "nonce"))
    return list(names)


def snapshot(places: list[str]) -> dict[str, bytes]:
    found = {}
    for place in places:
        for folder, _, names in os.walk(place):
            found |= {f"{folder}/{name}": Path(folder, name).read_bytes() for name in names if name != "LOCK"}
    return found


def test_operator_collects_garbage_at_once_and_switches_a_bookie_to_read_only(
    on_cluster: Run, cluster: LocalCluster
) -> None:
    bookie = cluster.bookies[0].bookie_id
    collected = on_cluster("bookie", "collect", bookie)
    assert collected.status == 0 and "0 deleted ledgers, 0 B freed in" in collected.text, collected.err
    assert "free now" in collected.text
    assert json.loads(on_cluster("bookie", "collect", bookie, "--json").text)["number"] == 2
    switched = on_cluster("bookie", "read-only", bookie, "on").text
    assert f"{bookie}, process" in switched and "read-only" in switched
    assert f"bookspark bookie read-only {'ID'} off" in switched
    with cluster.bookkeeper() as client:
        await_that(lambda: client.metadata.bookies()[bookie].read_only)
        assert "writable" in on_cluster("bookie", "read-only", bookie, "off").text
        await_that(lambda: not client.metadata.bookies()[bookie].read_only)


def test_serving_bookie_reports_its_status(on_cluster: Run, cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0]
    text = on_cluster("bookie", "status", bookie.bookie_id).text
    assert text.startswith(f"{bookie.bookie_id}, process {bookie.pid}: writable\n")
    assert f"directories: {bookie.directories[0]}" in text and "no boot of it lost anything" in text
    document = json.loads(on_cluster("bookie", "status", bookie.bookie_id, "--json").text)
    assert (document["limbo_ledgers"], document["lossy_boot"], document["healing"]) == (0, 0, None)


@pytest.mark.parametrize("command", [("status",), ("collect",), ("read-only", "on")], ids=" ".join)
def test_misspelled_bookie_is_an_error_with_the_bookies_that_there_are(
    on_cluster: Run, cluster: LocalCluster, command: tuple[str, ...]
) -> None:
    outcome = on_cluster("bookie", command[0], "nobody", *command[1:])
    assert outcome.status == 2 and outcome.err.startswith("bookspark: unknown bookie 'nobody'; known are: ")
    assert all(bookie.bookie_id in outcome.err for bookie in cluster.bookies)


def test_bookie_status_shows_the_progress_of_healing() -> None:
    healing = HealingStatus(ledgers=120, ledgers_left=40, entries_copied=12000, bytes_copied=1_200_000, seconds=60.0)
    status = BookieStatus(
        "b1", 1, 2, ["/disk"], 120, 0, 0, lossy_boot=3, healed_boot=2, limbo_ledgers=4, healing=healing
    )
    *_, lossy, progress = bookie.lines(status)
    assert lossy == "  lossy boot 3 is not healed: 4 ledgers in limbo"
    assert progress == "  healing: 80 of 120 ledgers, 12,000 entries, 1.2 MB copied in 60 s, about 30 s left"
    why = "/b is full, 96.0 % is used: it takes no adds"
    assert f"  {why}" in list(bookie.lines(replace(status, full_directories={"/b": why}, reasons=[why])))
    healed = replace(status, healed_boot=3, healing=replace(healing, ledgers_left=0))
    *_, lossy, progress = bookie.lines(healed)
    assert lossy == "  lossy boot 3 is healed"
    assert progress == "  healing: 120 of 120 ledgers, 12,000 entries, 1.2 MB copied in 60 s"


def test_logs_are_listed_with_their_live_ledgers_and_entries(bookspark: Run, places: list[str]) -> None:
    logs = json.loads(bookspark("bookie", "logs", "--json", *places).text)
    assert [(log["number"], log["rewritten"], log["ledgers"], log["entries"]) for log in logs] == [
        ("00000040", False, 1, 10), ("00000041", False, 1, 3), ("00000080", False, 1, 1),
    ]  # fmt: skip
    assert all(
        log["size"] == log["synced"] == os.path.getsize(log["path"]) == log["live"] + len(SCHEMA) for log in logs
    )
    assert "00000080" in bookspark("bookie", "logs", *places).text


def test_log_is_read_batch_by_batch(bookspark: Run, places: list[str]) -> None:
    [batch] = map(json.loads, bookspark("bookie", "read", "41", "--entries", "--json", *places).text.splitlines())
    assert (batch["ledger_id"], batch["first"], batch["last"], batch["position"]) == (5, 0, 2, len(SCHEMA))
    assert [entry["entry_id"] for entry in batch["entries"]] == [0, 1, 2]
    assert "payload_base64" in batch["entries"][0]
    text = bookspark("bookie", "read", "00000040", "--entries", *places).text
    assert text.startswith("00000040:400 ") and "ledger 4 entries 0..9" in text
    assert "    9: length 160, '00000009:payload'" in text
    assert bookspark("bookie", "read", "40", "--ledger", "5", *places).text == ""


def test_missing_log_is_an_error_that_lists_the_existing_logs(bookspark: Run, places: list[str]) -> None:
    outcome = bookspark("bookie", "read", "2a", *places)
    assert outcome.status == 2
    assert outcome.err == "bookspark: there is no log 0000002a here; there are: 00000040, 00000041, 00000080\n"
    assert bookspark("bookie", "read", "log", *places).status == 2


def test_index_is_shown_as_ranges(bookspark: Run, places: list[str]) -> None:
    rows = json.loads(bookspark("bookie", "index", "--json", *places).text)
    assert [(row["ledger_id"], row["first"], row["last"], row["log"]) for row in rows] == [
        (4, 0, 9, "00000040"), (4, 10, 10, "00000080"), (5, 0, 2, "00000041"),
    ]  # fmt: skip
    assert len(json.loads(bookspark("bookie", "index", "--json", "--ledger", "5", *places).text)) == 1
    assert "00000080" in bookspark("bookie", "index", *places).text


def test_good_directory_verifies_and_inspection_changes_no_file(bookspark: Run, places: list[str]) -> None:
    before = snapshot(places)
    outcome = bookspark("bookie", "verify", *places)
    assert outcome.status == 0 and outcome.text.count("all good") == 2
    for command in (["logs"], ["index"], ["read", "40"]):
        assert bookspark("bookie", *command, *places).status == 0
    assert snapshot(places) == before


def test_verify_reports_the_damage_and_the_entries_it_hit(bookspark: Run, places: list[str]) -> None:
    path = Path(places[0], "logs", "00000040.arrows")
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    outcome = bookspark("bookie", "verify", *places)
    assert outcome.status == 1
    assert f"DAMAGED {path} at byte 400" in outcome.text and "hit: ledger 4 entries 0..9" in outcome.text
    found = json.loads(bookspark("bookie", "verify", "--json", *places).text)
    assert [len(scrubbed["damages"]) for scrubbed in found] == [1, 0]
    assert found[0]["damages"][0]["entries"] == [{"ledger_id": 4, "first": 0, "last": 9}]


def test_verify_takes_back_the_note_of_a_loss_over_good_bytes(bookspark: Run, places: list[str]) -> None:
    before = json.loads(bookspark("bookie", "index", "--json", *places).text)
    path = Path(places[0], "logs", "00000040.arrows")
    good = path.read_bytes()
    path.write_bytes(good[:700] + bytes([good[700] ^ 1]) + good[701:])
    storage = Pumped(config(*map(Path, places)))
    pieces = storage.storage.holdings.plan_read(4, 0, 9, 0, sparse=False).pieces
    fetched = storage.storage.files.fetch(pieces, cached_only=False)
    assert fetched is not None and fetched.stop is not None
    storage.storage.holdings.read_ended(pieces, fetched.stop)
    storage.storage.close()
    path.write_bytes(good)
    assert len(json.loads(bookspark("bookie", "index", "--json", *places).text)) == len(before) - 1
    outcome = bookspark("bookie", "verify", *places)
    assert outcome.status == 0 and "noted as lost and are good: 1;" in outcome.err
    assert json.loads(bookspark("bookie", "index", "--json", *places).text) == before
    assert "noted as lost" not in bookspark("bookie", "verify", *places).err


def test_index_is_rebuilt_from_the_logs(bookspark: Run, places: list[str]) -> None:
    before = json.loads(bookspark("bookie", "index", "--json", *places).text)
    for place in places:
        Path(place, "checkpoint").write_bytes(b"no checkpoint")
    assert bookspark("bookie", "verify", *places).status == 1
    assert bookspark("bookie", "rebuild", *places).text == "the index has 3 ranges\n"
    assert bookspark("bookie", "verify", *places).status == 0
    assert json.loads(bookspark("bookie", "index", "--json", *places).text) == before


def test_operator_accepts_the_loss_of_a_bad_sector(
    bookspark: Run, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no loss is to be accepted" in bookspark("bookie", "accept-loss", *places).text
    Path(places[0], "checkpoint").unlink()
    path = Path(places[0], "logs", "00000040.arrows")
    bad = FaultyFileSystem(RealFileSystem(), f"read {path} 1.. bad-sector:700")
    monkeypatch.setattr(file_system, "RealFileSystem", lambda: bad)
    before = snapshot(places)
    asked = bookspark("bookie", "accept-loss", *places)
    assert asked.status != 0 and "lost for good?" in asked.err
    assert asked.text.splitlines()[:-1] == [
        f"{path}: the disk can't read bytes 0..{path.stat().st_size - 1}",
        "  may hit: ledger 4 entries 0..9",
    ], "the operator sees what is given up before the word is recorded"
    assert snapshot(places) == before
    assert "accepted; start the bookie" in bookspark("bookie", "accept-loss", "--yes", *places).text
    accepted = Storage(config(*map(Path, places)), bad).open().holdings.control.accepted
    assert "@" in accepted[0x40].by


def test_rebuild_keeps_the_marker_of_an_unclean_shutdown(bookspark: Run, places: list[str]) -> None:
    marker = Path(places[0], "unclean")
    marker.write_bytes(b"")
    assert bookspark("bookie", "rebuild", *places).status == 0
    assert marker.exists()


def test_order_and_repetition_of_named_directories_do_not_matter(bookspark: Run, places: list[str]) -> None:
    """The first directory was last used without the second. Named after the second, it made the second count as used
    without itself, and the boot after the rebuild was lossy. A directory named twice was refused as in use by the
    command itself."""
    storage = Storage(config(*map(Path, places)), without=places[1:]).open()
    storage.end_phase_one()
    storage.close()
    rebuilt = bookspark("bookie", "rebuild", *reversed(places), places[0])
    assert (rebuilt.status, rebuilt.text) == (0, "the index has 3 ranges\n"), rebuilt.err
    assert why_lossy(Storage(config(*map(Path, places))).open().lossy_boots, ()) == ""


def test_running_bookie_is_an_error_that_names_its_process(bookspark: Run, places: list[str]) -> None:
    with DirectoryLocks(places):
        outcome = bookspark("bookie", "verify", *places)
    assert outcome.status == 2 and f"is in use by process {os.getpid()}; stop it" in outcome.err


def test_all_directories_of_the_bookie_must_be_named(bookspark: Run, places: list[str], tmp_path: Path) -> None:
    outcome = bookspark("bookie", "logs", places[0])
    assert outcome.status == 2 and f"which has {places[0]}, {places[1]}; name all of these" in outcome.err
    assert "is not a directory" in bookspark("bookie", "logs", str(tmp_path / "none")).err
    (tmp_path / "other").mkdir()
    assert "has no cookie" in bookspark("bookie", "logs", str(tmp_path / "other")).err
    assert not (tmp_path / "none").exists()


def test_cookie_with_any_flipped_bit_is_damaged(bookspark: Run, places: list[str]) -> None:
    path = Path(places[1], "COOKIE")
    content = path.read_bytes()
    for offset in range(len(content)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1 << offset % 8]) + content[offset + 1 :])
        with pytest.raises(Exception, match="COOKIE is damaged"):
            read_both(places)
    path.write_bytes(content)
    read_both(places)


def read_both(places: list[str]) -> None:
    for place in places:
        read_cookie(place)


def test_directory_on_a_full_disk_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectoryLocks([str(tmp_path)]):
        pass

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with DirectoryLocks([str(tmp_path)], one_is_enough=True) as locks:
        assert locks.usable == [str(tmp_path)] and not locks.unusable
        with pytest.raises(BookieError, match="is in use by"):
            DirectoryLocks([str(tmp_path)])

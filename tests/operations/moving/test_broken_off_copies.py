"""Copies interrupted by SIGKILL of the copying process: the next run continues by itself and deletes only its own copies."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bookspark import DigestType, errors
from bookspark.local import LocalCluster
from bookspark.operations import moving
from bookspark.operations.moving import Copied, EntryReader, Source, copy_ledger
from tests.awaiting import SECONDS_MAX

PASSWORD = b"secret"
PAYLOADS = [b"payload %d" % i for i in range(200)]
_HALTED = """
import sys
from bookspark import BookKeeper
from bookspark.store.client.writing.ledger_handle import LedgerHandleAdv
from bookspark.operations.moving import copy_ledger
from bookspark.operations.moving import EntryReader
from bookspark.operations.moving import Source

there, here, ledger_id, count = sys.argv[1:]
append, close = LedgerHandleAdv.append_at_async, LedgerHandleAdv.close

def halt():
    print("halted", flush=True)
    sys.stdin.read()

def appending(self, entry_id, payload):
    if entry_id == int(count):
        self.drain_async().result(60)
        halt()
    return append(self, entry_id, payload)

def closing(self, *arguments, **named):
    halt()

LedgerHandleAdv.append_at_async, LedgerHandleAdv.close = appending, closing
with Source(there) as source, EntryReader(source.addresses()) as reader, BookKeeper(here) as bookkeeper:
    copy_ledger(source, reader, bookkeeper, int(ledger_id))
"""


def written(there: LocalCluster) -> int:
    with there.bookkeeper().create_ledger(
        digest_type=DigestType.BOOKKEEPER_CRC32C, password=PASSWORD, custom_metadata={"owner": b"billing"}
    ) as ledger:
        ledger.append_batch(PAYLOADS)
    return ledger.ledger_id


def killed_at(there: LocalCluster, here: LocalCluster, ledger_id: int, entry_id: int) -> None:
    """Run a copying process and kill it before it adds `entry_id`; at the count of entries, before it closes the ledger."""
    command = [
        sys.executable,
        "-c",
        _HALTED,
        f"{there.zookeeper}/ledgers",
        here.zookeeper,
        str(ledger_id),
        str(entry_id),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    giving_up = threading.Timer(SECONDS_MAX, process.kill)
    giving_up.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"halted\n"
    finally:
        giving_up.cancel()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("entry_id", [0, 100, len(PAYLOADS)])
def test_copy_of_a_killed_process_is_continued_by_the_next_run(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader, entry_id: int
) -> None:
    ledger_id, bookkeeper = written(there), here.bookkeeper()
    killed_at(there, here, ledger_id, entry_id)
    left = bookkeeper.get_ledger_metadata(ledger_id)
    assert not left.closed and moving.is_broken_off(left, source.identity)
    size = sum(map(len, PAYLOADS))
    assert copy_ledger(source, reader, bookkeeper, ledger_id) == Copied(ledger_id, len(PAYLOADS), size, was_there=False)
    found = bookkeeper.get_ledger_metadata(ledger_id)
    assert found.closed and dict(found.custom_metadata) == {"owner": b"billing"}
    with bookkeeper.open_ledger(ledger_id, PASSWORD) as ledger:
        assert [entry.payload for entry in ledger.read()] == PAYLOADS
    assert (found.c_token == left.c_token) == (entry_id == len(PAYLOADS)), "it is made anew only if entries are missing"
    assert copy_ledger(source, reader, bookkeeper, ledger_id).was_there
    assert bookkeeper.metadata.list_records("copies") == []


def test_open_ledger_without_this_clusters_copy_label_is_neither_deleted_nor_fenced(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader
) -> None:
    bookkeeper = here.bookkeeper()
    for labels in ({}, {moving.LABEL: b"another cluster"}):
        ledger_id = written(there)
        ledger = bookkeeper.create_ledger_adv(ledger_id, password=PASSWORD, custom_metadata=labels)
        ledger.append_at(0, b"mine")
        with pytest.raises(errors.LedgerExistsError, match="it is OPEN"):
            copy_ledger(source, reader, bookkeeper, ledger_id)
        assert ledger.append_at(1, b"mine") == 1, "it is not fenced"
        ledger.close()


def test_broken_off_copy_that_another_run_deletes_is_left_alone(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader
) -> None:
    ledger_id, bookkeeper = written(there), here.bookkeeper()
    killed_at(there, here, ledger_id, 100)
    left = bookkeeper.get_ledger_metadata(ledger_id)
    # Stands for another run that is about to delete the copy.
    bookkeeper.metadata.write_record("copies", f"{ledger_id}.{left.c_token}", b"", None)
    with pytest.raises(errors.LedgerExistsError, match="another run deletes it"):
        copy_ledger(source, reader, bookkeeper, ledger_id)
    assert bookkeeper.get_ledger_metadata(ledger_id).c_token == left.c_token
    bookkeeper.metadata.delete_record("copies", f"{ledger_id}.{left.c_token}")
    assert copy_ledger(source, reader, bookkeeper, ledger_id).entries == len(PAYLOADS)


def test_delete_with_outdated_metadata_keeps_the_newer_copy(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader
) -> None:
    ledger_id, bookkeeper = written(there), here.bookkeeper()
    killed_at(there, here, ledger_id, 100)
    left = bookkeeper.get_ledger_metadata(ledger_id)
    assert copy_ledger(source, reader, bookkeeper, ledger_id).entries == len(PAYLOADS)
    with pytest.raises(errors.LedgerExistsError, match="another run"):
        moving.delete(bookkeeper, left)
    assert copy_ledger(source, reader, bookkeeper, ledger_id).was_there
    assert bookkeeper.metadata.list_records("copies") == []


def test_broken_off_copy_is_deleted_only_while_its_bookies_are_up(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader, tmp_path: Path
) -> None:
    ledger_id, bookkeeper = written(there), here.bookkeeper()
    killed_at(there, here, ledger_id, 100)
    away = here.bookies[0]
    away.stop()
    try:
        with pytest.raises(errors.BookieError, match=away.bookie_id):
            copy_ledger(source, reader, bookkeeper, ledger_id)
        assert moving.is_broken_off(bookkeeper.get_ledger_metadata(ledger_id), source.identity)
    finally:
        away.start()
    assert copy_ledger(source, reader, bookkeeper, ledger_id).entries == len(PAYLOADS)

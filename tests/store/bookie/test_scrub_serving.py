"""The scrub on a server's loop, and the process's care for its cookies."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from bookspark.servers.daemon.directories import read_cookie
from bookspark.servers.daemon.identity import Identity
from bookspark.store.bookie.disk.control_log import ControlLog
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.holdings.scrubbing import ScrubProgress
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Status
from tests.awaiting import await_that
from tests.clocks import DAY_MS, keep_steady, wrong_clock
from tests.store.bookie.kit import Client, config, serving


def flip(path: Path, at: int) -> None:
    """Invert a bit of a file, durably."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))
        os.fsync(file.fileno())


def test_serving_bookie_scrubs_and_repairs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_steady(monkeypatch)  # the wall clock paces and dates rounds
    settings = config(tmp_path, scrub_interval_hours=0.0005, entry_log_bytes_max=2000)
    with serving(settings) as (server, address):
        client = Client(address)
        for first in range(0, 20, 5):
            assert client.add(5, first, first + 4, payload=b"x" * 300).status == Status.OK
        logs = sorted((tmp_path / "logs").glob("*.arrows"))
        flip(logs[0], 1000)
        flip(tmp_path / "control.log", 12)
        await_that(lambda: client.status().renewed_files >= 1 and client.status().lost_copies == 1)
        assert client.read(5, 0, 0)[1].status == Status.LOST and len(client.read(5, 5, 19)[0]) == 15
        finished = client.status().scrub_finished_ms
        await_that(lambda: client.status().scrub_finished_ms > finished)
        assert client.status().scrub_dead_bytes in (0, server.storage.scrubbing.dead_bytes)
        client.close()
    assert not ControlLog(RealFileSystem(), str(tmp_path)).scan().damaged


def test_rotten_cookie_is_rewritten_but_never_into_an_empty_mount_point(tmp_path: Path) -> None:
    """The next start was refused, as the cookie failed its checks."""
    identity = Identity(config(tmp_path), MemoryStore(), {})
    (tmp_path / "control.log").write_bytes(b"")
    identity.stamp()
    [kept] = identity.kept_cookies([str(tmp_path)])
    assert kept.is_good()
    flip(Path(kept.path), 20)
    assert not kept.is_good()
    kept.renew()
    assert kept.is_good() and read_cookie(str(tmp_path)) == identity.cookie
    Path(kept.path).unlink()
    assert not kept.is_good()
    (tmp_path / "control.log").unlink()
    assert kept.is_good(), "a disk that is not mounted any more gets no cookie in its place"


@pytest.mark.parametrize("days", [400, -400])
def test_scrub_goes_on_after_its_host_had_a_wrong_clock(tmp_path: Path, days: int) -> None:
    """A round that was noted 400 days ahead began again after 400 days."""
    settings = config(tmp_path, scrub_interval_hours=0.0005)
    with wrong_clock(days), serving(settings, metadata=MemoryStore()) as (_, address):
        client = Client(address)
        assert client.add(5, 0, 4).status == Status.OK
        told = await_that(lambda: (found := client.status()).scrub_finished_ms and found.store_ms and found)
        await_that((tmp_path / "scrub").exists)
        assert abs(told.scrub_finished_ms - told.store_ms) < DAY_MS and round(told.clock_ahead_ms / DAY_MS) == days
        client.close()
    # The metadata store's own clock was wrong for a moment.
    note = msgspec.json.decode((tmp_path / "scrub").read_bytes(), type=ScrubProgress)
    ahead_ms = 400 * DAY_MS
    kept = msgspec.structs.replace(note, began_ms=note.began_ms + ahead_ms, finished_ms=note.finished_ms + ahead_ms)
    (tmp_path / "scrub").write_bytes(msgspec.json.encode(kept))
    with serving(settings, metadata=MemoryStore()) as (_, address):
        client = Client(address)
        await_that(lambda: 0 < (found := client.status()).scrub_finished_ms < found.store_ms + DAY_MS)
        client.close()

"""``bookspark cookie``: troubles with a bookie's identity, and the commands that the errors name."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bookspark.errors import BookieError
from bookspark.servers.daemon.directories import has_cookie
from bookspark.servers.daemon.launch import Bookie, adopt_or_start
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import SECONDS_MAX, await_that
from tests.operations.cli.conftest import Outcome, Run
from tests.processes import halted


class Host:
    """A bookie with two directories, started and stopped as processes."""

    def __init__(self, zookeeper: str, root: Path) -> None:
        self.zookeeper = zookeeper
        self.directories = [root / "disk1", root / "disk2"]
        self.options: dict[str, object] = {}
        self._bookie: Bookie | None = None

    @property
    def bookie(self) -> Bookie:
        assert self._bookie is not None
        return self._bookie

    @property
    def arguments(self) -> list[str]:
        return ["--zookeeper", self.zookeeper, *map(str, self.directories)]

    def start(self) -> str:
        """Start the bookie and return its id. Raises BookieError with the last words of its log."""
        config = bookie_config(
            directories=list(map(str, self.directories)), zookeeper=self.zookeeper, lease_seconds=60.0, **self.options
        )
        self._bookie = adopt_or_start(config, "a test")
        return self._bookie.wait_serving().bookie_id

    def stop(self) -> None:
        if self._bookie is not None:
            assert self._bookie.stop()
            self._bookie = None

    def refused(self) -> str:
        """The error with which the bookie refuses to start."""
        with pytest.raises(BookieError) as error:
            self.start()
        return str(error.value)


@pytest.fixture
def host(chroot: str, tmp_path: Path) -> Iterator[Host]:
    host = Host(chroot, tmp_path)
    yield host
    host.stop()


@pytest.fixture
def successor(chroot: str, tmp_path: Path) -> Iterator[Host]:
    """Another host that becomes the bookie."""
    successor = Host(chroot, tmp_path / "successor")
    yield successor
    successor.stop()


def run_advice(bookspark: Run, words: str, *more: str) -> Outcome:
    """Run the command at the end of an error message."""
    command = words[words.index("bookspark cookie") :].split()
    return bookspark(*command[1:], *more)


def test_cookie_is_listed_shown_and_deleted_once_the_bookie_stopped(bookspark: Run, host: Host) -> None:
    bookie = host.start()
    assert bookspark("cookie", "list", "--zookeeper", host.zookeeper).text.splitlines() == [bookie]
    cookie = json.loads(bookspark("cookie", "get", "--zookeeper", host.zookeeper, bookie).out)
    assert cookie["directories"] == list(map(str, host.directories))
    serving = bookspark("cookie", "delete", "--yes", "--zookeeper", host.zookeeper, bookie)
    assert serving.status == 2 and "stop it first" in serving.err
    host.stop()
    assert bookspark("cookie", "delete", "--yes", "--zookeeper", host.zookeeper, bookie).status == 0
    gone = bookspark("cookie", "get", "--zookeeper", host.zookeeper, bookie)
    assert (gone.status, gone.err.count("\n")) == (2, 1)


def test_cookie_of_a_bookie_that_ledgers_name_is_not_deleted(bookspark: Run, host: Host) -> None:
    """The bookie could return under its name with empty disks and deny entries that it acknowledged."""
    bookie = host.start()
    with BookKeeper(host.zookeeper) as bookkeeper:
        ledger_id = bookkeeper.create_ledger(1, 1, 1).ledger_id
        host.stop()
        delete = ("cookie", "delete", "--yes", "--zookeeper", host.zookeeper, bookie)
        refused = bookspark(*delete)
        assert refused.status == 2 and f"such as {ledger_id}; `bookspark autorecovery decommission" in refused.err
        bookkeeper.delete_ledger(ledger_id)
    assert bookspark(*delete).status == 0


def test_cookie_update_is_refused_while_the_bookie_runs(bookspark: Run, host: Host) -> None:
    host.start()
    outcome = bookspark("cookie", "update", *host.arguments)
    assert outcome.status == 2 and "in use by process" in outcome.err


def test_moved_directories_are_accepted_after_the_advised_command(bookspark: Run, host: Host, tmp_path: Path) -> None:
    bookie = host.start()
    host.stop()
    for directory in host.directories:
        directory.rename(tmp_path / f"moved-{directory.name}")
    host.directories = [tmp_path / f"moved-{directory.name}" for directory in host.directories]
    assert run_advice(bookspark, host.refused()).status == 0
    assert host.start() == bookie


def test_cookie_update_without_one_of_the_directories_is_refused(bookspark: Run, host: Host) -> None:
    """The bookie would deny every entry in the missing directory."""
    bookie = host.start()
    host.stop()
    both, host.directories = host.directories, host.directories[:1]
    assert "cookie update" not in host.refused()
    outcome = bookspark("cookie", "update", *host.arguments)
    assert outcome.status == 2 and str(both[1]) in outcome.err
    host.directories = both
    assert host.start() == bookie


def test_cookie_lost_by_the_metadata_store_is_restored_by_the_advised_command(bookspark: Run, host: Host) -> None:
    bookie = host.start()
    host.stop()
    store = ZooKeeperStore(host.zookeeper)
    found = store.read_cookie(bookie)
    assert found is not None
    store.delete_cookie(bookie, found.version)
    store.close()
    # With a file in it, the directory does not look like an interrupted first boot.
    (host.directories[0] / "entries").touch()
    assert run_advice(bookspark, host.refused()).status == 0
    (host.directories[0] / "entries").unlink()
    assert host.start() == bookie
    again = bookspark("cookie", "create", *host.arguments)
    assert again.status == 2


def test_emptied_directory_is_accepted_after_the_advised_command(bookspark: Run, host: Host) -> None:
    bookie = host.start()
    host.stop()
    shutil.rmtree(host.directories[1])
    words = host.refused()
    assert run_advice(bookspark, words, "--yes").status == 0
    assert host.start() == bookie


def test_directories_of_two_bookies_are_refused(bookspark: Run, chroot: str, tmp_path: Path) -> None:
    hosts = [Host(chroot, tmp_path / name) for name in ("a", "b")]
    for host in hosts:
        host.start()
        host.stop()
    mixed = [str(hosts[0].directories[0]), str(hosts[1].directories[1])]
    outcome = bookspark("cookie", "update", "--zookeeper", chroot, *mixed)
    assert outcome.status == 2 and "of one bookie" in outcome.err


def test_bookie_with_all_disks_lost_returns_with_a_lossy_boot(bookspark: Run, host: Host) -> None:
    bookie = host.start()
    host.stop()
    for directory in host.directories:
        shutil.rmtree(directory)
    (host.directories[0]).mkdir(parents=True)
    (host.directories[1]).mkdir()
    (host.directories[1] / "ours").touch()
    refused = bookspark("cookie", "fix", "--yes", *host.arguments)
    assert refused.status == 2 and f"{host.directories[1]} is not empty" in refused.err
    (host.directories[1] / "ours").unlink()
    host.options = {"bookie_id": bookie}
    assert run_advice(bookspark, host.refused(), "--yes").status == 0
    assert all((directory / "unclean").exists() for directory in host.directories), "the next boot is a lossy one"
    assert host.start() == bookie
    assert "lossy boot 1" in (host.directories[0] / "bookie.log").read_text()
    assert not any((directory / "unclean").exists() for directory in host.directories)


def test_cookie_fix_of_empty_disks_asks_for_the_bookie_id_if_unclear(bookspark: Run, host: Host) -> None:
    bookie = host.start()
    serving = bookspark("cookie", "fix", "--yes", *host.arguments)
    assert serving.status == 2 and "in use by process" in serving.err
    host.stop()
    for directory in host.directories:
        shutil.rmtree(directory)
        directory.mkdir()
    unsure = bookspark("cookie", "fix", *host.arguments, stdin=b"n\n")
    assert unsure.status == 2 and f"of {bookie} lost?" in unsure.err and "nothing was done" in unsure.err
    assert not any(has_cookie(str(directory)) for directory in host.directories)
    store = ZooKeeperStore(host.zookeeper)
    found = store.read_cookie(bookie)
    assert found is not None
    twin = replace(found.value, bookie_id="bookie-of-another-host", nonce="another")
    version = store.write_cookie(twin, None)
    refused = bookspark("cookie", "fix", "--yes", *host.arguments)
    assert refused.status == 2 and "--bookie" in refused.err and bookie in refused.err and twin.bookie_id in refused.err
    unknown = bookspark("cookie", "fix", "--yes", "--bookie", "bookie-x", *host.arguments)
    assert unknown.status == 2 and "no cookie of bookie-x" in unknown.err
    store.delete_cookie(twin.bookie_id, version)
    store.close()
    assert bookspark("cookie", "fix", "--yes", *host.arguments).status == 0
    assert host.start() == bookie
    assert "lossy boot 1" in (host.directories[0] / "bookie.log").read_text()


def test_only_the_directories_of_the_last_cookie_fix_start(bookspark: Run, host: Host, tmp_path: Path) -> None:
    """Two hosts with equal paths were each given the identity of a dead bookie, and both went on as that bookie."""
    bookie = host.start()
    host.stop()
    for name in ("first", "second"):
        for directory in host.directories:
            if directory.exists():
                directory.rename(tmp_path / f"before-{name}-{directory.name}")
            directory.mkdir()
        assert bookspark("cookie", "fix", "--yes", *host.arguments).status == 0
    assert host.start() == bookie
    host.stop()
    for directory in host.directories:
        directory.rename(tmp_path / f"second-{directory.name}")
        (tmp_path / f"before-second-{directory.name}").rename(directory)
    assert "other directories have become the bookie" in host.refused()
    refused = bookspark("cookie", "update", *host.arguments, stdin=b"n\n")
    assert refused.status == 2 and "Are they given up?" in refused.err
    (host.directories[0] / "COOKIE").unlink()
    refused = bookspark("cookie", "fix", "--yes", *host.arguments)
    assert refused.status == 2 and f"other directories have become {bookie} since" in refused.err


def test_host_that_stood_still_while_another_one_became_its_bookie_ends(
    bookspark: Run, host: Host, successor: Host
) -> None:
    """It took the registration back, and denied the entries that the other one had acknowledged."""
    host.options = {"zookeeper_session_timeout_seconds": 2.0}
    bookie = host.start()
    old, log = host.bookie, host.directories[0] / "bookie.log"
    with closing(ZooKeeperStore(host.zookeeper)) as store, halted(old.process.pid):
        await_that(lambda: bookie not in store.bookies(), what="the end of the old host's session")
        for directory, place in zip(host.directories, successor.directories, strict=True):
            place.mkdir(parents=True)
            shutil.copy(directory / "COOKIE", place)
        assert bookspark("cookie", "update", "--yes", *successor.arguments).status == 0
        assert successor.start() == bookie
    assert old.wait_ended(SECONDS_MAX)
    assert f"other directories have become {bookie} since" in log.read_text()
    with closing(ZooKeeperStore(host.zookeeper)) as store:
        assert store.bookies()[bookie].pid == successor.bookie.process.pid


def test_directories_put_in_the_place_of_their_successors_start_with_a_lossy_boot(
    bookspark: Run, host: Host, tmp_path: Path
) -> None:
    bookie = host.start()
    host.stop()
    for directory in host.directories:
        directory.rename(tmp_path / f"before-{directory.name}")
        directory.mkdir()
    assert bookspark("cookie", "fix", "--yes", *host.arguments).status == 0
    assert host.start() == bookie
    host.stop()
    for directory in host.directories:
        shutil.rmtree(directory)
        (tmp_path / f"before-{directory.name}").rename(directory)
    assert run_advice(bookspark, host.refused(), "--yes").status == 0
    assert host.start() == bookie
    assert "lossy boot 1" in (host.directories[0] / "bookie.log").read_text()


def test_options_allow_emptied_and_added_directories_without_a_command(host: Host, tmp_path: Path) -> None:
    bookie = host.start()
    host.stop()
    shutil.rmtree(host.directories[1])
    host.directories.append(tmp_path / "disk3")
    host.options = {"stamp_missing_cookies": True, "add_empty_directories": True}
    assert host.start() == bookie
    host.stop()
    host.options = {}
    assert host.start() == bookie
    log = (host.directories[0] / "bookie.log.1").read_text()
    assert "lossy boot 1" in log and "disk2 was emptied" in log


def test_unreadable_directory_does_not_keep_the_bookie_down(host: Host) -> None:
    bookie = host.start()
    host.stop()
    shutil.rmtree(host.directories[1])
    host.directories[1].write_text("as a broken disk")
    assert host.start() == bookie
    assert "disk2 can't be read" in (host.directories[0] / "bookie.log").read_text()
    host.stop()
    host.directories[1].unlink()


def test_cookie_in_a_bad_sector_of_the_only_disk_is_fixed_without_giving_up_the_entries(
    bookspark: Run, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.directories = host.directories[:1]
    bookie = host.start()
    with BookKeeper(host.zookeeper) as client, client.create_ledger(1, 1, 1) as ledger:
        ledger.append(b"kept")
    host.stop()
    read, path = Path.read_bytes, host.directories[0] / "COOKIE"

    def read_bytes(asked: Path) -> bytes:
        if asked == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(asked)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read_bytes)
        assert f"{path} can't be read" in bookspark("bookie", "logs", str(path.parent)).err
        assert "is not empty" in bookspark("cookie", "fix", "--yes", *host.arguments).err
        fixed = bookspark("cookie", "fix", "--yes", "--bookie", bookie, *host.arguments)
        assert fixed.status == 0, fixed.err
    assert host.start() == bookie
    assert "lossy boot 1" in (path.parent / "bookie.log").read_text()
    with BookKeeper(host.zookeeper) as client:
        assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read(0, 0)] == [b"kept"]

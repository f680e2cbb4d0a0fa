"""Directories that are not this user's alone: a bookie or a ZooKeeper that is to work there is refused, with the remedy."""

from __future__ import annotations

import fcntl
import grp
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bookspark.errors import ConfigurationError
from bookspark.lab.demo.job import RunFolder
from bookspark.local import LocalCluster
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.servers.daemon import directories
from bookspark.servers.daemon.directories import DirectoryLocks, make_spare_place, read_cookie, spare_place
from bookspark.servers.daemon.launch import adopt_or_start
from bookspark.servers.daemon.lease_client import LeaseConnection, LeaseLostError
from bookspark.servers.daemon.processes import Process
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.metadata.records.codec import encode_cookie
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.awaiting import SECONDS_MAX
from tests.strangers import as_another_user, as_root, shared_folder

pytestmark = pytest.mark.acceptance

NOWHERE = "127.0.0.1:1"


def start_in(*directories):
    adopt_or_start(bookie_config(directories=[str(one) for one in directories], zookeeper=NOWHERE), "a test")


def run_by_command(*directories):
    """``bookspark bookie run``: the process itself looks at its directories."""
    named = [f"--directory={one}" for one in directories]
    ran = subprocess.run(
        [sys.executable, "-m", "bookspark", "bookie", "run", "--create", f"--zookeeper={NOWHERE}", *named],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran.stderr
    raise ConfigurationError(ran.stderr)


def start_zookeeper_in(directory):
    EmbeddedZooKeeper(directory).start()


def start_a_run_in(directory):
    """``bookspark run --directory``"""
    RunFolder(directory.parent, directory).close()


@pytest.fixture
def shared():
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def precious(tmp_path):
    """A file of this user's that nothing may change."""
    path = tmp_path / "precious"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@as_root
@pytest.mark.parametrize("start", [start_in, run_by_command, start_zookeeper_in])
def test_directory_of_another_user_is_refused(shared, precious, start):
    home = shared / "home"

    def plant():
        home.mkdir(mode=0o777)
        for name in ("bookie.json", "bookie.log", "LOCK", "COOKIE", "zoo.cfg", "zookeeper.log", "data"):
            (home / name).symlink_to(precious)

    assert as_another_user(plant) == "None"
    with pytest.raises(ConfigurationError, match=rf"{home} belongs to .*uid 65534.*: chown root {home} && chmod 700"):
        start(home)
    assert len(list(home.iterdir())) == 7


@as_root
def test_each_of_several_directories_is_looked_at(shared, tmp_path):
    assert as_another_user((shared / "second").mkdir) == "None"
    for start in (start_in, run_by_command):
        with pytest.raises(ConfigurationError, match="second belongs to"):
            start(tmp_path / "first", shared / "second")


@as_root
def test_directory_below_another_users_is_refused(shared):
    """He could rename it, and put his own in its place."""
    assert as_another_user(partial((shared / "theirs").mkdir, 0o777)) == "None"
    with pytest.raises(ConfigurationError, match=r"theirs on the way to it belongs to .*: chown root"):
        start_in(shared / "theirs" / "bookie")
    assert not (shared / "theirs" / "bookie").exists()


@as_root
def test_link_of_another_user_on_the_way_is_refused(shared, tmp_path):
    (tmp_path / "bookie").mkdir(mode=0o700)
    assert as_another_user(lambda: (shared / "link").symlink_to(tmp_path)) == "None"
    with pytest.raises(ConfigurationError, match="link on the way to it belongs to"):
        start_in(shared / "link" / "bookie")


@contextmanager
def named_in_a_lock(write):
    """A process, and a held lock that names it. ``write(text)`` writes the lock, and returns its path."""
    with subprocess.Popen(["sleep", "600"]) as ours:
        try:
            process = Process.of(ours.pid)
            path = write(json.dumps({"pid": process.pid, "start_time": process.start_time}))
            with open(path) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            assert ours.poll() is None
        finally:
            ours.kill()


@as_root
def test_lock_of_another_user_ends_no_process(shared):
    """A hung bookie is killed by the process id in its lock."""
    home = shared / "home"

    def plant(text):
        def make():
            home.mkdir(mode=0o755)
            (home / "LOCK").write_text(text)

        assert as_another_user(make) == "None"
        return home / "LOCK"

    with named_in_a_lock(plant), pytest.raises(ConfigurationError, match="belongs to"):
        start_in(home)


def test_link_in_place_of_a_lock_ends_no_process(tmp_path):
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "LOCK").symlink_to(tmp_path / "another")

    def write(text):
        (tmp_path / "another").write_text(text)
        return tmp_path / "another"

    with named_in_a_lock(write), pytest.raises(ConfigurationError, match="LOCK is a link"):
        start_in(tmp_path / "home")


@as_root
def test_nothing_in_another_users_directory_is_believed(shared):
    """Neither his socket, nor his cookie."""
    home = shared / "home"

    def plant():
        home.mkdir(mode=0o755)
        (home / "COOKIE").write_bytes(encode_cookie(Cookie("bookie-1", (str(home),), "a cluster", "1")))
        with socket.socket(socket.AF_UNIX) as lease:
            lease.bind(str(home / "lease.sock"))

    assert as_another_user(plant) == "None"
    for look in (lambda: LeaseConnection([str(home)]), lambda: read_cookie(str(home))):
        with pytest.raises((LeaseLostError, PermissionError), match=r"belongs to .*uid 65534"):
            look()


@as_root
def test_file_of_another_user_in_an_own_directory_is_refused(tmp_path):
    """From a time when others could write there."""
    (tmp_path / "logs").mkdir(mode=0o700)
    (tmp_path / "logs" / "1.log").touch()
    os.chown(tmp_path / "logs" / "1.log", 65534, 65534)
    with pytest.raises(ConfigurationError, match=rf"1\.log belongs to .*: chown root {tmp_path}/logs/1\.log"):
        start_in(tmp_path)


@as_root
def test_volume_for_the_group_of_its_pod_alone_is_used(shared):
    """As Kubernetes mounts it: of root, for a group that the host does not know. A known group has other members."""
    volume, group = shared / "volume", 12345
    volume.mkdir()

    def use(gid):
        os.chown(volume, 0, gid)
        volume.chmod(0o2775)
        return as_another_user(lambda: DirectoryLocks([str(volume / "bookie")]).close(), groups=(gid,))

    assert use(group) == "None"
    named = min(one.gr_gid for one in grp.getgrall() if one.gr_gid)
    assert re.fullmatch(rf"ConfigurationError: .*rename in {volume} .*: chmod go-w {volume}", use(named))


@pytest.mark.parametrize("name", ["bookie.json", "bookie.log", "LOCK", "COOKIE", "lease.sock", "logs", "logs/1.log"])
def test_link_in_a_bookies_directory_is_refused(tmp_path, precious, name):
    home = tmp_path / "home"
    (home / name).parent.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / name).symlink_to(precious)
    with pytest.raises(ConfigurationError, match=rf"{home / name} is a link.*rm {home / name}"):
        start_in(home)


def test_link_in_a_bookies_directory_is_refused_by_the_bookie_itself(tmp_path, precious):
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "control.log").symlink_to(precious)
    with pytest.raises(ConfigurationError, match=r"control\.log is a link"):
        run_by_command(tmp_path / "home")


def test_link_in_zookeepers_directory_is_refused(tmp_path, precious):
    (tmp_path / "zookeeper" / "data").mkdir(parents=True, mode=0o700)
    (tmp_path / "zookeeper" / "data" / "version-2").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="version-2 is a link"):
        start_zookeeper_in(tmp_path / "zookeeper")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_directory_that_others_may_write_is_refused_until_it_is_closed(tmp_path, mode):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    for use in (start_in, start_zookeeper_in, start_a_run_in, *([run_by_command] if mode == 0o775 else [])):
        with pytest.raises(ConfigurationError, match=f"others may write in directory {home}.*: chmod 700 {home}"):
            use(home)
    assert not list(home.iterdir())
    home.chmod(0o700)
    DirectoryLocks([str(home)]).close()


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_directory_below_one_that_others_may_rename_in_is_refused(tmp_path, mode):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    for use in (start_in, start_zookeeper_in, start_a_run_in):
        with pytest.raises(ConfigurationError, match=f"rename in {tmp_path}/open .*: chmod go-w {tmp_path}/open"):
            use(tmp_path / "open" / "home")
    (tmp_path / "open").chmod(0o1777)
    DirectoryLocks([str(tmp_path / "open" / "home")]).close()


def test_directory_that_others_may_read_is_closed(tmp_path):
    tmp_path.chmod(0o755)
    DirectoryLocks([str(tmp_path)]).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_own_link_to_a_directory_is_followed(tmp_path):
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("disk/../disk")
    DirectoryLocks([str(tmp_path / "link" / "bookie")]).close()
    assert (tmp_path / "disk" / "bookie" / "LOCK").exists()


@contextmanager
def umask(value):
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def test_nothing_is_open_to_others_with_any_umask(tmp_path, new_chroot):
    """Missing parents too: with an umask of 0 a bookie made them for everybody to write."""
    with umask(0), LocalCluster(bookies=1, directory=tmp_path / "new" / "cluster", zookeeper=new_chroot()) as cluster:
        home = Path(cluster.bookies[0].directories[0])
        found = [tmp_path / "new", home.parent, home, *home.rglob("*")]
        assert not [path for path in found if path.lstat().st_mode & 0o022]
        assert stat.S_IMODE((home / "lease.sock").stat().st_mode) == 0o600


def test_spare_place_lies_in_memory_where_others_may_rename_among_temporary_files(tmp_path, monkeypatch):
    """As in a pod whose only writable folder is an emptyDir: a bookie on a read-only disk had no place for its lease socket."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for mode, parent in ((0o1777, tmp_path / "tmp"), (0o777, Path("/dev/shm"))):
        (tmp_path / "tmp").chmod(mode)
        place = Path(make_spare_place(str(tmp_path / "disk")))
        try:
            assert place.parents[1] == parent and str(place) == spare_place(str(tmp_path / "disk"))
            assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        finally:
            place.rmdir()


@as_root
def test_spare_place_of_another_user_is_refused_in_both_folders(shared, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(directories, "_IN_MEMORY", str(shared))
    assert as_another_user((shared / f"bookspark-{os.geteuid()}").mkdir) == "None"
    with pytest.raises(PermissionError, match="belongs to"):
        make_spare_place("/a/disk")


@as_root
def test_lease_socket_of_a_bookie_is_its_users_alone(shared, new_chroot):
    """Whatever the umask, and with its directory open to others."""
    with umask(0), LocalCluster(bookies=1, directory=shared / "cluster", zookeeper=new_chroot()) as cluster:
        [home] = cluster.bookies[0].directories
        os.chmod(home, 0o755)
        for directory in (home, str(shared / "cluster")):
            assert os.stat(directory).st_mode & 0o005

        def stop():
            with socket.socket(socket.AF_UNIX) as lease:
                lease.connect(f"{home}/lease.sock")
                lease.sendall(b'{"request": "stop"}\n')
                return lease.recv(200)

        assert as_another_user(stop).startswith("PermissionError")
        assert cluster.bookies[0].pid

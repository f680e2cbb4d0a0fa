"""Files with secrets: refused if others may read them, or if they can be guessed. CAs and settings: if others may write them."""

from __future__ import annotations

import base64
import grp
import logging
import os
import re
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.settings import read_settings
from bookspark.store.wire.security import client_context, read_secrets, server_context
from bookspark.support.private_files import open_private
from tests.authority import Authority, private
from tests.awaiting import SECONDS_MAX
from tests.secret_files import new_secret
from tests.strangers import as_another_user, as_root, shared_folder

CONTENT = f"{new_secret()}:{new_secret()}\n"
NOWHERE = "127.0.0.1:1"


def connect(address):
    """To a ZooKeeper that is not there: the options are looked at first."""
    with pytest.raises(MetadataStoreError, match="could not be reached"):
        ZooKeeperStore(address, start_timeout_seconds=0.1)


READERS = {
    "shared_secret_file": read_secrets,
    "auth_file": lambda path: connect(f"{NOWHERE}?auth_file={path}"),
    "sasl_file": lambda path: connect(f"{NOWHERE}?sasl_file={path}"),
}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o666])
@pytest.mark.parametrize("option", READERS)
def test_secret_that_others_may_read_or_write_is_refused(tmp_path, option, mode):
    path = private(tmp_path / "file", CONTENT)
    os.chmod(path, mode)
    with pytest.raises(ConfigurationError, match=rf"{option} {path} is refused.*mode 0{mode:o}.*chmod 600 {path}"):
        READERS[option](path)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("of", ["a bookie", "a client", "a client of ZooKeeper"])
def test_key_that_others_may_read_is_refused(tmp_path, of, separate):
    authority = Authority(tmp_path / "authority")
    certificate = authority.certificate("host")
    key = certificate if separate else ""
    load = {
        "a bookie": lambda: server_context(certificate, key, ""),
        "a client": lambda: client_context(str(authority.file), certificate, key),
        "a client of ZooKeeper": lambda: connect(
            f"{NOWHERE}?tls_ca={authority.file}&tls_certificate={certificate}" + (f"&tls_key={key}" if key else "")
        ),
    }[of]
    if "ZooKeeper" not in of:
        load()
    os.chmod(certificate, 0o644)
    option = "tls_key" if separate else "tls_certificate"
    with pytest.raises(ConfigurationError, match=rf"{option} {certificate} is refused.*chmod 600"):
        load()


@pytest.mark.parametrize("mode", [0o602, 0o646, 0o666, 0o664])
@pytest.mark.parametrize("of", ["a bookie", "a client", "a client of ZooKeeper", "settings"])
def test_ca_and_settings_that_others_may_write_are_refused(tmp_path, of, mode):
    """Another CA lets another's certificates in, and settings name the CA."""
    authority = Authority(tmp_path / "authority")
    certificate, ca = authority.certificate("host"), str(authority.file)
    settings = private(tmp_path / "settings.toml", "[client]\nanswer_timeout_seconds = 1.0\n")
    option, path, load = {
        "a bookie": ("tls_client_ca", ca, lambda: server_context(certificate, "", ca)),
        "a client": ("tls_ca", ca, lambda: client_context(ca, "", "")),
        "a client of ZooKeeper": ("tls_ca", ca, lambda: connect(f"{NOWHERE}?tls_ca={ca}")),
        "settings": ("settings file", settings, lambda: read_settings(Path(settings))),
    }[of]
    os.chmod(path, 0o644)
    if "ZooKeeper" not in of:
        load()
    if mode == 0o664:
        os.chown(path, -1, min(one.gr_gid for one in grp.getgrall() if one.gr_gid))
    os.chmod(path, mode)
    with pytest.raises(
        ConfigurationError, match=rf"{option} {path} is refused: others may write it.*chmod go-w {path}"
    ):
        load()


def test_file_made_anew_leaves_what_has_its_name_elsewhere(tmp_path):
    """A hard link, and a link, to a file that nothing may change."""
    precious = Path(private(tmp_path / "precious", "precious"))
    (tmp_path / "hard").hardlink_to(precious)
    (tmp_path / "soft").symlink_to(precious)
    for name in ("hard", "soft"):
        with open_private(tmp_path / name) as file:
            file.write(b"new")
        assert (tmp_path / name).read_bytes() == b"new" and not (tmp_path / name).is_symlink()
    assert precious.read_text() == "precious" and precious.stat().st_nlink == 1


@as_root
def test_ca_of_another_user_is_refused(tmp_path):
    authority = Authority(tmp_path / "authority")
    os.chown(authority.file, 65534, 65534)
    with pytest.raises(ConfigurationError, match=r"tls_ca .* is refused: it belongs to .*uid 65534"):
        client_context(str(authority.file), "", "")


@as_root
def test_secret_of_another_user_is_refused(tmp_path):
    path = private(tmp_path / "file", CONTENT)
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigurationError, match=rf"belongs to .*uid 65534.*: chown root {path}"):
        read_secrets(path)


@as_root
def test_secret_as_kubernetes_mounts_it_is_read():
    """Of root, for the group that the pod's processes belong to (defaultMode 0440), behind links."""
    group = 12345
    with shared_folder() as mount:
        (mount / "..1").mkdir(mode=0o755)
        private(mount / "..1" / "secret", CONTENT)
        os.chown(mount / "..1" / "secret", 0, group)
        (mount / "..data").symlink_to("..1")
        (mount / "secret").symlink_to("..data/secret")

        def read(mode, groups):
            (mount / "..1" / "secret").chmod(mode)
            return as_another_user(lambda: len(read_secrets(str(mount / "secret"))), groups)

        assert [read(mode, (group,)) for mode in (0o440, 0o640)] == ["1", "1"]
        for mode in (0o644, 0o444, 0o460, 0o450):
            assert f"mode 0{mode:o}" in read(mode, (group,))
        assert "can't be read: Permission denied" in read(0o440, ())


def test_file_that_nobody_writes_holds_nothing_up(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(ConfigurationError, match="not a regular file"):
            read_secrets(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        "correct horse battery"[:21],
        bytes(range(15)).hex(),
        base64.b64encode(bytes(range(15))).decode(),
        "0" * 31,
    ],
)
def test_secret_of_less_than_16_random_bytes_is_refused(tmp_path, text):
    path = private(tmp_path / "file", f"{new_secret()}\n{text}\n")
    with pytest.raises(ConfigurationError, match=r"secret 2 has less than 16 random bytes.*bookspark secret"):
        read_secrets(path)


@pytest.mark.parametrize("encode", [bytes.hex, lambda made: base64.b64encode(made).decode().rstrip("=")])
def test_secret_of_16_random_bytes_is_taken(tmp_path, encode):
    text = encode(secrets.token_bytes(16))
    assert read_secrets(private(tmp_path / "file", f" {text} \n\n")) == (text.encode(),)


def test_command_makes_a_secret_for_its_user_alone(tmp_path):
    made, precious = tmp_path / "secret", tmp_path / "precious"
    precious.touch()
    (tmp_path / "link").symlink_to(precious)

    def bookspark_secret(*options):
        command = [sys.executable, "-m", "bookspark", "secret", *map(str, options)]
        ran = subprocess.run(command, capture_output=True, text=True, umask=0, timeout=SECONDS_MAX)
        return ran.returncode, ran.stdout, ran.stderr

    assert bookspark_secret("--file", made) == (0, "", "")
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    (known,) = read_secrets(str(made))
    status, printed, _ = bookspark_secret()
    assert status == 0 and re.fullmatch("[0-9a-f]{64}\n", printed) and printed.strip().encode() != known
    for taken in (made, tmp_path / "link"):
        status, _, error = bookspark_secret("--file", taken)
        assert status == 2 and f"{taken} exists" in error
    assert read_secrets(str(made)) == (known,) and not precious.read_text()


@pytest.mark.parametrize(
    ("servers", "warned"),
    # 127.1 is not known as loopback.
    [("127.1:1", "127.1:1"), ("127.0.0.1:1", ""), ("[::1]:1", "")],
)
def test_password_for_zookeeper_in_clear_text_is_told_once(tmp_path, caplog, servers, warned):
    auth = private(tmp_path / "auth", "us:password")
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        connect(f"{servers}?auth_file={auth}")
    told = [one.getMessage() for one in caplog.records if "in clear text" in one.getMessage()]
    assert len(told) == bool(warned) and "us:password" not in caplog.text
    assert not warned or (f"at {warned} in clear text" in told[0] and "tls_ca" in told[0])


def test_password_for_zookeeper_over_tls_is_not_told(tmp_path):
    """In a process of its own, since kazoo forgets its socket."""
    options = f"tls_ca={Authority(tmp_path / 'authority').file}&auth_file={private(tmp_path / 'auth', 'us:password')}"
    script = f"""
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
ZooKeeperStore("127.1:1?{options}", start_timeout_seconds=0.1)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert "could not be reached" in ran.stderr and "clear text" not in ran.stderr

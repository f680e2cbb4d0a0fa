"""A cluster of an earlier version, restored: ZooKeeper's records and the bookies' directories.

A cookie names its bookie's directories, which have moved. So the cookies are written again, without a checksum; everything else
is unchanged, byte for byte.
"""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from bookspark.local import LocalCluster

WRITTEN = Path(__file__).parent / "written_before_shelves"


def manifest(written: Path = WRITTEN) -> dict[str, Any]:
    """Expected answers of the cluster."""
    return json.loads((written / "manifest.json").read_text())


def records(written: Path = WRITTEN) -> dict[str, tuple[bytes, int]]:
    """Each persistent node of ZooKeeper, by path: its value and its version."""
    nodes = json.loads((written / "zookeeper.json").read_text())
    return {path: (base64.b64decode(node["value"]), node["version"]) for path, node in nodes.items()}


def unpack(folder: Path, written: Path = WRITTEN) -> list[Path]:
    """The bookies' directories, in order and unchanged."""
    with tarfile.open(written / "bookies.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.glob("bookie-*"))


def restore(folder: Path, chroot: str, written: Path = WRITTEN) -> LocalCluster:
    """The cluster, not started yet. ``chroot``: a connection string with a path that does not exist."""
    homes = {}
    for home in unpack(folder, written):
        cookie = json.loads((home / "COOKIE").read_bytes())
        homes[cookie["bookieId"]] = str(home)
        (home / "COOKIE").write_bytes(_moved((home / "COOKIE").read_bytes(), str(home)))
    server, _, path = chroot.partition("/")
    client = KazooClient(server)
    client.start()
    try:
        for node, (value, version) in sorted(records(written).items()):
            bookie_id = node.rpartition("/")[2]
            if node.startswith("/ledgers/cookies/"):
                value = _moved(value, homes[bookie_id])
            client.create(f"/{path}{node}".rstrip("/"), value, makepath=True)
            # The node's version counts the assigned ids.
            if node == "/ledgers/idgen":
                for _ in range(version):
                    client.set(f"/{path}{node}", value)
    finally:
        client.stop()
        client.close()
    options = [{}, {}, {"journal_write_data": False} if written == WRITTEN else {}]
    return LocalCluster(bookies=options, directory=folder, zookeeper=chroot, entry_log_bytes_max=60_000)


def payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    """The payload of an entry, as the writer made it."""
    return (f"ledger {ledger_id} entry {entry_id} ".encode() * 20)[:size]


def _moved(cookie: bytes, directory: str) -> bytes:
    document = json.loads(cookie)
    del document["checksum"]
    return json.dumps({**document, "directories": [directory]}).encode()

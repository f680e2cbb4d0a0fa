"""The cluster of the fixture ``written/``, restored: ZooKeeper's records and the bookies' directories.

Some records and each bookie's own cookie name the bookie's directories, which have moved. So the paths in them are replaced, and
a cookie loses its checksum; everything else is unchanged, byte for byte.
"""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from bookspark.local import LocalCluster

WRITTEN = Path(__file__).parent / "written"
BOOKIES: tuple[dict[str, Any], ...] = ({}, {}, {"journal_write_data": False})
"""Each bookie's own options."""
ENTRY_LOG_BYTES_MAX = 60_000
_OF_DIRECTORIES = ("/ledgers/cookies/", "/bookspark/bookie_homes/", "/bookspark/bookie_reach/")


def manifest() -> dict[str, Any]:
    """Expected answers of the cluster."""
    found: dict[str, Any] = json.loads((WRITTEN / "manifest.json").read_text())
    return found


def records() -> dict[str, tuple[bytes, int]]:
    """Each persistent node of ZooKeeper, by path: its value and its version."""
    nodes = json.loads((WRITTEN / "zookeeper.json").read_text())
    return {path: (base64.b64decode(node["value"]), node["version"]) for path, node in nodes.items()}


def unpack(folder: Path) -> list[Path]:
    """The bookies' directories, in order and unchanged."""
    with tarfile.open(WRITTEN / "bookies.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.glob("bookie-*"))


def restore(folder: Path, chroot: str) -> LocalCluster:
    """The cluster, not started yet. ``chroot``: a connection string with a path that does not exist."""
    moved = {}
    for home in unpack(folder):
        cookie = json.loads((home / "COOKIE").read_bytes())
        (before,) = cookie["directories"]
        moved[cookie["bookieId"]] = before, str(home)
        (home / "COOKIE").write_bytes(_moved((home / "COOKIE").read_bytes(), before, str(home)))
    server, _, path = chroot.partition("/")
    client = KazooClient(server)
    client.start()
    try:
        for node, (value, version) in sorted(records().items()):
            if node.startswith(_OF_DIRECTORIES):
                value = _moved(value, *moved[node.rpartition("/")[2]])
            client.create(f"/{path}{node}".rstrip("/"), value, makepath=True)
            # The node's version counts the assigned ids.
            if node == "/ledgers/idgen":
                for _ in range(version):
                    client.set(f"/{path}{node}", value)
    finally:
        client.stop()
        client.close()
    return LocalCluster(BOOKIES, folder, chroot, entry_log_bytes_max=ENTRY_LOG_BYTES_MAX)


def payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    """The payload of an entry, as the writer made it."""
    return (f"ledger {ledger_id} entry {entry_id} ".encode() * 20)[:size]


def row(log: str, number: int) -> str:
    """The text of a row. ``number``: over all lanes, in their order."""
    return f"{log} {number:04} with some more words"


def _moved(document: bytes, before: str, now: str) -> bytes:
    found = json.loads(document.replace(json.dumps(before).encode(), json.dumps(now).encode()))
    found.pop("checksum", None)
    return json.dumps(found).encode()

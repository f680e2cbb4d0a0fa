"""Conversion of an earlier version's cluster to the formats of BookKeeper's cookies and tasks.

Law: only ``bookspark init --bookkeeper`` converts, and only without registered bookies and auditor: running processes keep the
formats of their start, and earlier versions can't read the new formats. This version reads both, so the conversion may stop
anywhere: ``LAYOUT`` is written after all records, and a second run does the rest. Leftovers of an earlier version below
INSTANCEID and beside it are removed last; they would keep BookKeeper's tools from removing the cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from bookspark.errors import MetadataStoreError
from bookspark.store.metadata.autorecovery.underreplication_tasks import task_path
from bookspark.store.metadata.autorecovery.votes import ELECTION
from bookspark.store.metadata.records.bookkeeper_texts import LAYOUT
from bookspark.store.metadata.records.codec import decode_cookie, decode_task, encode_cookie, encode_task
from bookspark.store.metadata.zookeeper.layout import Layout
from bookspark.store.metadata.zookeeper.nodes import Nodes

_WHAT = "converting the cluster"


def convert(nodes: Nodes, layout: Layout, instance_id: str, task_ids: list[int]) -> bool:
    """Convert the cluster, unless it has these formats. False, and nothing is done, while it is in use. ``task_ids``: the
    ledgers with a task. Raises MetadataStoreError, and UnreadableRecordError for a record that must be repaired or removed
    first."""
    new, old = replace(layout, bookkeepers_formats=True), replace(layout, bookkeepers_formats=False)
    if not layout.bookkeepers_formats and not _converted(nodes, new, old, task_ids):
        return False
    for path in (old.idgiven, old.mark(instance_id)):
        with contextlib.suppress(NoNodeError):
            nodes.delete(_WHAT, path)
    return True


def _converted(nodes: Nodes, new: Layout, old: Layout, task_ids: list[int]) -> bool:
    election = f"{new.underreplication}/{ELECTION}"
    bookies = {*nodes.children(_WHAT, new.available), *nodes.children(_WHAT, new.readonly)} - {"readonly"}
    voters = nodes.children(_WHAT, election)
    if bookies or voters or nodes.is_ephemeral(_WHAT, election):
        return False
    for bookie_id in nodes.children(_WHAT, new.cookies):
        _rewrite(nodes, new.cookie(bookie_id), _cookie)
    for ledger_id in task_ids:
        _rewrite(nodes, f"{new.underreplication}/{task_path(ledger_id)}", partial(_task, ledger_id))
    noted = nodes.read(_WHAT, old.idgiven)
    if noted is not None:
        _put(nodes, new.idgiven, noted.value)
    for path in (f"{new.underreplication}/ledgers", new.locks, election):
        _put(nodes, path, b"", keep=True)
    _put(nodes, new.formats, LAYOUT)
    return True


def _cookie(document: bytes) -> bytes:
    return encode_cookie(decode_cookie(document, "in ZooKeeper"), bookkeepers=True)


def _task(ledger_id: int, document: bytes) -> bytes:
    return encode_task(decode_task(ledger_id, document), bookkeepers=True)


def _rewrite(nodes: Nodes, path: str, new: Callable[[bytes], bytes]) -> None:
    found = nodes.read(_WHAT, path)
    if found is not None and found.value.startswith(b"{"):
        with contextlib.suppress(NoNodeError):
            try:
                nodes.write(_WHAT, path, new(found.value), found.version)
            except BadVersionError as error:
                raise MetadataStoreError(f"{_WHAT}: {path} is changed meanwhile; stop what uses the cluster") from error


def _put(nodes: Nodes, path: str, value: bytes, keep: bool = False) -> None:
    """Write the node; ``keep``: unless it exists."""
    with contextlib.suppress(NodeExistsError):
        nodes.create(_WHAT, path, value)
        return
    found = nodes.read(_WHAT, path)
    if found is not None and not keep and found.value != value:
        nodes.write(_WHAT, path, value, found.version)

"""Cookies, tasks, locks and votes as BookKeeper's auditor, workers and tools read and write them: Protocol Buffers as text.

Law: BookKeeper's fields are in its text. Our additions are a comment line behind it, which its parser skips and its writer
drops: ``# bookspark`` and the document of our own clusters. Nothing depends on the comment: without it a task has unknown
reasons, a lock belongs to another program, and a cookie has no nonce. A comment that contradicts the text is ignored. ::

    replica: "bookie-1"
    ctime: 1700000000000
    # bookspark {"formatVersion":1,"replica":{"bookie-1":"lacks"},…}

A cookie begins with a line ``5``, its version. The time of the last exact check is binary, with our report in a field unknown
to BookKeeper.

Source: BookKeeper's ``DataFormats.proto``, ``Cookie``, ``ZkLedgerUnderreplicationManager`` and ``ZkLedgerAuditorManager``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bookspark.support.protobuf_messages import Schema

_MARK = b"# bookspark "
_COOKIE_HEAD = b"5\n"
_OLDEST_COOKIE = 4
_SCHEMA = Schema(
    "bookspark.bookkeeper.texts",
    {
        "Layout": (("type", 1, "string"), ("version", 2, "int32")),
        "Task": (("replica", 1, "string*"), ("ctime", 2, "int64")),
        "Cookie": (
            ("bookieHost", 1, "string"),
            ("journalDir", 2, "string"),
            ("ledgerDirs", 3, "string"),
            ("instanceId", 4, "string"),
            ("indexDirs", 5, "string"),
        ),
        "Lock": (("bookieId", 1, "string"),),
        "Check": (("checkAllLedgersCTime", 1, "int64"), ("bookspark", 1000, "bytes")),
    },
)
LAYOUT = b'type: "BASIC"\nversion: 1\n' + _MARK + b'{"formatVersion":1}\n'
"""``underreplication/LAYOUT`` of a cluster whose cookies and tasks are in these formats. BookKeeper makes it without our line
in any cluster where its autorecovery runs."""


class TaskText(NamedTuple):
    bookies: tuple[str, ...]
    ctime_ms: int
    own: bytes
    """Our own document; empty if another program wrote the text."""


class CookieText(NamedTuple):
    bookie_id: str
    directories: tuple[str, ...]
    instance_id: str
    own: bytes


def is_layout(document: bytes) -> bool:
    """True for the ``LAYOUT`` of a cluster begun by Bookspark with these formats."""
    return _MARK in document


def is_text(document: bytes) -> bool:
    """True for a document in these formats. Our own documents begin with a brace."""
    return document.startswith((b"replica:", b"ctime:", b"bookieId:")) or is_cookie(document)


def is_cookie(document: bytes) -> bool:
    return document[:1].isdigit()


def task_text(bookies: tuple[str, ...], ctime_ms: int, own: bytes) -> bytes:
    return _written("Task", own, replica=bookies, ctime=ctime_ms)


def task_of(document: bytes) -> TaskText:
    """The task in ``document``. Raises ValueError."""
    found = _parsed("Task", document)
    return TaskText(tuple(dict.fromkeys(found.replica)), max(0, found.ctime), _own(document))


def cookie_text(bookie_id: str, directories: tuple[str, ...], instance_id: str, own: bytes) -> bytes:
    listed = "\t".join((str(len(directories)), *directories))
    return _COOKIE_HEAD + _written(
        "Cookie", own, bookieHost=bookie_id, journalDir=",".join(directories), ledgerDirs=listed, instanceId=instance_id
    )


def cookie_of(document: bytes) -> CookieText:
    """The cookie in ``document``. Raises ValueError."""
    version, _, text = document.partition(b"\n")
    if int(version) < _OLDEST_COOKIE:
        raise ValueError(f"a cookie of version {int(version)}")
    found = _parsed("Cookie", text)
    if not (found.bookieHost and found.ledgerDirs):
        raise ValueError("it names no bookie, or no directories")
    directories = tuple(found.ledgerDirs.split("\t")[1:])
    return CookieText(found.bookieHost, directories, found.instanceId, _own(text))


def lock_text(holder: str, own: bytes) -> bytes:
    """A lock, or the vote of a candidate auditor."""
    return _written("Lock", own, bookieId=holder)


def lock_holder(document: bytes) -> str:
    """The holder of a lock, or the voter. Raises ValueError."""
    found: str = _parsed("Lock", document).bookieId
    return found


def is_foreign(document: bytes) -> bool:
    """True for a lock or vote of another program than Bookspark."""
    return not _own(document) and not document.startswith(b"{")


def check_bytes(finished_at_ms: int, own: bytes) -> bytes:
    """The end of the last exact check, with our report."""
    made: bytes = _SCHEMA.message("Check")(checkAllLedgersCTime=finished_at_ms, bookspark=own).SerializeToString()
    return made


def check_of(document: bytes) -> tuple[int, bytes]:
    """The end of the last exact check in ms, and our report; empty if another program's. Raises ValueError."""
    found = _SCHEMA.parse("Check", document)
    return max(0, found.checkAllLedgersCTime), found.bookspark


def _written(name: str, own: bytes, **fields: Any) -> bytes:
    message = _SCHEMA.message(name)(**fields)
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message)
    return text.encode() + _MARK + own + b"\n"


def _parsed(name: str, document: bytes) -> Any:
    message = _SCHEMA.message(name)()
    from google.protobuf import text_format

    try:
        return text_format.Parse(document.decode(), message, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ValueError(f"no text of a {name}: {error}") from error


def _own(document: bytes) -> bytes:
    last = document.rstrip(b"\n").rpartition(b"\n")[2]
    return last.removeprefix(_MARK) if last.startswith(_MARK) else b""

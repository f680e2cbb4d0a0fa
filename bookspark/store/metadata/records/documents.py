"""How every record becomes a document, and a document a record again.

Law: a record is written only if it was decoded from its own document first and was equal. So a value of a wrong type is an error
of its writer, and never a document that nobody can read. A document that can't be decoded is an UnreadableRecordError, whatever
its bytes are. It concerns what the record describes and nothing else: whoever walks over many records names it and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from bookspark.errors import BookKeeperError, InvalidArgumentError, UnreadableRecordError

Value = TypeVar("Value")

Document = TypeVar("Document", bound="VersionedDocument")

FORMAT_VERSION = 1
"""The version of a document of which there was no other one."""
NOT_DECODED = (msgspec.DecodeError, ValueError, TypeError, RecursionError)
"""What decoders raise for bytes that are no document of theirs."""


class VersionedDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    format_version: int = FORMAT_VERSION


class _AnyDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The format version of any document, whatever else is in it."""

    format_version: int


def proven(value: Value, encode: Callable[[Value], bytes], decode: Callable[[bytes], Value], what: str) -> bytes:
    """The document of ``value``, which was decoded again. ``what`` it is, for the InvalidArgumentError."""
    try:
        document = encode(value)
        same = decode(document) == value
    except (BookKeeperError, *NOT_DECODED) as error:
        raise InvalidArgumentError(f"{what} is not written, because nobody could read it: {error}") from error
    if not same:
        # The document is not shown: it may have a master key.
        raise InvalidArgumentError(
            f"{what} is not written, because it would not be read as it is: a value has a wrong type"
        )
    return document


def proven_struct(value: Value, what: str) -> bytes:
    """The same for a value that msgspec knows as it is."""
    return proven(value, msgspec.json.encode, lambda document: msgspec.json.decode(document, type=type(value)), what)


def read_struct(document: bytes, kind: type[Value], what: str) -> Value:
    """The value in ``document``. Raises UnreadableRecordError, which says ``what`` it is."""
    try:
        return msgspec.json.decode(document, type=kind)
    except NOT_DECODED as error:
        raise unreadable(what, document, error) from error


def unreadable(what: str, document: bytes, why: object) -> UnreadableRecordError:
    """The error for a document that is damaged."""
    return UnreadableRecordError(f"{what} can't be read: {why}; it begins with {document[:80]!r}")


def read_versioned(document: bytes, kind: type[Document], what: str, newest: int = FORMAT_VERSION) -> Document:
    """The value in a document that says its format version. Raises UnreadableRecordError, which says ``what`` it is, and of one
    that is newer than ``newest`` that it is."""
    try:
        found = msgspec.json.decode(document, type=kind)
    except NOT_DECODED as error:
        try:
            version = msgspec.json.decode(document, type=_AnyDocument).format_version
        except NOT_DECODED:
            version = 0
        if version > newest:
            raise _newer(what, version, newest) from error
        raise unreadable(what, document, error) from error
    if found.format_version > newest:
        raise _newer(what, found.format_version, newest)
    return found


def _newer(what: str, version: int, newest: int) -> UnreadableRecordError:
    error = UnreadableRecordError(
        f"{what} has format version {version} and this version of Bookspark knows up to {newest}; upgrade Bookspark"
    )
    error.newer = True
    return error


def learn(*kinds: type) -> None:
    """Prepare msgspec for decoding these types, at import. msgspec prepares a type at its first use, and two threads that do that
    at once for the same type crash the process."""
    for kind in kinds:
        msgspec.json.Decoder(kind)


learn(_AnyDocument)

"""Encoding and decoding shared by all records.

Law: a record is written only if its document decodes to an equal value, so a value of a wrong type is its writer's error. A
document that can't be decoded is an UnreadableRecordError, whatever its bytes. It affects only the described object: a walk
over many records names it and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from bookspark.errors import BookKeeperError, InvalidArgumentError, UnreadableRecordError

Value = TypeVar("Value")

Document = TypeVar("Document", bound="VersionedDocument")

FORMAT_VERSION = 1
NOT_DECODED = (msgspec.DecodeError, ValueError, TypeError, RecursionError)


class VersionedDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    format_version: int = FORMAT_VERSION


class _AnyDocument(msgspec.Struct, frozen=True, rename="camel"):
    format_version: int


def proven(value: Value, encode: Callable[[Value], bytes], decode: Callable[[bytes], Value], what: str) -> bytes:
    """The document of ``value``, checked by decoding it. ``what``: its name in the InvalidArgumentError."""
    try:
        document = encode(value)
        same = decode(document) == value
    except (BookKeeperError, *NOT_DECODED) as error:
        raise InvalidArgumentError(f"{what} is not written, because nobody could read it: {error}") from error
    if not same:
        # The document is not shown: it may contain a master key.
        raise InvalidArgumentError(
            f"{what} is not written, because it would not be read as it is: a value has a wrong type"
        )
    return document


def proven_struct(value: Value, what: str) -> bytes:
    """``proven`` for a type that msgspec encodes directly."""
    return proven(value, msgspec.json.encode, lambda document: msgspec.json.decode(document, type=type(value)), what)


def read_struct(document: bytes, kind: type[Value], what: str) -> Value:
    """The value in ``document``. Raises UnreadableRecordError with the name ``what``."""
    try:
        return msgspec.json.decode(document, type=kind)
    except NOT_DECODED as error:
        raise unreadable(what, document, error) from error


def unreadable(what: str, document: bytes, why: object) -> UnreadableRecordError:
    return UnreadableRecordError(f"{what} can't be read: {why}; it begins with {document[:80]!r}")


def read_versioned(document: bytes, kind: type[Document], what: str, newest: int = FORMAT_VERSION) -> Document:
    """The value in a document with a format version. Raises UnreadableRecordError with the name ``what``; for a version above
    ``newest`` the error says so, and its ``newer`` is True."""
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
    """Prepare msgspec's decoders at import: two threads that use a new type for the first time at once crash the process."""
    for kind in kinds:
        msgspec.json.Decoder(kind)


learn(_AnyDocument)

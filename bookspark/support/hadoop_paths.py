"""Places of folders, named as Hadoop's ``Path`` names them.

Law: a text names one folder for every reader, or is refused. Hadoop takes the text after the scheme and the authority as it
stands: ``%20`` and ``#`` are these characters, not an escape and a fragment. delta-rs takes some texts otherwise (1.6, seen:
``%20`` is a space to it, ``\\`` a slash; it cuts at ``#`` and ``?``, and panics at brackets), so a Delta table has none of these
characters in its place; nor one of a pattern of Hadoop's, nor a colon, at which patterns fail (HADOOP-14217, HADOOP-14235).

Local places have the scheme ``file`` or none.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import NamedTuple

from bookspark.errors import ConfigurationError

_ONE_STORE = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
"""Schemes with which Hadoop's clients name the same store, by the shortest."""
_HDFS_PORT = ":8020"
"""The port of a name node that a URI leaves out."""
_NOT_FOR_TABLES = re.compile(r"[][{}*\\%#?:]")


class Place(NamedTuple):
    """A path as Hadoop's ``Path`` takes it apart."""

    scheme: str
    authority: str
    path: str

    @classmethod
    def of(cls, text: str) -> Place:
        scheme = authority = ""
        colon, slash = text.find(":"), text.find("/")
        if colon >= 0 and not 0 <= slash < colon:
            scheme, text = text[:colon], text[colon + 1 :]
        if text.startswith("//") and len(text) > len("//"):
            authority, root, rest = text[2:].partition("/")
            text = root + rest
        # normpath leaves two leading slashes.
        path = posixpath.normpath("/" + text.lstrip("/") if text.startswith("/") else text) if text else ""
        return cls(scheme, authority, path)

    @property
    def is_local(self) -> bool:
        return self.scheme in ("", "file") and self.authority in ("", "localhost")

    def __str__(self) -> str:
        """In one spelling: ``file:/x``, ``file:///x`` and ``/x/`` are ``/x``. (Relative paths stay relative: tasks do not know
        the driver's folder.)"""
        return self.path if self.is_local else f"{self.scheme}://{self.authority}{self.path}"

    @property
    def _store(self) -> tuple[str, str]:
        scheme = _ONE_STORE.get(self.scheme, self.scheme)
        return scheme, self.authority.removesuffix(_HDFS_PORT) if scheme == "hdfs" else self.authority

    def is_same(self, other: Place) -> bool:
        """Whether both are names of one folder. Local folders are compared by this host's files, from this process's folder."""
        if self.is_local and other.is_local:
            try:
                return self.path == other.path or os.path.samefile(self.path, other.path)
            except OSError:
                return False
        return (self._store, self.path) == (other._store, other.path)


def plain_place(place: str) -> str:
    """A folder's path or URI in one spelling; empty if it is unknown."""
    return str(Place.of(place)) if place else ""


def check_table_place(text: str) -> None:
    """Raises ConfigurationError if Spark and delta-rs would take ``text`` for different places of a Delta table."""
    unfit = _NOT_FOR_TABLES.search(Place.of(text).path)
    if unfit is not None:
        hint = ": write a path as it is, without a URI's escapes" if unfit[0] == "%" else ""
        raise ConfigurationError(
            f"no Delta table can be at {text}: readers of Delta do not agree on a place with the character {unfit[0]}{hint}; "
            "choose a folder whose path has none of the characters [ ] { } * \\ % # ? :"
        )

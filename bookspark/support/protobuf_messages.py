"""Messages of Google's Protocol Buffers, made from tables.

Law: a table has the number and the type of each field, and no code is generated or compiled. A field is ``(name, number,
type)``; ``type`` is ``int32``, ``int64``, ``uint32``, ``uint64``, ``bytes``, ``string`` or the name of another message of the
same schema, with ``*`` after it if the field is repeated. All fields are optional: the reader of a message checks for those it
needs. Enumerations are ``int32``, which are the same bytes.

The library is imported at the first use of a schema; it comes with the extra ``bookkeeper``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bookspark.support.extras import extra_needed

Fields = Sequence[tuple[str, int, str]]

_REPEATED, _OPTIONAL = 3, 1
_MESSAGE = 11
_SCALARS = {"int64": 3, "uint64": 4, "int32": 5, "string": 9, "bytes": 12, "uint32": 13}
"""Numbers of the scalar types in ``FieldDescriptorProto.Type``."""


class Schema:
    """The messages of one package, by name: ``schema.message("Request")()`` is an empty message."""

    def __init__(self, package: str, messages: Mapping[str, Fields]) -> None:
        self._package = package
        self._messages = messages
        self.message = cache(self._message)

    def parse(self, name: str, data: bytes) -> Any:
        """The message in ``data``. Raises ValueError for malformed bytes."""
        try:
            return self.message(name).FromString(data)
        except Exception as error:
            # Imported only here: an import for each message costs as much as parsing it.
            from google.protobuf.message import DecodeError

            if not isinstance(error, DecodeError):
                raise
            raise ValueError(f"bytes that are no {name}: {error}") from error

    def _message(self, name: str) -> Any:
        """The class of a message. Raises MissingExtraError if the library is not installed."""
        with extra_needed("BookKeeper's formats"):
            from google.protobuf import message_factory

        pool = self._pool()
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{self._package}.{name}"))

    @cache  # noqa: B019 (a schema lives as long as the process)
    def _pool(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool

        # As in proto2, but text that is not UTF-8 is refused. (proto2 returns its bytes in place of a text.)
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{self._package}.proto", package=self._package, syntax="editions"
        )
        file.edition = descriptor_pb2.EDITION_2023
        for name, fields in self._messages.items():
            message = file.message_type.add(name=name)
            for field, number, kind in fields:
                of, repeated = kind.rstrip("*"), kind.endswith("*")
                made = message.field.add(name=field, number=number, label=_REPEATED if repeated else _OPTIONAL)
                if of in _SCALARS:
                    made.type = _SCALARS[of]
                else:
                    made.type, made.type_name = _MESSAGE, f".{self._package}.{of}"
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        return pool

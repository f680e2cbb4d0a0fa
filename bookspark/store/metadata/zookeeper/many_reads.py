"""Many nodes read by one request of ZooKeeper's: ``multiRead``, which kazoo does not have.

Law: each node's outcome is what a request of its own would have, a value or NoNodeError; a node that is not there changes nothing
for the others. A request and its reply cost kazoo some 100 µs of processor time whatever they carry, so a hundred nodes in one
request cost a fifth of a hundred requests. Servers know it from ZooKeeper 3.6 on. An earlier one refuses it before it has
answered what was asked before it, which kazoo takes for a broken connection: the call ends with its deadline.

Request: for each node the header of an operation (i32 type 4, getData; bool false; i32 −1), the path (i32 length, UTF-8) and a
false, for no watch; then a header of type −1 that says true. Reply: for each node such a header, and the value (i32 length,
bytes) and the node's stat, or, after a header of type −1, the number of the error (i32); then a header that says true.

Source: ZooKeeper's ``MultiOperationRecord`` and ``MultiResponse``, of kind READ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, multiheader_struct, read_buffer, stat_struct
from kazoo.protocol.states import ZnodeStat

NODES_PER_REQUEST = 100
_MULTI_READ, _NO_OPERATION = 22, -1


@dataclass(frozen=True)
class ManyReads:
    """A request, as kazoo's connection takes it."""

    paths: tuple[str, ...]

    type: ClassVar[int] = _MULTI_READ

    def serialize(self) -> bytes:
        found = bytearray()
        operation = MultiHeader(GetData.type, False, -1).serialize()
        for path in self.paths:
            found += operation + GetData(path, None).serialize()
        return bytes(found + multiheader_struct.pack(_NO_OPERATION, True, -1))

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Any]:
        """The outcome of each node: (value, stat), or an error."""
        found: list[Any] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(reply, offset)
            offset += multiheader_struct.size
            if done:
                return found
            if kind == _NO_OPERATION:
                found.append(EXCEPTIONS[int_struct.unpack_from(reply, offset)[0]]())
                offset += int_struct.size
            else:
                value, offset = read_buffer(reply, offset)
                found.append((value, ZnodeStat._make(stat_struct.unpack_from(reply, offset))))
                offset += stat_struct.size


def read_many(client: Any, paths: Sequence[str]) -> list[Any]:
    """Sends requests for all of ``paths`` through the kazoo client; each of the results is a list of outcomes."""
    sent = []
    for first in range(0, len(paths), NODES_PER_REQUEST):
        sent.append(client.handler.async_result())
        client._call(ManyReads(tuple(paths[first : first + NODES_PER_REQUEST])), sent[-1])
    return sent

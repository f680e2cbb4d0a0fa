"""The files and directories of ``memory_files``: what is in the page cache, and what is on the disk.

Law: a reader sees the page cache, a boot after a power cut the disk. ``pending`` is what the disk does not have yet: a sync puts
it there, a power cut decides the fate of each piece of it. A write-back that fails leaves on the disk what its ``Loss`` keeps and
takes all pages for clean, so that a later sync succeeds and brings nothing. It is told once to each file that was open before,
and to one that is opened before anybody was told: Linux since 4.17 does so.

Source: pebble's ``vfs.MemFS``; "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
"""

from __future__ import annotations

from bookspark.testing.power_cuts import Change, Fate, Loss

Piece = tuple[int, bytes | None]
"""(position, what is written there), or (length, None) for a truncation."""


class Node:
    """The content of a file, whatever its name."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        """What is in the page cache, so what is read."""
        self.durable = bytearray(content)
        """What is on the disk."""
        self.pending: list[Piece] = []
        """What a sync makes durable, in the order of the writes."""
        self.reserved = 0
        """The size that was preallocated, in bytes."""
        self.errors = 0
        """How many write-backs have failed."""
        self.told = True
        """Was somebody told of the last one?"""

    def write(self, position: int, data: bytes) -> None:
        put(self.content, position, data)
        self.pending.append((position, data))

    def write_elsewhere(self, position: int, data: bytes, target: int | None) -> None:
        """The page cache takes a write as it is. The disk says that it has taken it, too, and puts it at ``target`` of the same
        file: nowhere (None), or in part, if that is not in the file."""
        put(self.content, position, data)
        self.pending.append((len(self.content), None))
        if target is not None and (hit := data[max(0, -target) : max(0, len(self.content) - target)]):
            self.pending.append((max(0, target), hit))

    def truncate(self, size: int) -> None:
        resize(self.content, size)
        self.pending.append((size, None))
        self.reserved = 0

    def flip(self, byte: int, bit: int, *, cached: bool = False) -> None:
        for content in (self.durable,) if cached else (self.content, self.durable):
            if byte < len(content):
                content[byte] ^= 1 << bit

    def sync(self) -> None:
        _apply(self.durable, self.pending)
        self.pending.clear()

    def fail_write_back(self, path: str, sector_bytes: int, loss: Loss) -> None:
        self.durable = self._left(path, sector_bytes, loss)
        self.pending.clear()
        self.errors += 1
        self.told = False

    def evict(self) -> None:
        """The page cache is needed for something else: what is clean is read from the disk again."""
        self.content = bytearray(self.durable)
        _apply(self.content, self.pending)

    def crashed(self, path: str, sector_bytes: int, loss: Loss) -> Node:
        return Node(self._left(path, sector_bytes, loss))

    def _left(self, path: str, sector_bytes: int, loss: Loss) -> bytearray:
        pieces = [piece for change in self.pending for piece in _sectors(*change, sector_bytes)]
        content = bytearray(self.durable)
        for index, (position, data) in enumerate(pieces):
            fate = loss(Change(path, "truncate" if data is None else "write", index, len(pieces)))
            if fate is Fate.LOST:
                continue
            if data is None:
                resize(content, position)
            elif fate is Fate.KEPT:
                put(content, position, data)
            elif len(content) < position + len(data):
                resize(content, position + len(data))
        return content


Names = dict[str, "Node | Directory"]
Nodes = list["Node | Directory"]


class Directory:
    """A directory's names. ``pending`` has the changes since the last sync: (name that goes, name that comes, its node)."""

    def __init__(self) -> None:
        self.names: Names = {}
        self.durable: Names = {}
        self.pending: list[tuple[str | None, str | None, Node | Directory]] = []

    def change(self, gone: str | None, came: str | None, node: Node | Directory) -> None:
        self.pending.append((gone, came, node))
        _rename(self.names, gone, came, node)

    def lose(self, name: str) -> None:
        """A file is gone from the page cache and from the disk."""
        node = self.names.pop(name)
        self.pending = [change for change in self.pending if change[2] is not node]
        self.durable = {other: kept for other, kept in self.durable.items() if kept is not node}

    def sync(self) -> None:
        for change in self.pending:
            _rename(self.durable, *change)
        self.pending.clear()

    def fail_write_back(self, path: str, loss: Loss) -> None:
        self.durable = self._left(path, loss)
        self.pending.clear()

    def crashed(self, path: str, sector_bytes: int, loss: Loss) -> Directory:
        after = Directory()
        after.names = {
            name: node.crashed(f"{path}/{name}", sector_bytes, loss) for name, node in self._left(path, loss).items()
        }
        after.durable = dict(after.names)
        return after

    def _left(self, path: str, loss: Loss) -> Names:
        found = dict(self.durable)
        for index, change in enumerate(self.pending):
            if loss(Change(path, "name", index, len(self.pending))) is not Fate.LOST:
                _rename(found, *change)
        return found


def _rename(names: Names, gone: str | None, came: str | None, node: Node | Directory) -> None:
    if gone is not None and names.get(gone) is node:
        del names[gone]
    if came is not None:
        names[came] = node


def _sectors(position: int, data: bytes | None, sector_bytes: int) -> list[Piece]:
    if data is None:
        return [(position, None)]
    end = position + len(data)
    starts = [position, *range((position // sector_bytes + 1) * sector_bytes, end, sector_bytes)]
    return [
        (start, data[start - position : stop - position])
        for start, stop in zip(starts, [*starts[1:], end], strict=True)
    ]


def _apply(content: bytearray, pieces: list[Piece]) -> None:
    for position, data in pieces:
        if data is None:
            resize(content, position)
        else:
            put(content, position, data)


def resize(content: bytearray, size: int) -> None:
    """Cut ``content``, or fill it up with zeros."""
    del content[size:]
    content.extend(bytes(size - len(content)))


def put(content: bytearray, position: int, data: bytes) -> None:
    """Write ``data`` at ``position``; a gap before it is filled with zeros."""
    if len(content) < position:
        resize(content, position)
    content[position : position + len(data)] = data

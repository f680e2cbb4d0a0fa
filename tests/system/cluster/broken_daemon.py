"""A bookie process whose commit thread fails on an add with the payload ``BREAK``.

The bookie has no such switch. ``LocalCluster`` starts this module when a test sets ``launch.DAEMON`` to its name.
"""

from __future__ import annotations

import os
import sys

from bookspark.servers.daemon.__main__ import main
from bookspark.store.bookie.commit.commit_thread import Group, GroupWriter

BREAK = b"this breaks it"
PLACE = "BOOKSPARK_TEST_BREAKS"
"""The part that fails: ``group``, the writing of a group, or ``thread``, the thread itself."""


def fails(items: list[object]) -> bool:
    return any(BREAK in bytes(getattr(item, "frame", b"")) for item in items)


def break_it(place: str) -> None:
    write, commit = GroupWriter._write, GroupWriter.commit

    def written(writer: GroupWriter, group: Group) -> None:
        if fails(list(group.entries)):
            raise RuntimeError("on purpose")
        write(writer, group)

    def committed(writer: GroupWriter, items: list[object], *arguments: object, **options: object) -> bool:
        if fails(items):
            raise MemoryError("on purpose")
        return commit(writer, items, *arguments, **options)  # type: ignore[arg-type]

    if place == "group":
        GroupWriter._write = written  # type: ignore[method-assign]
    else:
        GroupWriter.commit = committed  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    break_it(os.environ[PLACE])
    sys.exit(main(sys.argv[1:]))

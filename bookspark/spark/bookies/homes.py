"""Which task looks after which bookie: a pure function of what all tasks of an attempt see on their hosts.

A *home* is the directories of one bookie: ``<root>/bookie-<k>`` in each root; ``k`` is unique in the cluster.

Law: every home that a host has is looked after by exactly one task of that host. Each task works that out by itself, from the
same list, without asking. Homes are created on the first attempt only. Later, a home that nobody sees is a disk that is missing,
and a new bookie would not replace it. Source: docs/decisions/bookies-outlive-tasks.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_HOME = re.compile(r"bookie-(\d+)")


@dataclass(frozen=True, slots=True)
class Seen:
    """What one task sees."""

    partition: int
    """The task."""
    host: str
    """The task's host."""
    homes: tuple[int, ...]
    """The numbers of the homes on that host."""


def divide_homes(seen: Sequence[Seen], bookies: int, create: bool) -> dict[int, tuple[int, ...]]:
    """The homes of each partition. All homes that exist are looked after, even if they are more than ``bookies``.

    ``create``: add homes until there are ``bookies``, each to the task that has the fewest.
    """
    divided: dict[int, list[int]] = {task.partition: [] for task in seen}
    by_host: dict[str, list[Seen]] = {}
    for task in sorted(seen, key=lambda task: task.partition):
        by_host.setdefault(task.host, []).append(task)
    taken: set[int] = set()
    count = 0
    for tasks in by_host.values():
        homes = sorted({home for task in tasks for home in task.homes})
        for place, home in enumerate(homes):
            divided[tasks[place % len(tasks)].partition].append(home)
        taken.update(homes)
        count += len(homes)
    number = 0
    while create and count < bookies:
        if number not in taken:
            fewest = min(divided, key=lambda partition: (len(divided[partition]), partition))
            divided[fewest].append(number)
            count += 1
        number += 1
    return {partition: tuple(homes) for partition, homes in divided.items()}


def find_homes(roots: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the homes on this host. A home that is missing in one root is still found in the others."""
    found: set[int] = set()
    for root in roots:
        if os.path.isdir(root):
            found.update(int(match[1]) for name in os.listdir(root) if (match := _HOME.fullmatch(name)))
    return tuple(sorted(found))


def home_directories(roots: Sequence[str], home: int) -> list[str]:
    """The directories of a home, in the order of the roots."""
    return [os.path.join(root, f"bookie-{home}") for root in roots]

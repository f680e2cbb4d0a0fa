"""Stories for ``histories``: random steps of one bookie's storage, drawn from a seed and shortened after a failure.

Law: a story is data, and its outcome follows from it alone. A step names its file or byte by a number that is resolved when the
step runs, so a story stays valid when other steps are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bookspark.store.wire.header import Flag

Step = tuple[Any, ...]
RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
TROUBLES = ("none", "space", "io", "lie", "all", "apart", "control")
"""The faults injected besides kills and power cuts: none, full disks, I/O errors, one lie of a disk, all of them; or
directories out of use at some boots, with few other faults, or with bit flips in control logs."""

_KINDS = (
    *("add", "commit", "background", "idle", "sync", "fence", "confirm", "second", "checkpoint", "seal", "reclaim"),
    *("scrub", "delete", "new", "close", "stranger", "backup", "put_back", "collect", "heal", "stop", "kill", "crash"),
    "again",
)
_APART = ("apart", "control")
_DISKS = {"apart": [2], "control": [1, 2, 2, 3]}
"""The possible numbers of disks, if not one or two."""
_MUCH_OF_CONTROL = {
    **dict.fromkeys(("fence", "confirm", "new", "close", "put_back", "collect", "second", "again", "stranger"), 3.0),
    **dict.fromkeys(("add", "reclaim", "seal", "scrub"), 0.4),
}
"""A story about control logs has few entries."""
_HEALINGS = ((), (), (1.0, 1), (0.5,), (0.5, 1))
"""Heal all, all but entries without another copy, or a part of the ledgers (``History.do_heal``)."""
_PATHS = ("*", "*", "/disk0/*", "*/control*", "*/logs/*", "*.arrow*", "*.synced", "*/checkpoint*", "*/unclean*")
_IO = ("*", "read", "write", "sync", "open", "create", "sync_directory", "rename", "unlink", "truncate", "size", "list")


class Story(NamedTuple):
    """The bookie's options, and the steps."""

    disks: int
    entry_log_bytes_max: int
    journal: bool
    background_sync_bytes: int
    apart: bool
    """Background syncs wait for their own step, so they overlap with those of the commit thread."""
    trusts_boot_id: bool
    steps: tuple[Step, ...]


def drawn_story(trouble: str, seed: int) -> Story:
    """The story of a seed. ``trouble``: one of ``TROUBLES``."""
    source = random.Random(f"{trouble} {seed}")
    # Half of the stories have many steps of some kinds and few of others.
    often = {} if source.random() < 0.5 else {kind: source.choice([0.2, 1.0, 1.0, 4.0]) for kind in sorted(_KINDS)}
    steps = [_step(source, trouble, often) for _ in range(source.randint(10, 60))]
    if trouble in ("lie", "all"):
        # The lie needs data to be about, and soon after it a step that looks at that data.
        place = source.randint(5, len(steps))
        after = source.choice(
            [(), ("scrub",), ("crash", -1 - source.randrange(8), ""), ("kill", ""), ("reclaim", 0.99, True)]
        )
        steps[place:place] = [_lie(source), *([after] if after else [])]
    return Story(
        disks=source.choice(_DISKS.get(trouble, [1, 1, 2])),
        entry_log_bytes_max=source.choice([1500, 2500]),
        journal=source.random() < 0.7,
        background_sync_bytes=source.choice([1, 1000, 100_000]),
        apart=source.random() < 0.5,
        trusts_boot_id=source.random() < 0.2,
        steps=tuple(steps),
    )


def shortened(story: Story, fails: Callable[[Story], bool]) -> Story:
    """The story without the steps, and with the plainest options, that its failure does not need."""
    for options in (
        {"disks": 1}, {"journal": True}, {"apart": False}, {"trusts_boot_id": False}, {"background_sync_bytes": 100_000},
    ):  # fmt: skip
        if fails(plainer := story._replace(**options)):
            story = plainer
    size = len(story.steps) // 2
    while size:
        for start in range(len(story.steps) - size, -1, -1):
            shorter = story._replace(steps=story.steps[:start] + story.steps[start + size :])
            if fails(shorter):
                story = shorter
        size //= 2
    return story


def _step(source: random.Random, trouble: str, often: Mapping[str, float]) -> Step:
    slot = source.randrange(3)
    kinds: dict[str, tuple[float, Callable[[], Step]]] = {
        "add": (45, lambda: ("add", slot, source.randint(0, 12), source.randint(1, 4), source.choice([0, 0, 0, RECOVERY]))),
        "again": (3, lambda: ("again",)),
        "commit": (16, lambda: ("commit",)),
        "background": (4, lambda: ("background",)),
        "idle": (1, lambda: ("idle",)),
        "sync": (3, lambda: ("sync",)),
        "fence": (4, lambda: ("fence", slot)),
        "confirm": (4, lambda: ("confirm", slot, source.randint(0, 12))),
        "second": (6, lambda: ("second",)),
        "checkpoint": (5, lambda: ("checkpoint",)),
        "seal": (4, lambda: ("seal",)),
        "reclaim": (5, lambda: ("reclaim", source.choice([0.0, 0.7, 0.99]), source.random() < 0.8)),
        "scrub": (3, lambda: ("scrub",)),
        "delete": (2, lambda: ("delete", slot)),
        "new": (1, lambda: ("new", slot)),
        "close": (2, lambda: ("close", slot)),
        "stranger": (3, lambda: ("stranger", slot, source.choice(["add", "fence", "confirm"]))),
        "backup": (1, lambda: ("backup",)),
        "put_back": (1, lambda: ("put_back",)),
        "collect": (1, lambda: ("collect", source.choice(["", "", "listing", "record"]))),
        "without": (9 if trouble in _APART else 0, lambda: ("without", source.randrange(2), source.random() < 0.5)),
        "heal": (9 if trouble in _APART else 3, lambda: ("heal", *source.choice(_HEALINGS))),
        "flip_control": (3 if trouble == "control" else 0, lambda: _control_flip(source)),
        "stop": (3, lambda: ("stop", _boot_fault(source, trouble))),
        "kill": (4, lambda: ("kill", _boot_fault(source, trouble))),
        "crash": (5, lambda: ("crash", _power_cut(source), _boot_fault(source, trouble))),
        "fault": (5 if trouble in ("io", "space", "all") else 0, lambda: ("fault", _fault(source, trouble))),
        "full": (3 if trouble in ("space", "all") else 0, lambda: ("full", source.choice([0, 0, 200, 1000, 3000]))),
        "room": (3 if trouble in ("space", "all") else 0, lambda: ("room",)),
        "evict": (3 if trouble != "none" else 0, lambda: ("evict",)),
    }  # fmt: skip
    much = _MUCH_OF_CONTROL if trouble == "control" else {}
    weights = [weight * often.get(kind, 1.0) * much.get(kind, 1.0) for kind, (weight, _) in kinds.items()]
    [kind] = source.choices(list(kinds), weights)
    return kinds[kind][1]()


def _control_flip(source: random.Random) -> Step:
    return ("flip_control", source.randrange(3), source.random(), source.randrange(8))


def _power_cut(source: random.Random) -> int:
    """Below 0: one of ``LOSSES``, else the seed of a drawn power cut."""
    return source.choice([source.randint(-8, -1), source.randrange(999)])


def _boot_fault(source: random.Random, trouble: str) -> str:
    """The fault rule for the files during the next boot; "": none."""
    if trouble not in ("io", "all") or source.random() < 0.7:
        return ""
    return f"{source.choice(_IO)} {source.choice(_PATHS)} {source.randint(1, 25)} io-error"


def _fault(source: random.Random, trouble: str) -> str:
    path, which = source.choice(_PATHS), f"{source.randint(1, 6)}{source.choice(['', '', '..'])}"
    if trouble == "space" or (trouble == "all" and source.random() < 0.2):
        return (
            f"{source.choice(['create', 'preallocate'])} {path} {which} {source.choice(['no-space', 'too-many-files'])}"
        )
    if source.random() < 0.4:
        return f"{source.choice(['sync', 'sync', 'write', 'sync_directory'])} {path} {which} write-back:{source.randrange(99)}"
    return f"{source.choice(_IO)} {path} {which} io-error"


def _lie(source: random.Random) -> Step:
    """A fault that breaks the law of disks: once in a story, since a bookie alone can't survive any number of lies."""
    which, where = source.random(), source.random()
    path = source.choice(_PATHS)
    return source.choice(
        [
            ("flip", which, where, source.randrange(8)),
            ("flip", which, where, source.randrange(8)),
            ("vanish", which),
            ("fault", f"write {path} {source.randint(1, 6)} lost"),
            (
                "fault",
                f"write {path} {source.randint(1, 6)} misdirected:{source.choice([-400, -128, -8, 8, 128, 512])}",
            ),
        ]
    )

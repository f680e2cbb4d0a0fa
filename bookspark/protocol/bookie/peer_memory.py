"""One budget for the memory that all peers of a bookie make it hold, and a deadline for each frame that has begun.

A peer holds memory by what it leaves undone: the part of a frame that has arrived, requests behind answers that it does not
read, these answers, long polls, and requests that wait for metadata. Whole frames that are taken at once hold nothing.

Law: together the peers hold ``bytes_max``, and for a moment one arrival more.

1. Memory that a peer does not need (*slack*: the rest of its receive buffer) is released first, and whenever it was not used for
   ``IDLE_SECONDS``.
2. If that is not enough, connections end. Peers of which an add was acknowledged are *known*, the others are *new*; each kind has
   half of the budget for sure, and the kind above its half pays. There the address that holds most loses its oldest holder. So
   neither a crowd of new peers, at however many addresses, ends the long adds of known ones, nor known ones lock out new ones.
3. A frame is whole ``FRAME_SECONDS`` after its first byte, plus a second for each ``FRAME_BYTES_PER_SECOND`` of its announced
   size, or its connection ends: a byte now and then buys no time. Only time counts in which the bookie reads.

A peer is any hashable; an address an opaque string; seconds are of any steady clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FRAME_SECONDS = 10.0
FRAME_BYTES_PER_SECOND = 128 << 10
"""A line of 1 Mbit/s is quick enough for any frame."""
IDLE_SECONDS = 10.0
TICK_SECONDS_MAX = 2.0
"""More time between two ticks does not count: the bookie stood still, and the bytes may be there."""


class Held(NamedTuple):
    """Memory of the bookie that one peer takes."""

    bound: int = 0
    """Bytes that only the peer, or the end of its connection, frees."""
    slack: int = 0
    """Bytes that the bookie can free."""
    frame: int = 0
    """Number of the frame under way; 0: none, or the bookie does not read on."""
    frame_bytes: int = 0
    """Size of that frame, as far as known."""


class Shrink(NamedTuple):
    """Order to free the slack of this peer; it counts as freed at once."""

    peer: object


class End(NamedTuple):
    """Order to end this connection; it counts as ended at once."""

    peer: object
    why: str


Action = Shrink | End

NOTHING_HELD = Held()


class _Holder:
    def __init__(self, group: tuple[bool, str]) -> None:
        self.group = group
        self.held = NOTHING_HELD
        self.deadline = self.idle_at = 0.0
        """In counted seconds."""


class PeerMemory:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bound = self.slack = 0
        """Bytes of all peers."""
        self._holders: dict[object, _Holder] = {}
        self._groups: dict[tuple[bool, str], dict[object, None]] = {}
        """(Known?, address) → peers of the address that hold memory, oldest frame first."""
        self._bytes: dict[tuple[bool, str], int] = {}
        """(Known?, address) → bound bytes of these peers."""
        self._counted = 0.0
        """Seconds during which the bookie read from its peers."""
        self._ticked_at: float | None = None

    def __len__(self) -> int:
        """Number of peers that hold anything."""
        return len(self._holders)

    def holds(self, peer: object, address: str, known: bool, held: Held) -> list[Action]:
        """Note all that the peer makes the bookie hold now."""
        holder = self._holders.get(peer)
        group = known, address
        if held.bound <= 0 and held.slack <= 0:
            self.forget(peer)
            return []
        if holder is None or holder.group != group:
            self.forget(peer)
            holder = self._holders[peer] = _Holder(group)
            self._groups.setdefault(group, {})[peer] = None
            self._bytes.setdefault(group, 0)
        before = holder.held
        if held.frame != before.frame:
            # A later frame is a younger one.
            members = self._groups[group]
            del members[peer]
            members[peer] = None
        if held.frame and (held.frame, held.frame_bytes) != (before.frame, before.frame_bytes):
            begun = holder.deadline - frame_seconds(before.frame_bytes) if held.frame == before.frame else self._counted
            holder.deadline = begun + frame_seconds(held.frame_bytes)
        holder.held = held
        holder.idle_at = self._counted + IDLE_SECONDS
        self.bound += held.bound - before.bound
        self.slack += held.slack - before.slack
        self._bytes[group] += held.bound - before.bound
        return [] if self.bound + self.slack <= self.bytes_max else list(self._relieve())

    def forget(self, peer: object) -> None:
        """The peer's connection has ended, or holds nothing any more."""
        holder = self._holders.pop(peer, None)
        if holder is None:
            return
        self.bound -= holder.held.bound
        self.slack -= holder.held.slack
        members = self._groups[holder.group]
        del members[peer]
        self._bytes[holder.group] -= holder.held.bound
        if not members:
            del self._groups[holder.group], self._bytes[holder.group]

    def tick(self, now: float, reading: bool) -> list[Action]:
        """To be called about once a second while anything is held. ``reading``: does the bookie read from its peers?"""
        last, self._ticked_at = self._ticked_at, now
        if last is None or not reading:
            return []
        self._counted += min(max(now - last, 0.0), TICK_SECONDS_MAX)
        actions: list[Action] = []
        for peer, holder in list(self._holders.items()):
            held = holder.held
            if held.frame and holder.deadline <= self._counted:
                seconds = frame_seconds(held.frame_bytes)
                self.forget(peer)
                actions.append(End(peer, f"a frame was not whole {seconds:.0f} s after its first byte"))
            elif held.slack and holder.idle_at <= self._counted:
                self._released(peer, holder)
                actions.append(Shrink(peer))
        return actions

    def _relieve(self) -> Iterator[Action]:
        if self.slack:
            for peer, holder in list(self._holders.items()):
                if self.bound + self.slack <= self.bytes_max:
                    return
                if holder.held.slack:
                    self._released(peer, holder)
                    yield Shrink(peer)
        while self.bound > self.bytes_max:
            known = sum(size for (is_known, _), size in self._bytes.items() if is_known)
            pays = known > self.bytes_max // 2
            group = max((one for one in self._bytes if one[0] == pays), key=self._bytes.__getitem__)
            peer = next(iter(self._groups[group]))
            self.forget(peer)
            yield End(
                peer, f"unfinished frames, unread answers, long polls and waiting requests held {self.bytes_max} bytes"
            )

    def _released(self, peer: object, holder: _Holder) -> None:
        self.slack -= holder.held.slack
        holder.held = holder.held._replace(slack=0)
        if not holder.held.bound:
            self.forget(peer)


def frame_seconds(frame_bytes: int) -> float:
    """Time limit of a frame of this size from its first byte on, for either side of a connection."""
    return FRAME_SECONDS + frame_bytes / FRAME_BYTES_PER_SECOND

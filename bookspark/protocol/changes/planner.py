"""(wanted, progress, observed) → the next safe steps of a change, the conditions to wait for, or the refusal.

Law: the planner keeps no state: a successor after a crash decides the same from ``Wanted``, ``Progress`` and the cluster observed
now. It begins with no further bookie while a bookie outside the change is missing or heals itself, and keeps at most ``at_once``
of them read-only or down. Begun bookies come first. A bookie goes through these; each arrow back is a crash, or a bookie that
fails meanwhile::

    serves ──SetReadOnly──► writers replace it ──Restart, ReplaceDisk──► down ──► heals ──Resume──► serves
       │                                                                     (of itself)
       └────SetReadOnly──► writers replace it ──Move, Move, …──► named by no ledger ──Stop──► down ──Forget──► gone

Source: docs/clusters/changes.md. BookKeeper's ``BookieDecommission`` stops the bookie first and copies afterwards; here the
bookie still serves during the moves, so no entry ever has fewer copies.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from bookspark.protocol.changes.observed import Observed, ObservedBookie, Placed
from bookspark.protocol.changes.safety import is_in_the_way, left_over
from bookspark.protocol.changes.steps import (
    Decision,
    Forget,
    Move,
    Restart,
    Resume,
    SetReadOnly,
    Step,
    Stop,
    Takes,
)
from bookspark.protocol.changes.wanted import Before, Progress, Wanted
from bookspark.protocol.ledger.placement import NOTHING, Lack, Placement

# -- Moves: fragments to move, and their targets.
#
# Law: a copy is moved once, to the bookie with the fewest bytes that is not in its ensemble, never so that the cluster's
# placement rule is broken more than before, and to one that shares host and rack with no more of the other copies than its
# source does. No more is moved than the copies of leaving bookies, or the bytes of the fullest ones above the average. Bytes
# are those in the records, as if all bookies had the same room. A fragment that may still get entries is not moved: its writer
# replaces the bookie.


EVEN_PART = 0.05
"""A bookie this close to the average stays as it is."""


def evacuation(
    observed: Observed,
    source: str,
    fragments: Iterable[Placed],
    candidates: Collection[str],
    count_max: int,
    preferred: Collection[str] = (),
) -> tuple[list[Move], Placed | None]:
    """At most ``count_max`` moves of ``fragments`` from ``source`` to ``candidates``, to ``preferred`` ones first.

    Returns the moves, and a fragment without any possible target, or None."""
    heap = [(bookie not in preferred, observed.fragments.bytes_of.get(bookie, 0), bookie) for bookie in candidates]
    heapq.heapify(heap)
    spread, moves = _Spread(observed), list[Move]()
    stuck: Placed | None = None
    for one in fragments:
        if len(moves) == count_max:
            break
        if one.open:
            continue
        passed = []
        best: tuple[tuple[Lack, int, int], tuple[bool, int, str]] | None = None
        now = spread.after(one, source, source)
        while heap:
            candidate = heapq.heappop(heap)
            passed.append(candidate)
            if candidate[2] in one.ensemble:
                continue
            shared = spread.after(one, source, candidate[2])
            if shared is None:
                continue
            if best is None or shared < best[0]:
                best = shared, candidate
            if now is None or shared <= now:
                break
        chosen = None if best is None else best[1]
        for candidate in passed:
            grown = one.byte_count if candidate is chosen else 0
            heapq.heappush(heap, (candidate[0], candidate[1] + grown, candidate[2]))
        if chosen is None:
            stuck = one
            continue
        moves.append(Move(one.ledger_id, one.first_entry_id, source, chosen[2], one.byte_count))
    return moves, stuck


def levelling(observed: Observed, takers: Collection[str], count_max: int, givers: Collection[str] = ()) -> list[Move]:
    """At most ``count_max`` moves from the fullest to the emptiest of ``takers``, until all are about even. ``givers``: bookies,
    for example full ones, that take nothing; those above the others' average give too."""
    loads = {bookie: observed.fragments.bytes_of.get(bookie, 0) for bookie in takers}
    if not loads:
        return []
    giving = {bookie: observed.fragments.bytes_of.get(bookie, 0) for bookie in givers if bookie not in loads}
    for bookie, load in sorted(giving.items(), key=itemgetter(1), reverse=True):
        if load * len(loads) <= sum(loads.values()):
            break
        loads[bookie] = load
    mean = sum(loads.values()) / len(loads)
    low, high = mean * (1 - EVEN_PART), mean * (1 + EVEN_PART)
    empty = [(loads[bookie], bookie) for bookie in takers]
    full = [(-load, bookie) for bookie, load in loads.items()]
    heapq.heapify(empty)
    heapq.heapify(full)
    pieces: dict[str, Iterator[Placed]] = {}
    moved: set[tuple[int, int]] = set()
    spread, moves = _Spread(observed), list[Move]()
    while empty and full and len(moves) < count_max:
        load, receiver = empty[0]
        if load != loads[receiver]:
            heapq.heapreplace(empty, (loads[receiver], receiver))
            continue
        negative, donor = full[0]
        if -negative != loads[donor]:
            heapq.heapreplace(full, (-loads[donor], donor))
            continue
        if loads[receiver] >= low and loads[donor] <= high:
            break
        left = pieces.setdefault(donor, iter(list(observed.fragments.of(donor))))
        found = _fitting(spread, left, donor, receiver, loads[donor] - loads[receiver], moved)
        if found is None:
            # All fragments of the bookie were tried, so it stays as it is until the next look.
            heapq.heappop(full)
            continue
        moved.add((found.ledger_id, found.first_entry_id))
        moves.append(Move(found.ledger_id, found.first_entry_id, donor, receiver, found.byte_count))
        loads[donor] -= found.byte_count
        loads[receiver] += found.byte_count
    return moves


def _fitting(
    spread: _Spread,
    pieces: Iterator[Placed],
    donor: str,
    receiver: str,
    bytes_max: int,
    moved: Collection[tuple[int, int]],
) -> Placed | None:
    """The donor's next fragment that makes the two more even without a loss of spread. Skipped ones are not tried again in this
    levelling."""
    for one in pieces:
        if one.open or not 0 < one.byte_count < bytes_max or receiver in one.ensemble:
            continue
        if (one.ledger_id, one.first_entry_id) in moved:
            continue
        now, then = spread.after(one, donor, donor), spread.after(one, donor, receiver)
        if now is not None and then is not None and then <= now:
            return one
    return None


class _Spread:
    """The effect of moves on the placement of fragments."""

    def __init__(self, observed: Observed) -> None:
        self._observed, self._topology = observed, observed.topology()
        self._placement = Placement(observed.placement)
        self._known: dict[tuple[tuple[str, ...], int], Lack] = {}

    def after(self, fragment: Placed, source: str, target: str) -> tuple[Lack, int, int] | None:
        """The fragment's breach of the rule with ``target`` in the place of ``source``, and the other copies on its host and on
        its rack: less is better. None if the move would break the rule more than now."""
        ensemble = tuple(target if bookie == source else bookie for bookie in fragment.ensemble)
        lack = self._lack(ensemble, fragment.write_quorum)
        if lack.required > self._lack(fragment.ensemble, fragment.write_quorum).required:
            return None
        bookies, here = self._observed.bookies, self._observed.bookies.get(target)
        if here is None:
            return lack, 0, 0
        others = [bookies[b] for b in fragment.ensemble if b not in (source, target) and b in bookies]
        return (
            lack,
            sum(bool(here.host) and here.host == other.host for other in others),
            sum(bool(here.rack) and here.rack == other.rack for other in others),
        )

    def takes(self, fragment: Placed, source: str, target: str) -> bool:
        """May ``target`` get the copies of ``source``?"""
        return target not in fragment.ensemble and self.after(fragment, source, target) is not None

    def _lack(self, ensemble: tuple[str, ...], write_quorum: int) -> Lack:
        if self._observed.placement.name == "random":
            return NOTHING
        found = self._known.get((ensemble, write_quorum))
        if found is None:
            found = self._placement.lack(self._topology, ensemble, write_quorum, unknown_apart=True)
            self._known[ensemble, write_quorum] = found
        return found


# -- The decision: begun bookies first, then others, then balance.


MOVES_MAX = 256
"""Most moves in one decision."""


def decide(wanted: Wanted, progress: Progress, observed: Observed, moves_max: int = MOVES_MAX) -> Decision:
    return _Deciding(wanted, progress, observed, moves_max).decided()


def permitted(wanted: Wanted, progress: Progress, observed: Observed, step: Step) -> str:
    """The reason against the step, in words, or "". ``observed``: from a look just before the step."""
    if not isinstance(step, Takes):
        return ""
    decision = decide(wanted, progress, observed)
    if step in decision.steps:
        return ""
    return "; ".join((*decision.waits, *decision.refusals)) or "it is not needed any more"


@dataclass
class _Deciding:
    wanted: Wanted
    progress: Progress
    observed: Observed
    moves_max: int
    steps: list[Step] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    going_down: set[str] = field(default_factory=set)
    """Bookies that take no copies of each other: two bookies before their restart would exchange the same copies for ever."""

    def decided(self) -> Decision:
        self._refuse()
        if self.refusals:
            return Decision(refusals=tuple(self.refusals))
        begun = sorted(self.progress.quieted | self.progress.away)
        for bookie in begun:
            self._go_on(bookie)
        if not self.refusals:
            self._begin_others(len(begun))
        if not (self.steps or self.waits or self.refusals) and self.wanted.balance:
            self.steps += levelling(self.observed, self._takers(), self.moves_max, self._givers())
        return Decision(tuple(self.steps), tuple(self.waits), tuple(self.refusals))

    # -- impossible changes

    def _refuse(self) -> None:
        wanted, bookies = self.wanted, self.observed.bookies
        for bookie in sorted(wanted.named()):
            if bookie not in bookies and not (bookie in wanted.leaving and bookie in self.progress.before):
                self.refusals.append(f"there is no bookie {bookie}; `bookspark bookies` shows those that there are")
        for bookie in sorted(wanted.leaving & (wanted.restart | wanted.replace_disks.keys())):
            self.refusals.append(f"{bookie} is to leave: don't ask for anything else of it")
        for bookie, targets in sorted(wanted.move.items()):
            for target in targets:
                if target not in bookies or target in wanted.leaving:
                    self.refusals.append(f"{target}, which is to get the copies of {bookie}, is no bookie that stays")
        if wanted.named() and self.observed.unreadable:
            ledger_id, why = next(iter(self.observed.unreadable.items()))
            self.refusals.append(
                f"ledger {ledger_id} may name any bookie, because its record is unreadable ({why}): delete it, restore its "
                "record, or upgrade the one who applies this"
            )
        if (
            wanted.at_once > 1
            and self.observed.autorecovery_enabled
            and len(wanted.restart | wanted.replace_disks.keys()) > 1
        ):
            self.refusals.append(
                "autorecovery copies at once what two missing bookies hold: `bookspark autorecovery disable` it while several "
                "bookies are restarted at a time, and enable it afterwards"
            )

    # -- begun bookies

    def _go_on(self, bookie_id: str) -> None:
        bookie = self.observed.bookies.get(bookie_id)
        if bookie_id in self.wanted.leaving:
            self._leave(bookie_id, bookie)
        elif bookie is None:
            self.waits.append(f"{bookie_id} is gone, and so is its cookie")
        elif self._done(bookie):
            if bookie.settled:
                self.steps.append(Resume(bookie_id))
            else:
                self.waits.append(f"{bookie_id} is back and not whole yet: {bookie.unsettled_why}")
        elif bookie_id in self.progress.away:
            self._down(bookie)
        else:
            self._take_down(bookie)

    def _done(self, bookie: ObservedBookie) -> bool:
        """Is the bookie back, in the wanted state?"""
        if not bookie.registered:
            return False
        before = self.progress.before.get(bookie.bookie_id, Before(0, 0))
        if bookie.bookie_id in self.wanted.replace_disks and bookie.lossy_boot <= before.lossy_boot:
            return False
        if bookie.bookie_id in self.wanted.restart:
            if self.wanted.version:
                return bookie.version == self.wanted.version
            return bookie.incarnation != before.incarnation
        return True

    def _down(self, bookie: ObservedBookie) -> None:
        """The change has taken the bookie down, or was about to."""
        name, wanted = bookie.bookie_id, self.wanted
        before = self.progress.before.get(name, Before(0, 0))
        if bookie.registered and bookie.incarnation != before.incarnation and name not in wanted.replace_disks:
            self.waits.append(
                f"{name} was restarted and runs version {bookie.version or 'unknown'}, not {wanted.version}: install that on its "
                "host, and restart it"
            )
        else:
            self._take_down(bookie)

    def _take_down(self, bookie: ObservedBookie) -> None:
        """The bookie is read-only, or down by itself. Restart it once nothing is in the way."""
        name = bookie.bookie_id
        self.going_down.add(name)
        quiet_first = not (self.wanted.below_write_quorum and name in self.wanted.restart)
        if bookie.registered and self._takes_entries(bookie) and quiet_first:
            if self._room_without(name):
                self.steps.append(SetReadOnly(name))
            return
        step = self.wanted.taking(name)
        if step is None:
            # The change was given up meanwhile: a bookie that is back is left alone.
            self.waits.append(f"{name} is down: start it again")
            return
        below = self.wanted.below_write_quorum and isinstance(step, Restart)
        if bookie.registered and self._move_first(name):
            return
        others = (self.progress.away | {one.bookie_id for one in self.steps if isinstance(one, Takes)}) - {name}
        why = is_in_the_way(self.observed, name, others, below)
        if why:
            self.waits.append(why)
        else:
            self.steps.append(step)

    def _takes_entries(self, bookie: ObservedBookie) -> bool:
        """Is the bookie writable, or read-only by an earlier change that left it so?"""
        left = bookie.read_only_by_change and bookie.bookie_id not in self.progress.quieted
        return left or not bookie.read_only

    def _move_first(self, name: str) -> bool:
        """Move copies without a spare above their ack quorum before their bookie goes down. False if there are none."""
        needing = [
            one for one in self.observed.fragments.of(name) if not one.open and left_over(one, (name,)) < one.ack_quorum
        ]
        if not needing:
            return False
        finished = [b for b in self._takers() if b in self.wanted.restart and self._done(self.observed.bookies[b])]
        self._evacuate(name, needing, self._takers(), finished)
        return True

    # -- leaving

    def _leave(self, name: str, bookie: ObservedBookie | None) -> None:
        fragments = self.observed.fragments
        if bookie is None:
            self.steps.append(Forget(name))
            return
        if bookie.registered and self._takes_entries(bookie):
            self.steps.append(SetReadOnly(name))
            return
        candidates = self._takers()
        chosen = self.wanted.move.get(name)
        self._evacuate(name, fragments.of(name), candidates, chosen or (), required=chosen is not None)
        if open_ones := fragments.open_on(name):
            told = ", ".join(str(one.ledger_id) for one in list(open_ones)[:5])
            self.waits.append(
                f"ledgers are being written to {name} ({len(open_ones)}: {told}): a writer replaces the bookie at its next "
                "append; `bookspark ledger recover` closes one that nobody writes any more"
            )
        elif not fragments.of(name):
            self.steps.append(Stop(name) if bookie.registered else Forget(name))

    def _evacuate(
        self,
        name: str,
        fragments: Iterable[Placed],
        candidates: list[str],
        preferred: Iterable[str],
        required: bool = False,
    ) -> None:
        preferred = set(preferred)
        if required and not preferred & set(candidates):
            self.waits.append(f"{', '.join(sorted(preferred))} does not take copies now: start it, or make it writable")
            return
        moving = {(one.ledger_id, one.first_entry_id) for one in self.steps if isinstance(one, Move)}
        left = (one for one in fragments if (one.ledger_id, one.first_entry_id) not in moving)
        moves, stuck = evacuation(
            self.observed, name, self._readable(left), candidates, self.moves_max - len(moving), preferred
        )
        self.steps += moves
        if stuck is not None and not moves:
            self.waits.append(
                f"ledger {stuck.ledger_id} needs {len(stuck.ensemble)} bookies{self._by_rule()}, and {len(candidates)} take "
                "copies: start more"
            )

    def _by_rule(self) -> str:
        rule = self.observed.placement
        return f" by placement {rule}" if rule.requires else ""

    def _readable(self, fragments: Iterable[Placed]) -> Iterator[Placed]:
        """Fragments whose every entry has a copy that counts; the first other fragment becomes a wait."""
        for one in fragments:
            gone = [b for b in one.ensemble if not self.observed.counts(b, one.ledger_id)]
            if not gone or left_over(one, gone):
                yield one
            elif not any("no copy" in wait for wait in self.waits):
                self.waits.append(
                    f"no copy of entries of ledger {one.ledger_id} counts: start {', '.join(gone)}, or delete the ledger if "
                    "their disks are gone for good"
                )

    # -- the next bookies

    def _begin_others(self, under_way: int) -> None:
        begun = self.progress.quieted | self.progress.away
        missing = [
            one
            for name, one in sorted(self.observed.bookies.items())
            if not one.counts and one.has_cookie and name not in begun and name not in self.wanted.named()
        ]
        for name in self._order():
            bookie = self.observed.bookies.get(name)
            if name in begun or bookie is None:
                continue
            if name in self.wanted.leaving:
                if not bookie.registered and not bookie.has_cookie:
                    continue
            elif self._done(bookie):
                if bookie.settled:
                    continue
                self.waits.append(f"{name} is not whole: {bookie.unsettled_why}")
                return
            if under_way >= self.wanted.at_once:
                # The bookies under way account for the present steps and waits.
                return
            if bookie.registered and missing:
                why = missing[0].unsettled_why or "is down: start it, or remove it"
                self.waits.append(f"nothing else is begun, because {missing[0].bookie_id} {why}")
                return
            under_way += 1
            self._begin(name, bookie)

    def _order(self) -> Iterator[str]:
        """Bookies that are down come first, so that a change never takes down another beside them."""
        wanted = self.wanted
        kinds = (wanted.replace_disks, wanted.restart, wanted.move, wanted.remove)
        every = list(dict.fromkeys(name for kind in kinds for name in sorted(kind)))
        down = [name for name in every if name in self.observed.bookies and not self.observed.bookies[name].counts]
        yield from dict.fromkeys((*down, *every))

    def _begin(self, name: str, bookie: ObservedBookie) -> None:
        if name in self.wanted.leaving:
            if not (bookie.registered and self._takes_entries(bookie)):
                self._leave(name, bookie)
            elif self._room_without(name):
                self.steps.append(SetReadOnly(name))
            return
        self._take_down(bookie)

    def _room_without(self, name: str) -> bool:
        """Can others take this bookie's copies before it goes down? If not, add a wait or a refusal."""
        others, spread = [one for one in self._takers() if one != name], _Spread(self.observed)
        stay = [one for one in self.observed.bookies if one != name and one not in self.wanted.leaving]
        for one in self.observed.fragments.of(name):
            if not (one.open or name in self.wanted.leaving or left_over(one, (name,)) < one.ack_quorum):
                continue
            if any(spread.takes(one, name, other) for other in others):
                continue
            text = (
                f"ledger {one.ledger_id} has {', '.join(one.ensemble)}, and no other writable bookie can take the place of "
                f"{name}{self._by_rule()}: start one more bookie"
            )
            if one.open and name in self.wanted.restart:
                text += ", or allow --below-write-quorum"
            possible = any(spread.takes(one, name, other) for other in stay)
            (self.waits if possible else self.refusals).append(text)
            return False
        return True

    def _givers(self) -> list[str]:
        """Read-only bookies that stay: full ones get room by giving copies away."""
        return [
            name
            for name, one in sorted(self.observed.bookies.items())
            if one.counts and one.read_only and name not in self.wanted.leaving
        ]

    def _takers(self) -> list[str]:
        """Bookies that take copies and new entries, and stay."""
        made_read_only = {one.bookie_id for one in self.steps if isinstance(one, SetReadOnly)}
        return [
            name
            for name, one in sorted(self.observed.bookies.items())
            if one.writable
            and name not in self.wanted.leaving
            and name not in self.progress.quieted
            and name not in self.going_down
            and name not in made_read_only
        ]

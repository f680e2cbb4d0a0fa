"""Placement: the rule of a cluster, and the choice of bookies for ensembles by it.

Law: the rule is the cluster's, and new ledgers, ensemble changes, repairs, changes of the cluster and audits keep it. An ensemble
has E (ensemble size) distinct bookies, and a new member is registered and writable. A replacement never breaks the rule more than
the bookie that it replaces. The place of a bookie that is away is its last known one. If there are too few bookies, the error
names every candidate and the reason of its refusal. Quarantined bookies come last: a dead bookie stays registered until its
session ends, but a bookie that has just restarted is better than none.

The rules:

``rack_aware``
    The copies of each entry are on as many racks as possible. Fewer than ``racks_min`` racks are refused. Copies on one rack,
    or on fewer than ``racks_min``, are misplaced if there are bookies to move them to.
``random``
    Any bookies.
``one_per_host``, ``one_per_<label>``
    No two bookies of an ensemble on one host, or with the same value of a label.

Source: BookKeeper's ``DefaultEnsemblePlacementPolicy`` and ``RackawareEnsemblePlacementPolicy``, with opportunistic striping.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, islice, permutations, product
from typing import NamedTuple, Protocol

from bookspark.errors import ConfigurationError, NotEnoughBookiesError

_ONE_PER = "one_per_"
_ATTEMPTS = 10
"""Number of random orders to try. The choice is greedy; for a striped ensemble over few racks, another order may fit."""
_TOGETHER = ((1, 10_000), (2, 12), (3, 8))
"""Numbers of members moved together if fewer don't help, with the largest ensemble for it."""
_PLANS_MAX = 5_000
"""So many choices of racks are tried where the greatest gains, or random orders, end short of the rule."""


class Draws(Protocol):
    """Randomness as an argument: ``random.Random``."""

    def random(self) -> float: ...


class Located(Protocol):
    """A bookie's failure domains."""

    @property
    def host(self) -> str: ...
    @property
    def rack(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


class Candidate(Located, Protocol):
    """A registered bookie."""

    @property
    def read_only(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """``racks_min``: fewest racks for the copies of an entry, with ``rack_aware``. Raises ConfigurationError."""

    name: str = "rack_aware"
    racks_min: int = 1

    def __post_init__(self) -> None:
        if self.name not in ("rack_aware", "random") and not self.label:
            raise ConfigurationError(
                f"there is no placement {self.name!r}; known are rack_aware, random, one_per_host and one_per_<label>"
            )
        if self.racks_min < 1 or (self.racks_min > 1 and self.name != "rack_aware"):
            raise ConfigurationError(
                f"racks_min {self.racks_min} can't be used with placement {self.name}; choose 1, or 2 or more with rack_aware"
            )

    @property
    def label(self) -> str:
        """``host``, or the label whose values differ in an ensemble; "" for the other rules."""
        return self.name.removeprefix(_ONE_PER) if self.name.startswith(_ONE_PER) else ""

    @property
    def requires(self) -> bool:
        """May the rule refuse bookies?"""
        return bool(self.label) or self.racks_min > 1

    def __str__(self) -> str:
        return self.name + (f" with racks_min {self.racks_min}" if self.racks_min > 1 else "")


class Lack(NamedTuple):
    """An ensemble's breach of the rule, over all its write sets. No breach is better than any."""

    required: int
    """Racks below ``racks_min``, or bookies that share a value."""
    second: int = 0
    """Write sets on one rack, although writable bookies are on two."""


NOTHING = Lack(0)


@dataclass(frozen=True)
class Topology:
    """Knowledge about the bookies at one moment."""

    bookies: Mapping[str, Candidate]
    """All registered bookies, by id, read-only ones too."""
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Bookie id → text for an error (remaining seconds and reason), for bookies in quarantine."""
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bookie id → free bytes. More free space means more frequent choice; a bookie without a value counts with the average."""
    away: Mapping[str, Located] = field(default_factory=dict)
    """Last known places of bookies that are not registered."""

    def without_quarantined(self, ensemble: Sequence[str]) -> Topology:
        """The topology without quarantined bookies that are not in ``ensemble``."""
        known = {b: found for b, found in self.bookies.items() if b in ensemble or b not in self.quarantined}
        return replace(self, bookies=known)

    def without(self, bookies: Sequence[str]) -> Topology:
        """The topology without these bookies."""
        if not bookies:
            return self
        return replace(self, bookies={b: found for b, found in self.bookies.items() if b not in bookies})

    @cached_property
    def writable_racks(self) -> int:
        """The number of racks of writable bookies."""
        return len({bookie.rack for bookie in self.bookies.values() if not bookie.read_only})

    def located(self, bookie_id: str) -> Located | None:
        """The place of a bookie, its last known one if it is away; None if unknown."""
        return self.bookies.get(bookie_id) or self.away.get(bookie_id)


class Placement:
    """Choices by one rule."""

    def __init__(self, rule: PlacementRule = PlacementRule()) -> None:
        self._rule = rule
        self._rack_aware = rule.name == "rack_aware"
        self._one_per = rule.label
        self._leave: dict[object, set[int]] = {}
        """Places to leave by pattern: many ensembles have the same, and a search takes long."""

    def choose_ensemble(
        self, topology: Topology, ensemble_size: int, write_quorum: int, random: Draws, size_min: int | None = None
    ) -> tuple[str, ...]:
        """Choose the first ensemble of a ledger: ``ensemble_size`` bookies.

        If there are fewer, chooses as many as there are, down to ``size_min`` (opportunistic striping; None: ``ensemble_size``).
        Raises NotEnoughBookiesError.
        """
        usable, refused = self._usable(topology, {}, {})
        for size in range(ensemble_size, (size_min or ensemble_size) - 1, -1):
            chosen = self._fill([None] * size, usable, topology, write_quorum, random, 0)
            if chosen is not None:
                return chosen
        needed = size_min or ensemble_size
        raise NotEnoughBookiesError(
            f"an ensemble of {needed} needs {needed} writable bookies, there are "
            f"{self._told(usable, refused, topology, 'none is registered')}; start more bookies or create the ledger with a "
            "smaller ensemble_size"
        )

    def choose_replacements(
        self,
        topology: Topology,
        ensemble: Sequence[str],
        replaced: Sequence[str],
        write_quorum: int,
        random: Draws,
    ) -> tuple[str, ...]:
        """Choose one bookie outside of ``ensemble`` for each of ``replaced``, in their order. Raises NotEnoughBookiesError, also
        if the ensemble would break the rule more than it does."""
        staying = {b: topology.located(b) for b in ensemble if b not in replaced}
        usable, refused = self._usable(topology, dict.fromkeys(ensemble, "is in the ensemble already"), staying)
        ring = [None if bookie in replaced else bookie for bookie in ensemble]
        bound = self.lack(topology, ensemble, write_quorum, unknown_apart=True).required
        chosen = self._fill(ring, usable, topology, write_quorum, random, bound)
        if chosen is None:
            failed = ", ".join(f"{b} ({topology.quarantined[b]})" if b in topology.quarantined else b for b in replaced)
            raise NotEnoughBookiesError(
                f"{failed} failed and {len(replaced)} other writable bookies are needed, there are "
                f"{self._told(usable, refused, topology, 'none')}; start more bookies"
            )
        new = dict(zip(ensemble, chosen, strict=True))
        return tuple(new[bookie] for bookie in replaced)

    def lack(
        self, topology: Topology, ensemble: Sequence[str], write_quorum: int, *, unknown_apart: bool = False
    ) -> Lack:
        """The ensemble's breach of the rule. ``unknown_apart``: a bookie without a known place counts as elsewhere, else as
        nowhere."""
        values = [self._domain(topology, bookie) for bookie in ensemble]
        if unknown_apart:
            values = [bookie if value is None else value for bookie, value in zip(ensemble, values, strict=True)]
        return self._lack(values, write_quorum, topology.writable_racks)

    def breaks(self, topology: Topology, ensemble: Sequence[str], write_quorum: int) -> bool:
        """Does the ensemble break the rule? One with a member of unknown place does not, as for ``misplaced``."""
        is_known = all(self._domain(topology, bookie) is not None for bookie in ensemble)
        return is_known and self.lack(topology, ensemble, write_quorum) != NOTHING

    def misplaced(
        self, topology: Topology, ensemble: Sequence[str], write_quorum: int, random: Draws
    ) -> tuple[str, ...]:
        """Members of ``ensemble`` to replace for the sake of the rule; empty if nothing better is possible now.

        Replacing them together helps as much as single moves and pairs can. A member that is away is not moved, and an ensemble
        with a member of unknown place is left alone.
        """
        if self.lack(topology, ensemble, write_quorum) == NOTHING:
            return ()
        values = [self._domain(topology, bookie) for bookie in ensemble]
        if None in values:
            return ()
        usable, _ = self._usable(topology, dict.fromkeys(ensemble, "is in the ensemble already"), {})
        domains = (self._domain(topology, bookie) for bookie in usable if bookie not in topology.quarantined)
        room = Counter(domain for domain in domains if domain is not None)
        movable = frozenset(place for place, bookie in enumerate(ensemble) if bookie in topology.bookies)
        pattern = tuple(values), movable, tuple(sorted(room.items())), write_quorum, topology.writable_racks
        if (leave := self._leave.get(pattern)) is None:
            leave = self._leave[pattern] = self._moves(values, movable, room, write_quorum, topology.writable_racks)
        members = tuple(ensemble[place] for place in sorted(leave))
        with suppress(NotEnoughBookiesError):
            if members:
                self.choose_replacements(topology, ensemble, members, write_quorum, random)
                return members
        return ()

    # -- what an ensemble lacks

    def _domain(self, topology: Topology, bookie_id: str) -> str | None:
        """The rack, or the value that must differ; ``""`` if the bookie has none, None if its place is unknown."""
        found = topology.located(bookie_id)
        if found is None:
            return None
        return _value(found, self._one_per) if self._one_per else found.rack

    def _lack(self, values: Sequence[str | None], write_quorum: int, racks: int) -> Lack:
        if self._one_per:
            known = [value for value in values if value is not None]
            return Lack(len(known) - len(set(known)))
        if not self._rack_aware:
            return NOTHING
        size = len(values)
        required, second = min(self._rule.racks_min, write_quorum), min(racks, write_quorum, 2)
        if max(required, second) <= 1:
            return NOTHING
        twice = [*values, *values]
        lacks = [0, 0]
        for start in range(size if size > write_quorum else 1):
            found = len({*twice[start : start + write_quorum]} - {None})
            lacks[0] += max(0, required - found)
            lacks[1] += max(0, second - found)
        return Lack(*lacks)

    def _moves(
        self, now: Sequence[str | None], movable: frozenset[int], room: Counter[str], write_quorum: int, racks: int
    ) -> set[int]:
        """Places of the ensemble whose bookies should leave, by the greatest gains. ``now``: the domain of each place; ``room``:
        the number of free bookies in each domain."""
        values, left, moved = list(now), room.copy(), set[int]()
        lack = self._lack(values, write_quorum, racks)
        while lack != NOTHING:
            found = None
            for count, size_max in _TOGETHER:
                if len(values) > size_max:
                    break
                for places in combinations(sorted(movable - moved), count):
                    for domains in product(sorted(left), repeat=count):
                        if any(number > left[domain] for domain, number in Counter(domains).items()):
                            continue
                        tried = values.copy()
                        for place, domain in zip(places, domains, strict=True):
                            tried[place] = domain
                        less = self._lack(tried, write_quorum, racks)
                        if less < (lack if found is None else found[0]):
                            found = less, places, domains
                if found is not None:
                    break
            if found is None:
                best = self._best_moves(now, movable, room, write_quorum, racks, lack)
                return best or moved or self._first_of_two(values, movable, left, write_quorum, racks, lack)
            lack, places, domains = found
            for place, domain in zip(places, domains, strict=True):
                values[place] = domain
                left[domain] -= 1
                moved.add(place)
        return moved

    def _best_moves(
        self,
        now: Sequence[str | None],
        movable: frozenset[int],
        room: Counter[str],
        write_quorum: int,
        racks: int,
        bound: Lack,
    ) -> set[int]:
        """The fewest places whose bookies should leave for the least possible lack below ``bound``; none if there are too many
        possibilities."""
        places = sorted(movable)
        if (len(room) + 1) ** len(places) > _PLANS_MAX:
            return set()
        best, least = set[int](), (bound, 0)
        for plan in product((None, *sorted(room)), repeat=len(places)):
            taken = Counter(domain for domain in plan if domain is not None)
            if any(number > room[domain] for domain, number in taken.items()):
                continue
            tried = list(now)
            for place, domain in zip(places, plan, strict=True):
                tried[place] = tried[place] if domain is None else domain
            if (counts := (self._lack(tried, write_quorum, racks), taken.total())) < least:
                best, least = {place for place, domain in zip(places, plan, strict=True) if domain is not None}, counts
        return best

    def _first_of_two(
        self,
        values: list[str | None],
        movable: frozenset[int],
        room: Counter[str],
        write_quorum: int,
        racks: int,
        lack: Lack,
    ) -> set[int]:
        """The place whose bookie should leave first, so that it can then take another place."""
        if len(values) > _TOGETHER[1][1]:
            return set()
        for first, second in permutations(sorted(movable), 2):
            for domain in sorted(room):
                tried = values.copy()
                tried[first] = domain
                if not room[domain] or self._lack(tried, write_quorum, racks).required > lack.required:
                    continue
                tried[second] = values[first]
                if self._lack(tried, write_quorum, racks) < lack:
                    return {first}
        return set()

    # -- candidates

    def _usable(
        self,
        topology: Topology,
        taken: Mapping[str, str],
        staying: Mapping[str, Located | None],
    ) -> tuple[list[str], str]:
        """Ids of usable bookies, and the reasons against each other bookie, for the error."""
        usable, refused = [], ""
        for bookie_id, candidate in sorted(topology.bookies.items()):
            reason = "is read-only" if candidate.read_only else taken.get(bookie_id)
            reason = reason or self._clash(candidate, staying)
            if reason is None:
                usable.append(bookie_id)
            else:
                refused += f"; {bookie_id} {reason}"
        return usable, refused

    def _clash(self, candidate: Located, others: Mapping[str, Located | None]) -> str | None:
        """Reason against the candidate in one ensemble with ``others``; None if there is none."""
        if not self._one_per:
            return None
        mine = _value(candidate, self._one_per)
        if not mine:
            return f"does not tell its {self._one_per}"
        for bookie_id, other in others.items():
            if other is not None and _value(other, self._one_per) == mine:
                return f"shares {self._one_per} {mine} with {bookie_id}"
        return None

    def _told(self, usable: list[str], refused: str, topology: Topology, nobody: str) -> str:
        """For an error: number and names of bookies that can be used together, and the reasons against the others. ``nobody``:
        text if there are none."""
        together: dict[str, Located] = {}
        for bookie_id in usable:
            clash = self._clash(topology.bookies[bookie_id], together)
            if clash is None:
                together[bookie_id] = topology.bookies[bookie_id]
            else:
                refused += f"; {bookie_id} {clash}"
        words = [self._described(bookie_id, topology) for bookie_id in together]
        rule = f" on at least {self._rule.racks_min} racks" if self._rule.racks_min > 1 else ""
        return f"{len(together)} ({', '.join(words) or nobody}{refused}){rule and ', not enough' + rule}"

    def _described(self, bookie_id: str, topology: Topology) -> str:
        name = topology.bookies[bookie_id].rack
        rack = f" on rack {name!r}" if name or self._rule.racks_min > 1 else ""
        why = topology.quarantined.get(bookie_id)
        return f"{bookie_id}{rack}{f' ({why})' if why else ''}"

    # -- the choice

    def _fill(
        self,
        ring: list[str | None],
        usable: list[str],
        topology: Topology,
        write_quorum: int,
        random: Draws,
        bound: int,
    ) -> tuple[str, ...] | None:
        """Fill the empty places (None) of the ensemble ``ring``. Returns None if it would lack more than ``bound`` of what is
        required."""
        if ring.count(None) > len(usable):
            return None
        best: tuple[Lack, tuple[str, ...]] | None = None
        for attempt in range(_ATTEMPTS):
            # The rule is more important than the quarantine: later attempts ignore the quarantine.
            doubtful_too = attempt >= _ATTEMPTS // 2
            if doubtful_too and best is not None and not best[0].required:
                break
            order = _shuffled(usable, topology.free_bytes, random)
            chosen = self._fill_in_order(
                list(ring), order, {} if doubtful_too else topology.quarantined, topology, write_quorum
            )
            if chosen is None:
                continue
            lack = self.lack(topology, chosen, write_quorum)
            # Spread that is not required is no reason for a bookie in quarantine.
            counts = Lack(lack.required) if doubtful_too else lack
            if best is None or counts < best[0]:
                best = counts, chosen
            if counts == NOTHING:
                break
        if best is not None and best[0].required and self._rack_aware:
            order = sorted(_shuffled(usable, topology.free_bytes, random), key=topology.quarantined.__contains__)
            planned = self._fill_by_plan(ring, order, topology, write_quorum)
            if planned is not None and (lack := self.lack(topology, planned, write_quorum)).required < best[0].required:
                best = lack, planned
        return None if best is None or best[0].required > bound else best[1]

    def _fill_by_plan(
        self, ring: list[str | None], order: list[str], topology: Topology, write_quorum: int
    ) -> tuple[str, ...] | None:
        """Fill the empty places by the best choice of racks, among the first _PLANS_MAX, each with its first bookies in
        ``order``. None: there are too few racks, or none of these choices has bookies enough."""
        by_rack: dict[str, list[str]] = {}
        for bookie in order:
            by_rack.setdefault(topology.bookies[bookie].rack, []).append(bookie)
        values = [None if member is None else self._domain(topology, member) for member in ring]
        if len({*by_rack, *values} - {None}) < min(self._rule.racks_min, write_quorum):
            return None
        room, empty = {rack: len(bookies) for rack, bookies in by_rack.items()}, ring.count(None)

        def lack(racks: Sequence[str]) -> Lack:
            left = iter(racks)
            tried = [next(left) if member is None else value for member, value in zip(ring, values, strict=True)]
            return self._lack(tried, write_quorum, topology.writable_racks)

        plans = islice(product(sorted(by_rack), repeat=empty), _PLANS_MAX)
        fitting = (plan for plan in plans if all(number <= room[rack] for rack, number in Counter(plan).items()))
        best = min(fitting, key=lack, default=None)
        if best is None:
            return None
        chosen, racks = {rack: iter(bookies) for rack, bookies in by_rack.items()}, iter(best)
        return tuple(next(chosen[next(racks)]) if member is None else member for member in ring)

    def _fill_in_order(
        self,
        ring: list[str | None],
        order: list[str],
        last: Mapping[str, str],
        topology: Topology,
        write_quorum: int,
    ) -> tuple[str, ...] | None:
        """Fill the empty places with bookies in ``order``; bookies in ``last`` come after the others."""
        bookies = topology.bookies
        for place, member in enumerate(ring):
            if member is not None:
                continue
            chosen = {b: topology.located(b) for b in ring if b is not None}
            free = [b for b in order if b not in chosen and self._clash(bookies[b], chosen) is None]
            if not free:
                return None
            near = _neighbours(place, len(ring), write_quorum) if self._rack_aware else ()
            racks = [self._domain(topology, member) for i in near if (member := ring[i]) is not None]
            ring[place] = min(free, key=lambda b: (b in last, racks.count(bookies[b].rack)))
        return tuple(b for b in ring if b is not None)


def _neighbours(place: int, size: int, write_quorum: int) -> set[int]:
    return {(place + distance) % size for distance in range(1 - write_quorum, write_quorum)} - {place}


def _value(bookie: Located, label: str) -> str:
    """The value that must differ under ``one_per_<label>``; ``""`` if the bookie does not have that label."""
    return bookie.host if label == "host" else bookie.labels.get(label, "")


def _shuffled(bookies: list[str], weights: Mapping[str, int], random: Draws) -> list[str]:
    """A random order. Each bookie comes next with a chance in proportion to its weight (Efraimidis, Spirakis). A bookie without a
    weight has the average weight."""
    average = max(1.0, sum(weights.values()) / len(weights)) if weights else 1.0
    keys = {b: -math.log(1.0 - random.random()) / max(1.0, weights.get(b, average)) for b in bookies}
    return sorted(bookies, key=keys.__getitem__)

"""Choice of the bookies of an ensemble, and the free space of bookies.

Law: an ensemble has E (ensemble size) distinct bookies, registered and writable, and no two of them share a value that the policy
forbids. If there are too few, the error names every candidate and the reason of its refusal. Quarantined bookies come last: a
dead bookie stays registered until its session ends, but a bookie that has just restarted is better than none. ``Placement`` is
pure: topology and randomness are arguments.

The policies, by the value of the option ``placement``:

``random``
    Any bookies.
``rack_aware``
    The copies of each entry are on as many racks as possible. Fewer than ``racks_min`` racks are refused.
``one_per_host``, ``one_per_<label>``
    No two bookies of an ensemble on one host, or with the same value of a label.

Source: BookKeeper's ``DefaultEnsemblePlacementPolicy`` and ``RackawareEnsemblePlacementPolicy``, with opportunistic striping.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import msgspec

from bookspark.errors import ConfigurationError, NotEnoughBookiesError
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.client.network.connections import Answer, Connections
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind
from bookspark.store.wire.messages import BookieStatus

# -- Free space of bookies


_AGE_SECONDS = 60.0
_ANSWER_SECONDS = 1.0


class FreeSpace:
    """Free space of bookies, as one process knows it. Thread-safe.

    Law: a request delays a placement by at most ``_ANSWER_SECONDS``, and at most once in ``_AGE_SECONDS``. A bookie that does not
    answer counts with its last answer, or is left out.

    Source: BookKeeper's ``BookieInfoReader``.
    """

    def __init__(self, io: IoLoop, connections: Connections) -> None:
        self._io = io
        self._connections = connections
        self._lock = threading.RLock()
        self._asked_at: dict[str, float] = {}
        self._free_bytes: dict[str, int] = {}

    def of(self, bookie_ids: Collection[str]) -> dict[str, int]:
        """Bookie id → free bytes, for those of ``bookie_ids`` that ever answered. Asks bookies without a recent answer."""
        with self._lock:
            now = time.monotonic()
            old = [b for b in bookie_ids if self._asked_at.get(b, -_AGE_SECONDS) <= now - _AGE_SECONDS]
            self._asked_at.update(dict.fromkeys(old, now))
            self._free_bytes.update(self._ask(old))
            return {b: self._free_bytes[b] for b in bookie_ids if b in self._free_bytes}

    def _ask(self, bookie_ids: list[str]) -> dict[str, int]:
        answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        for bookie_id in bookie_ids:
            header = Header(Kind.STATUS, self._connections.next_request_id())
            put = partial(_put, answers, bookie_id)
            frame = control_frame(header)
            self._io.submit(self._connections.send, bookie_id, header.request_id, frame, put, _ANSWER_SECONDS)
        told: dict[str, int] = {}
        deadline = time.monotonic() + _ANSWER_SECONDS
        for _ in bookie_ids:
            try:
                bookie_id, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(answer.response, Positive):
                told[bookie_id] = msgspec.json.decode(answer.body, type=BookieStatus).free_bytes
        return told


def _put(answers: queue.SimpleQueue[tuple[str, Answer]], bookie_id: str, answer: Answer) -> None:
    answers.put((bookie_id, answer))


# -- Policies


_ONE_PER = "one_per_"
_ATTEMPTS = 10
"""Number of random orders to try. The choice is greedy; for a striped ensemble over few racks, another order may fit."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Knowledge about the bookies at one moment."""

    bookies: Mapping[str, BookieRegistration]
    """All registered bookies, by id, read-only ones too."""
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Bookie id → text for an error (remaining seconds and reason), for bookies in quarantine."""
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bookie id → free bytes. More free space means more frequent choice; a bookie without a value counts with the average."""

    def without_quarantined(self, ensemble: Sequence[str]) -> Topology:
        """The topology without quarantined bookies that are not in ``ensemble``."""
        known = {b: found for b, found in self.bookies.items() if b in ensemble or b not in self.quarantined}
        return replace(self, bookies=known)


class Placement:
    """One policy, with its options."""

    def __init__(self, name: str = "random", racks_min: int = 1) -> None:
        """``name``: the value of the option ``placement``. Raises ConfigurationError for an unknown policy."""
        self._rack_aware = name == "rack_aware"
        self._one_per = name.removeprefix(_ONE_PER) if name.startswith(_ONE_PER) else ""
        self._racks_min = racks_min
        if not (self._rack_aware or self._one_per or name == "random"):
            raise ConfigurationError(
                f"there is no placement {name!r}; known are random, rack_aware, one_per_host and one_per_<label>"
            )

    def choose_ensemble(
        self, topology: Topology, ensemble_size: int, write_quorum: int, random: Random, size_min: int | None = None
    ) -> tuple[str, ...]:
        """Choose the first ensemble of a ledger: ``ensemble_size`` bookies.

        If there are fewer, chooses as many as there are, down to ``size_min`` (opportunistic striping; None: ``ensemble_size``).
        Raises NotEnoughBookiesError.
        """
        usable, refused = self._usable(topology, {}, {})
        for size in range(ensemble_size, (size_min or ensemble_size) - 1, -1):
            chosen = self._fill([None] * size, usable, topology, write_quorum, random)
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
        random: Random,
    ) -> tuple[str, ...]:
        """Choose one bookie outside of ``ensemble`` for each of ``replaced``, in their order. Raises NotEnoughBookiesError."""
        staying = {b: topology.bookies.get(b) for b in ensemble if b not in replaced}
        usable, refused = self._usable(topology, dict.fromkeys(ensemble, "is in the ensemble already"), staying)
        ring = [None if bookie in replaced else bookie for bookie in ensemble]
        chosen = self._fill(ring, usable, topology, write_quorum, random)
        if chosen is None:
            failed = ", ".join(f"{b} ({topology.quarantined[b]})" if b in topology.quarantined else b for b in replaced)
            raise NotEnoughBookiesError(
                f"{failed} failed and {len(replaced)} other writable bookies are needed, there are "
                f"{self._told(usable, refused, topology, 'none')}; start more bookies"
            )
        new = dict(zip(ensemble, chosen, strict=True))
        return tuple(new[bookie] for bookie in replaced)

    def misplaced(
        self, topology: Topology, ensemble: Sequence[str], write_quorum: int, random: Random
    ) -> tuple[str, ...]:
        """Members of ``ensemble`` to replace for the sake of the policy. Empty if the policy is kept, or if there are no
        replacements.

        An ensemble with an unregistered member is left alone: nothing is known of that member.
        """
        if all(bookie in topology.bookies for bookie in ensemble):
            for members in self._in_the_way(ensemble, topology, write_quorum):
                with suppress(NotEnoughBookiesError):
                    self.choose_replacements(topology, ensemble, members, write_quorum, random)
                    return members
        return ()

    def _in_the_way(self, ensemble: Sequence[str], topology: Topology, write_quorum: int) -> Iterator[tuple[str, ...]]:
        """Groups of members of an ensemble that breaks the policy. Replacing one group may be enough."""
        if self._one_per:
            first_with: dict[str, str] = {}
            for bookie in ensemble:
                first_with.setdefault(_value(topology.bookies[bookie], self._one_per), bookie)
            others = tuple(bookie for bookie in ensemble if bookie not in first_with.values())
            if others:
                yield others
        elif not self._on_enough_racks(tuple(ensemble), topology, write_quorum):
            for bookie in ensemble:
                yield (bookie,)

    # -- candidates

    def _usable(
        self,
        topology: Topology,
        taken: Mapping[str, str],
        staying: Mapping[str, BookieRegistration | None],
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

    def _clash(self, candidate: BookieRegistration, others: Mapping[str, BookieRegistration | None]) -> str | None:
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
        together: dict[str, BookieRegistration] = {}
        for bookie_id in usable:
            clash = self._clash(topology.bookies[bookie_id], together)
            if clash is None:
                together[bookie_id] = topology.bookies[bookie_id]
            else:
                refused += f"; {bookie_id} {clash}"
        words = [self._described(bookie_id, topology) for bookie_id in together]
        rule = f" on at least {self._racks_min} racks" if self._rack_aware and self._racks_min > 1 else ""
        return f"{len(together)} ({', '.join(words) or nobody}{refused}){rule and ', not enough' + rule}"

    def _described(self, bookie_id: str, topology: Topology) -> str:
        rack = f" on rack {topology.bookies[bookie_id].rack!r}" if self._rack_aware else ""
        why = topology.quarantined.get(bookie_id)
        return f"{bookie_id}{rack}{f' ({why})' if why else ''}"

    # -- the choice

    def _fill(
        self, ring: list[str | None], usable: list[str], topology: Topology, write_quorum: int, random: Random
    ) -> tuple[str, ...] | None:
        """Fill the empty places (None) of the ensemble ``ring``. Returns None if the policy can't be kept."""
        if ring.count(None) > len(usable):
            return None
        for attempt in range(_ATTEMPTS):
            order = _shuffled(usable, topology.free_bytes, random)
            # Distinct racks are more important than the quarantine: the later attempts ignore the quarantine.
            last = topology.quarantined if attempt < _ATTEMPTS // 2 else {}
            chosen = self._fill_in_order(list(ring), order, last, topology, write_quorum)
            if chosen is not None:
                return chosen
        return None

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
            chosen = {b: bookies.get(b) for b in ring if b is not None}
            free = [b for b in order if b not in chosen and self._clash(bookies[b], chosen) is None]
            if not free:
                return None
            near = _neighbours(place, len(ring), write_quorum) if self._rack_aware else ()
            racks = [_rack(ring[i], topology) for i in near if ring[i] is not None]
            ring[place] = min(free, key=lambda b: (b in last, racks.count(bookies[b].rack)))
        ensemble = tuple(b for b in ring if b is not None)
        return ensemble if self._on_enough_racks(ensemble, topology, write_quorum) else None

    def _on_enough_racks(self, ensemble: tuple[str, ...], topology: Topology, write_quorum: int) -> bool:
        if not self._rack_aware or self._racks_min <= 1:
            return True
        twice = ensemble + ensemble
        return all(
            len({_rack(b, topology) for b in twice[start : start + write_quorum]}) >= min(self._racks_min, write_quorum)
            for start in range(len(ensemble))
        )


def _neighbours(place: int, size: int, write_quorum: int) -> set[int]:
    return {(place + distance) % size for distance in range(1 - write_quorum, write_quorum)} - {place}


def _rack(bookie_id: str | None, topology: Topology) -> str:
    """The bookie's rack. Bookies without a rack, or no longer registered, count as one rack, ``""``."""
    bookie = topology.bookies.get(bookie_id or "")
    return "" if bookie is None else bookie.rack


def _value(bookie: BookieRegistration, label: str) -> str:
    """The value that must differ under ``one_per_<label>``; ``""`` if the bookie does not have that label."""
    return bookie.host if label == "host" else bookie.labels.get(label, "")


def _shuffled(bookies: list[str], weights: Mapping[str, int], random: Random) -> list[str]:
    """A random order. Each bookie comes next with a chance in proportion to its weight (Efraimidis, Spirakis). A bookie without a
    weight has the average weight."""
    average = max(1.0, sum(weights.values()) / len(weights)) if weights else 1.0
    keys = {b: -math.log(1.0 - random.random()) / max(1.0, weights.get(b, average)) for b in bookies}
    return sorted(bookies, key=keys.__getitem__)

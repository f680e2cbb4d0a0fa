"""Choosing the bookies of an ensemble.

Law: an ensemble has E distinct bookies that are registered and writable; if there are not so many, the error names every
candidate and why it was refused. Pure: the candidates and the source of randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

from bookspark.metadata.store import BookieRegistration
from bookspark.protocol.errors import NotEnoughBookiesError


def choose_ensemble(
    candidates: Mapping[str, BookieRegistration], ensemble_size: int, random: Random
) -> tuple[str, ...]:
    """E bookies at random, as BookKeeper's default policy without a topology does. Raises NotEnoughBookiesError."""
    usable, refused = _usable(candidates, {})
    if len(usable) < ensemble_size:
        raise NotEnoughBookiesError(
            f"an ensemble of {ensemble_size} needs {ensemble_size} writable bookies, there are {len(usable)} "
            f"({', '.join(usable) or 'none is registered'}{refused}); start more bookies or create the ledger with a smaller "
            "ensemble_size"
        )
    return tuple(random.sample(usable, ensemble_size))


def choose_replacements(
    candidates: Mapping[str, BookieRegistration],
    ensemble: Collection[str],
    replaced: Sequence[str],
    quarantined: Collection[str],
    random: Random,
) -> tuple[str, ...]:
    """One bookie for each of ``replaced``, none of them in ``ensemble``. Raises NotEnoughBookiesError.

    ``quarantined``, bookies that could not be reached a moment ago, are chosen only if there are not enough others: a dead
    bookie stays registered until its session ends, but one that was just started again is better than none.
    """
    usable, refused = _usable(candidates, dict.fromkeys(ensemble, "is in the ensemble already"))
    if len(usable) < len(replaced):
        raise NotEnoughBookiesError(
            f"{', '.join(replaced)} failed and {len(replaced)} other writable bookies are needed, there are {len(usable)} "
            f"({', '.join(usable) or 'none'}{refused}); start more bookies"
        )
    random.shuffle(usable)
    usable.sort(key=lambda bookie_id: bookie_id in quarantined)
    return tuple(usable[: len(replaced)])


def _usable(candidates: Mapping[str, BookieRegistration], reasons: Mapping[str, str]) -> tuple[list[str], str]:
    """The ids that can be chosen, and why each other one can't."""
    usable, refused = [], ""
    for bookie_id, candidate in sorted(candidates.items()):
        reason = "is read-only" if candidate.read_only else reasons.get(bookie_id)
        if reason is None:
            usable.append(bookie_id)
        else:
            refused += f"; {bookie_id} {reason}"
    return usable, refused

"""Entries that a copying could not copy: which ids, to whom, and what each bookie answered.

Law: an entry is *lost* only if every bookie of its write set was reached, and each said that it has no such entry or lost its
copy, or gave bytes with a wrong digest. The bookies that the copies were for don't count, because they are known to lack them.
An entry is *not reached* if any other bookie could not be asked, is in limbo, or can't read now (an I/O error, as when it has no
file descriptor left): the next attempt may read it, so nothing final may be written about it.

Ids are told as ranges. Neighbours with the same answers make one range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from bookspark.errors import EntriesNotCopiedError
from bookspark.protocol.ledger.responses import Negative, Response, Unknown, UnknownReason
from bookspark.protocol.reading.answers import in_words
from bookspark.protocol.repair.underreplication_task import Missed

_TOLD_MAX = 1000
"""A message names at most this many ranges."""
_NOT_GIVEN = frozenset((UnknownReason.DIGEST_MISMATCH, UnknownReason.LOST))
"""What a bookie answers, or is found to answer, whose copy can't be read any more."""


class NotCopied(NamedTuple):
    """The entries ``first..last``, which ``targets`` did not get."""

    first: int
    last: int
    targets: tuple[str, ...]
    answers: Mapping[str, Response]
    """What each bookie answered: to the reads, or to the write if the entries were ``refused``."""
    refused: bool = False
    """The entries were read, or would have been, and the targets did not take them."""

    @property
    def unreached(self) -> tuple[str, ...]:
        """The bookies that may have the entries, and could not be asked or can't read them now."""
        if self.refused:
            return ()
        return tuple(b for b, answer in self.answers.items() if b not in self.targets and not is_not_given(answer))

    @property
    def lost(self) -> bool:
        """Was every bookie reached, and can none give them?"""
        return not self.refused and not self.unreached

    def missed(self) -> Missed:
        """The same, for the ledger's task."""
        words = {bookie: in_words({bookie: answer}).partition(": ")[2] for bookie, answer in self.answers.items()}
        return Missed(self.first, self.last, self.lost, self.unreached, words)

    def __str__(self) -> str:
        what = f"entry {self.first}" if self.first == self.last else f"entries {self.first}..{self.last}"
        verb = f"could not be copied to {', '.join(self.targets)}" if self.refused else "could not be read"
        return f"{what} {verb} ({in_words(self.answers)})"


def is_not_given(answer: Response) -> bool:
    """Was the bookie reached, and will it never give the entry: is the entry absent there, or the copy lost or damaged?"""
    return isinstance(answer, Negative) or (isinstance(answer, Unknown) and answer.reason in _NOT_GIVEN)


def joined(found: Iterable[NotCopied]) -> list[NotCopied]:
    """The same, ascending by id, with neighbours of the same answers as one range."""
    result: list[NotCopied] = []
    for one in sorted(found, key=lambda each: (each.targets, each.refused, each.first)):
        before = result[-1] if result else None
        if before is not None and before.last + 1 == one.first and _alike(before, one):
            result[-1] = before._replace(last=one.last)
        else:
            result.append(one)
    return sorted(result, key=lambda each: (each.first, each.last))


def _alike(one: NotCopied, other: NotCopied) -> bool:
    if (one.targets, one.refused) != (other.targets, other.refused) or one.answers.keys() != other.answers.keys():
        return False
    return all(_kind(answer) == _kind(other.answers[bookie]) for bookie, answer in one.answers.items())


def _kind(answer: Response) -> object:
    """The answer without its words, which may name an entry."""
    return answer.reason if isinstance(answer, Negative | Unknown) else type(answer)


def not_copied_error(ledger_id: int, found: Iterable[NotCopied]) -> EntriesNotCopiedError:
    """The error that names all of ``found``. Its ``entries`` are ``found``, joined."""
    entries = joined(found)
    told = "; ".join(str(one) for one in islice(entries, _TOLD_MAX))
    more = f"; and {len(entries) - _TOLD_MAX} more ranges" if len(entries) > _TOLD_MAX else ""
    hint = "no bookie gives them" if all(one.lost for one in entries) else "they are tried again"
    return EntriesNotCopiedError(f"ledger {ledger_id}: {told}{more}; {hint}", entries)

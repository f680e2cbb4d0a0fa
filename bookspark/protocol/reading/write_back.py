"""Writing one run of entries back during ledger recovery, and replacing the bookies that refuse it.

Law: the run counts as written once enough bookies of its write set have it. Bookies that refuse it are replaced only if there
would be too few copies without them, from the first entry of the run on. The changed ensemble stays here and goes into the
closing compare-and-set only (BookKeeper #2615): written earlier, it would send another recoverer to bookies that do not
hold the entries after the run.
"""

from __future__ import annotations

from bookspark.protocol.ledger.actions import Action, AddAnswered, ChooseBookies, ReadAnswered, SendAdd
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.quorum import Verdict
from bookspark.protocol.ledger.responses import Positive, Response


class WriteBack:
    """One run. ``copies`` is how many bookies have to have it; ``target`` is the ledger's metadata with the ensemble changes of
    this recovery."""

    __slots__ = ("_copies", "_last_add_confirmed", "_last_add_fully_replicated", "answers", "replaced", "run", "target")

    def __init__(
        self,
        run: ReadAnswered,
        target: LedgerMetadata,
        copies: int,
        last_add_confirmed: int,
        last_add_fully_replicated: int,
    ) -> None:
        self.run = run
        self.target = target
        self.answers: dict[str, Response] = {}
        self.replaced: tuple[str, ...] = ()
        """The bookies for which replacements are being chosen."""
        self._copies = copies
        self._last_add_confirmed = last_add_confirmed
        self._last_add_fully_replicated = last_add_fully_replicated

    def start(self) -> list[Action]:
        """Send the run to its write set."""
        return self._send(self._write_set())

    def concerns(self, event: AddAnswered) -> bool:
        """Is it an answer about this run, of a bookie that is to have it?"""
        return (event.first, event.last) == (self.run.first, self.run.last) and event.bookie in self._write_set()

    def heard(self, event: AddAnswered) -> None:
        """Take an answer in that concerns the run."""
        self.answers[event.bookie] = event.response

    def verdict(self) -> Verdict:
        """PRESENT: there are enough copies. UNKNOWN: other bookies are needed. PENDING: answers can still decide it."""
        positives = sum(isinstance(answer, Positive) for answer in self.answers.values())
        if positives >= self._copies:
            return Verdict.PRESENT
        refused = len(self.answers) - positives
        return Verdict.PENDING if refused <= self.target.write_quorum - self._copies else Verdict.UNKNOWN

    # -- bookies that refuse

    def choose(self) -> list[Action]:
        """Ask for bookies in place of all that have refused the run."""
        ensemble = self.target.last_fragment.ensemble
        refused = self._refused()
        self.replaced = tuple(bookie for bookie in ensemble if bookie in refused)
        return [ChooseBookies(ensemble, self.replaced)]

    def may_be_chosen(self, bookies: tuple[str, ...]) -> bool:
        """Is that one new bookie for each that is replaced?"""
        return replaces(bookies, self.replaced, self.target.last_fragment.ensemble)

    def chosen(self, bookies: tuple[str, ...]) -> list[Action]:
        """Send the run to ``bookies``, or choose again if others have refused it meanwhile."""
        if not self._refused() <= set(self.replaced):
            return self.choose()
        swap = dict(zip(self.replaced, bookies, strict=True))
        ensemble = tuple(swap.get(bookie, bookie) for bookie in self.target.last_fragment.ensemble)
        self.target = self.target.with_ensemble(self.run.first, ensemble)
        self.answers = {bookie: answer for bookie, answer in self.answers.items() if bookie not in swap}
        self.replaced = ()
        return self._send(bookies)

    def _refused(self) -> set[str]:
        return {bookie for bookie, answer in self.answers.items() if not isinstance(answer, Positive)}

    def _write_set(self) -> tuple[str, ...]:
        return self.target.write_set_of(self.run.first)

    def _send(self, bookies: tuple[str, ...]) -> list[Action]:
        lac, lafr = self._last_add_confirmed, self._last_add_fully_replicated
        return [SendAdd(bookies, self.run.first, self.run.last, lac, self.run.entries, lafr)]


def replaces(chosen: tuple[str, ...], replaced: tuple[str, ...], ensemble: tuple[str, ...]) -> bool:
    """Are that as many bookies as are ``replaced``, all different and none of them in the ensemble?"""
    together = {*chosen, *ensemble}
    return len(chosen) == len(replaced) and len(together) == len(chosen) + len(ensemble)

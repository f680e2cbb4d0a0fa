"""The laws that ``boots`` checks a bookie against.

Law: the bookie's answers are compared with a few sets kept beside it. An entry that may be lost is answered as Unknown, lost or
not; a ledger in limbo is answered as in limbo. A fence holds. The writer of an unfenced ledger may append if the ledger's last
fragment names the bookie; while its fence may be lost, it may append in no other case.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookspark.protocol.bookie.bookie_boot import answer_unsure
from bookspark.protocol.bookie.bookie_ledger import answer_absent, answer_last_add_confirmed
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Negative, Positive, UnknownReason
from bookspark.store.bookie.disk.control_state import ControlState, Record
from bookspark.store.bookie.disk.packed_dict import ascending
from tests.store.bookie.boot_directories import Directory, Entry

ME = "bookie-1"
_NO_ENTRYS = 99
"""An id that no entry has in these tests."""


class BootLaws:
    """The true state of a bookie, to compare with its answers."""

    directories: list[Directory]
    used: list[Directory]
    key: bytes
    state: ControlState
    metadata: dict[int, LedgerMetadata]
    acked: set[Entry]
    fenced: set[int]
    confirmed: dict[int, int]
    """The highest acknowledged explicit LAC (last add confirmed) of each ledger that must keep it."""
    told: dict[int, int]
    """The highest explicit LAC requested for each ledger."""
    may_lack: set[int]
    """Ledgers that may have lost entries since their last healing, whether they did or not."""

    def is_held(self, entry: Entry) -> bool:
        return any(entry in directory.entries for directory in self.used)

    def check(self) -> None:
        state = self.state
        for ledger_id, entry_id in sorted(self.acked):
            if not self.is_held((ledger_id, entry_id)):
                unsure = state.unsure_of(ledger_id)
                said = answer_absent(state.ledgers.look(ledger_id), entry_id, storage_damaged=False, boot_unsure=unsure)
                assert not isinstance(said, Negative), f"denied: {entry_id} of {ledger_id} was acknowledged"
        for ledger_id in sorted(self.may_lack):
            ledger, unsure = state.ledgers.look(ledger_id), state.unsure_of(ledger_id)
            said = answer_absent(ledger, _NO_ENTRYS, storage_damaged=False, boot_unsure=unsure)
            assert not isinstance(said, Negative), f"denied: what {ledger_id} may have lost"
            in_limbo = ledger is not None and ledger.limbo
            assert not in_limbo or said.reason is UnknownReason.LIMBO, f"in limbo, and says of {ledger_id}: {said}"
            if ledger is not None and not self.metadata[ledger_id].closed:
                lac = answer_last_add_confirmed(ledger)
                assert not isinstance(lac, Positive), f"answers: the LAC of {ledger_id}, which may be lost"
        for ledger_id in sorted(self.fenced):
            ledger = state.known(ledger_id)
            decision = ledger.admit_add(self.key, False)
            sure = answer_unsure(ME, self.metadata[ledger_id]) if decision.ask_metadata else decision.response
            assert not isinstance(sure, Positive), f"forgotten: the fence of {ledger_id}"
            recovery = ledger.admit_add(self.key, True).response
            assert isinstance(recovery, Positive), f"a fence that stops who recovers {ledger_id}: {recovery}"
        for ledger_id, metadata in sorted(self.metadata.items()):
            ledger = state.known(ledger_id)
            decision = ledger.admit_add(self.key, False)
            sure = answer_unsure(ME, metadata) if decision.ask_metadata else decision.response
            named = ME in metadata.last_fragment.ensemble
            if metadata.state is LedgerState.OPEN and not ledger.fenced and (named or decision.ask_metadata):
                assert isinstance(sure, Positive) == named, f"the writer of {ledger_id} is told {sure}"
            known = state.ledgers.look(ledger_id)
            # No entry carries an LAC here, so the next rewrite writes the explicit LAC.
            lac = -1 if known is None else known.last_add_confirmed
            assert known is None or lac == known.explicit_last_add_confirmed, f"half an LAC of {ledger_id}: {known}"
            assert lac <= self.told.get(ledger_id, -1), f"an LAC that nobody told: {lac} of {ledger_id}"
            if len(self.used) == len(self.directories) and not (known is not None and known.limbo):
                assert lac >= self.confirmed.get(ledger_id, -1), f"forgotten: an LAC of {ledger_id}: {lac}"


def superseded(missed: set[Record], read: Sequence[list[Record]]) -> set[Record]:
    """The missed records, if they say more than the remaining records; else an empty set."""
    with_them, without = ControlState(), ControlState()
    for records in read:
        without.replay_at_boot(records)
        with_them.replay_at_boot(records)
    with_them.replay_at_boot(missed)
    return set() if _said(with_them) == _said(without) else missed


def _said(state: ControlState) -> dict[int, tuple[object, ...]]:
    """The known facts of each ledger except doubts: the metadata ends these, and no record says so."""
    ledgers = {ledger_id: state.ledgers.look(ledger_id) for ledger_id in ascending(state.ledgers.ids)}
    return {
        ledger_id: (known.master_key, known.fenced, known.last_add_confirmed, known.lost)
        for ledger_id, known in ledgers.items()
        if known is not None
    }

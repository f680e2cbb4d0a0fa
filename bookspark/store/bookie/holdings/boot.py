"""Boot: reading control logs, checkpoints and the logs' tails when a bookie starts.

Law: after a boot the bookie holds every synced entry, and each unsynced batch whole or not at all. All of it is durable before
anything rests on it. A copy lost earlier does not return to the index with a checkpoint, but it does if its bytes are read here
and are good. A row of the checkpoint without its bytes in a log is lost now.

A damaged control log may have held a fence. Other directories' copies replace it if they have all its records. If they may not,
the boot is lossy and every fence unsure (``protocol.bookie.control_copies``). Without any whole copy the bookie stays down, until
an operator accepts that loss. An unreadable directory, or one whose control log can't be read as a whole and has no such copy, is
left out if another directory has a whole copy. (One that was just added or emptied has none.) Its entries are then unknown and
the boot is lossy (``protocol.bookie.bookie_boot``), as with a directory whose reach went back (``protocol.bookie.reach``). So are
entries in those bytes of a log that its disk can't read: each boot reads them again, until all entries are back, or an operator
has accepted their loss.
"""

from __future__ import annotations

import errno
import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import (
    NO_LOSSY_BOOT,
    HealedNoted,
    LossyBootNoted,
    MarksTold,
    in_limbo,
    mark_above,
    marks_together,
)
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, LimboNoted, MasterKeyNoted
from bookspark.protocol.bookie.control_copies import (
    NUMBERS_LEFT_OUT,
    ControlCopy,
    CopiesTell,
    judge_copies,
    left_behind,
    used_apart,
)
from bookspark.protocol.bookie.reach import NOWHERE, Reach, went_back
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, with_ranges
from bookspark.store.bookie.disk.checkpoint import Checkpoint
from bookspark.store.bookie.disk.control_log import NOTE_NAME, ControlScan, encode_records, live_bytes
from bookspark.store.bookie.disk.control_state import (
    ControlState,
    LogsNoted,
    LossAccepted,
    Record,
    WriteNumbered,
    without_void,
)
from bookspark.store.bookie.disk.index import ROW_BYTES, ChangingRows, Index, location, log_of
from bookspark.store.bookie.disk.log_scan import FILLER_LEDGER
from bookspark.store.bookie.disk.rewritten_block import Block, runs
from bookspark.store.bookie.disk.rewritten_log import BadPart, scan_rewritten
from bookspark.store.bookie.disk.unclean_marker import Lost
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.wire.logged_frames import LoggedFrame, LoggedFrames
from bookspark.support.plain_text import bytes_text

_LOST_LOGS_MAX = 1 << 16
"""An unreadable directory may hold fewer than this number of logs above all known numbers."""

_MANY_OBJECTS = 100_000
"""The collector walks fewer objects in about a millisecond."""

_LEDGERS_SEEN_MAX = 1 << 14
_RUN_MIN = 4
"""A run of at least this number of frames of one ledger is indexed at once."""
_LOST_A_WRITE = 1 << 14
"""Records of losses in one write: each ledger concerned is an object until then."""

Found = TypeVar("Found")

log = logging.getLogger(__name__)


def read_directories(holdings: Holdings, noted: Mapping[str, Reach], accepted_by: str = "") -> None:
    """Read the directories of ``holdings``, which is empty so far. ``noted``: the known reach of each directory, by its path.
    ``accepted_by``: the operator who accepts that no control log is whole, or "". Raises StorageError."""
    live = holdings.live
    in_each(live, LogDirectory.prepare)
    with _collector_paused():
        scans = in_each(live, lambda directory: directory.control.scan())
        if not accepted_by:
            scans = _readable(live, scans, [one.path for one in holdings.directories if one not in live])
        content = _replay_control_logs(scans, holdings.control, accepted_by)
        scanned = dict(scans)
        number = holdings.control.write_number
        in_each(live, lambda directory: directory.begin_control_log(content, scanned[directory], number))
        live_size = live_bytes(holdings.control)
        for directory in live:
            directory.control.note_live(live_size)
        filling = _Filling(holdings.control, holdings.index, holdings.back)
        in_each(live, lambda directory: filling.recover(directory, scanned[directory].logs))
        holdings.next_log = 1 + _highest_log(holdings)
    older = _older_copies(live, scanned, noted)
    in_each(live, lambda directory: directory.lose(older[directory], Lost.FENCES) if directory in older else None)
    if older:
        holdings.control.lose_fences()
    holdings.unreadable = [directory.path for directory in holdings.directories if directory not in live]
    without = [directory.number for directory in holdings.directories if directory not in live]
    in_part = [directory.number for directory in live if directory.unread]
    holdings.absent_directories = sum(1 << number for number in (*without, *in_part))
    unread = {0, *(entry_log.number for directory in live for entry_log in directory.unread)}
    accepted = holdings.control.accepted
    holdings.control.accepted = {number: accepted[number] for number in accepted.keys() & unread}
    if without:
        holdings.directories[:] = live
        holdings.next_log += _LOST_LOGS_MAX
    if without or older:
        holdings.control.write_number += NUMBERS_LEFT_OUT
    for directory in older:
        holdings.next_log = max(holdings.next_log, 1 + log_of(noted[directory.path].location))
    for directory in live:
        for stored in directory.stored:
            other, _ = holdings.logs.setdefault(stored.number, (directory, stored))
            if other is not directory:
                raise StorageError(
                    f"{other.path} and {directory.path} both have a log {stored.number:08x}: each was used without the other. "
                    "Nothing is lost. Empty one of them and allow that by bookspark "
                    "cookie fix: what it held is copied back from other bookies"
                )
    full = [
        scanned[directory].copy._replace(directory=directory.number) for directory in live if directory.control_behind
    ]
    without += left_behind(full, holdings.control.write_number)
    for directory in live:
        directory.note_without([number for number in without if number != directory.number])
    _note_lost_places(holdings)


def _readable(
    live: list[LogDirectory], scans: list[tuple[LogDirectory, ControlScan]], away: Sequence[str]
) -> list[tuple[LogDirectory, ControlScan]]:
    """The scans that the boot may rest on. A control log that may be whole but for its disk (``_unread``) is replaced where the
    whole copies of other directories have all its writes; otherwise its directory is left out for now. ``away``: the paths of
    directories that can't be read. Raises StorageError if no directory has a whole copy."""
    copies = _copies(scans)
    tell = judge_copies(copies)
    if tell is CopiesTell.NOTHING or (away and not copies):
        raise StorageError(_why_down(scans, away))
    if tell is CopiesTell.ALL:
        return scans
    scanned = dict(scans)

    def refuse_unread(directory: LogDirectory) -> ControlScan:
        if unread := _unread(directory, scanned[directory]):
            raise OSError(errno.EIO, unread)
        return scanned[directory]

    return in_each(live, refuse_unread)


def _why_down(scans: Iterable[tuple[LogDirectory, ControlScan]], away: Sequence[str]) -> str:
    """Why no boot may rest on these scans, with the remedy for each cause: only an operator's word gives up what may be whole."""
    unread, damaged = [f"{path} can't be read" for path in away], []
    for directory, scan in scans:
        if what := _unread(directory, scan):
            unread.append(what)
        elif _copy_of(directory, scan) is not None:
            how = f"is damaged at byte {scan.end}, or older than its note" if scan.present else "is missing"
            damaged.append(f"{directory.control.path} {how}")
    remedies = ["start it again once the disk, or a copy of it, gives these bytes"] if unread else []
    if damaged:
        remedies.append("put back the file as it was when the bookie ended (an older one lacks fences)")
    last = "bookspark bookie accept-loss goes on with the entries, and takes no fence for sure"
    if away:
        last = f"put an empty directory in the place of {', '.join(away)} and allow that by bookspark cookie fix"
    return (
        f"{', and '.join([*unread, *damaged])}, and no other directory has a whole copy: a fence may lie there, so this bookie "
        f"stays down. Nothing is given up yet: {', or '.join(remedies)}. If that is impossible for good, {last}"
    )


def _unread(directory: LogDirectory, scan: ControlScan) -> str:
    """The bytes, in words, that the disk can't read and with which the control log may be whole; "": no such bytes."""
    if scan.unread:
        ranges = with_ranges(NO_RANGES, [(start, end - 1) for start, end in scan.unread])
        return f"{directory.control.path}: the disk can't read {bytes_text(ranges)}"
    if scan.note_unread:
        return (
            f"{directory.path}/{NOTE_NAME}: the disk can't read it, so the bad record of {directory.control.path} at byte "
            f"{scan.end} may be damage or a torn write"
        )
    return ""


def _copies(scans: Iterable[tuple[LogDirectory, ControlScan]]) -> list[ControlCopy]:
    return [copy for directory, scan in scans if (copy := _copy_of(directory, scan)) is not None]


def _older_copies(
    live: Sequence[LogDirectory], scans: Mapping[LogDirectory, ControlScan], noted: Mapping[str, Reach]
) -> dict[LogDirectory, str]:
    """Directories whose reach is below the noted reach, each with the reason in words."""
    older: dict[LogDirectory, str] = {}
    for directory in live:
        before, scan = noted.get(directory.path, NOWHERE), scans[directory]
        # A damaged control log is handled already.
        writes = before.writes if scan.damaged else scan.copy.reaches or 0
        if scan.present and went_back(Reach(writes, directory.reach().location), before):
            older[directory] = f"{directory.path} is an older copy of itself, and lacks what came since"
    return older


def _highest_log(holdings: Holdings) -> int:
    lost = (log_of(where) for wheres in holdings.control.lost_copies.values() for where in wheres)
    numbers = [stored.number for directory in holdings.live for stored in directory.stored]
    return max((*lost, *numbers, *(directory.highest_log for directory in holdings.live)), default=0)


def _note_lost_places(holdings: Holdings) -> None:
    """Remove rows without their bytes from the index, and note them durably: after the next checkpoint no other record names
    them. A crash meanwhile leaves the old checkpoint, so the next boot repeats all of it."""
    gone = {number: start for directory in holdings.live for number, start in directory.gone.items()}
    found = holdings.lost_at_boot
    for _ in holdings.lose_at_boot(gone) if gone else ():
        if len(found) >= _LOST_A_WRITE:
            note_in_each(holdings.live, holdings.control, found)
            found.clear()
            holdings.ledgers.rest_all()
    if found:
        note_in_each(holdings.live, holdings.control, found)
        found.clear()


def note_in_each(directories: list[LogDirectory], state: ControlState, records: Sequence[Record]) -> None:
    """Append ``records`` durably to the control log of each directory, at the boot. A failed directory is removed from
    ``directories``. A directory without room only counts as full: its copy is known to be behind. Raises StorageError if no
    directory took the records."""
    number = state.next_write()
    content = encode_records((WriteNumbered(number), *records))
    took = in_each(directories, lambda directory: directory.append_at_boot(content, number))
    if not any(taken for _, taken in took):
        paths = ", ".join(directory.path for directory, _ in took)
        raise StorageError(f"{paths}: No space left on device for the results of the boot; free some space there")


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Switch off Python's cyclic garbage collector, which would take half of the time: a boot makes millions of objects and no
    cycles. Afterwards the collector treats them as old. After a boot with few objects the collector is left alone: ``freeze``
    sets its counts to 0, so a process that opens one bookie after the other would never collect the old bookies."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _MANY_OBJECTS:
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def in_each(directories: list[LogDirectory], act: Callable[[LogDirectory], Found]) -> list[tuple[LogDirectory, Found]]:
    """Call ``act`` for each directory and return the results. A directory for which it raises OSError is removed from
    ``directories``. Raises StorageError if none is left."""
    found: list[tuple[LogDirectory, Found]] = []
    for directory in list(directories):
        try:
            found.append((directory, act(directory)))
        except OSError as error:
            log.error("%s can't be used: %s; check the disk. Its contents are unknown", directory.path, error)
            directories.remove(directory)
            if not directories:
                raise StorageError(
                    f"the bookie's directories can't be read, the last one was {directory.path}: {error}; check the disk and its "
                    "rights"
                ) from error
    return found


def _replay_control_logs(
    scans: Sequence[tuple[LogDirectory, ControlScan]], state: ControlState, accepted_by: str
) -> list[bytes] | None:
    """Fill ``state`` with the union of all control logs. Returns the encoded records that every directory needs; None if every
    directory has them."""
    copies = [(directory, scan, copy) for directory, scan in scans if (copy := _copy_of(directory, scan)) is not None]
    tell = judge_copies(copy for _, _, copy in copies)
    for records in without_void([scan.records for _, scan in scans]):
        state.replay_at_boot(records)
    # A directory that never had a control log, just added or emptied, says nothing of lossy boots.
    _join_marks([scan.records for _, scan, _ in copies], state)
    state.write_number = max((max(copy.complete_to, copy.reaches or 0) for _, _, copy in copies), default=0)
    if tell is not CopiesTell.ALL:
        # Without a whole copy nothing says how far the lost records went.
        state.write_number += NUMBERS_LEFT_OUT if tell is CopiesTell.NOTHING else 1
        state.mark = mark_above(state.mark, chain.from_iterable(scan.records for _, scan in scans))
        for directory, scan, copy in copies:
            unread = _unread(directory, scan)
            if unread or tell is CopiesTell.NOTHING:
                state.replay_at_boot([LossAccepted(0, accepted_by, [])])
            if not copy.whole:
                what = unread or f"{directory.control.path} is {'damaged' if scan.present else 'missing'}"
                directory.lose(f"{what}, and the other directories may lack what it had", Lost.FENCES)
    apart = used_apart(copy for _, _, copy in copies)
    for directory, _, copy in copies:
        if copy.directory in apart:
            directory.lose(f"{directory.path} was used without other directories, and they without it")
    if any(directory.marker.lost is Lost.FENCES for directory, _ in scans):
        state.lose_fences()
    elif tell is CopiesTell.ALL and all(copy.whole for _, _, copy in copies) and _are_settled(scans):
        return None
    return list(map(encode_records, state.records()))


def _join_marks(copies: Sequence[list[Record]], state: ControlState) -> None:
    told = [_marks_told(records) for records in copies]
    if len(set(told)) <= 1:
        return
    state.mark, state.healed, not_healed = marks_together(told)
    for number in not_healed:
        for ledger_id in sorted(in_limbo(copies[number])):
            if (ledger := state.ledgers.look(ledger_id)) is not None and not ledger.limbo:
                # Another directory ended a limbo of that number.
                state.replay_at_boot([LimboNoted(ledger_id, state.mark.boot)])


def _marks_told(records: Iterable[Record]) -> MarksTold:
    mark, healed = NO_LOSSY_BOOT, HealedNoted(0)
    for record in records:
        if isinstance(record, LossyBootNoted):
            mark = max(mark, record)
        elif isinstance(record, HealedNoted):
            healed = max(healed, record)
    return MarksTold(mark, healed)


def _copy_of(directory: LogDirectory, scan: ControlScan) -> ControlCopy | None:
    """A directory's control log as a copy; None if the directory never had a control log."""
    if scan.present or scan.damaged:
        return scan.copy._replace(directory=directory.number)
    if not directory.holds_logs:
        return None
    return ControlCopy(whole=False, complete_to=0, reaches=None, directory=directory.number)


def _are_settled(scans: Sequence[tuple[LogDirectory, ControlScan]]) -> bool:
    _, other = scans[0]
    return all(
        scan.present
        and scan.end == scan.size == scan.noted
        and scan.records == other.records
        and scan.copy == other.copy
        for _, scan in scans
    )


class _Filling:
    """Fills the index, and the LAC (last add confirmed) of each ledger, during reading. It keeps a bounded number of ledgers
    besides, so a boot takes little more memory than the index."""

    def __init__(self, state: ControlState, index: Index, back: dict[tuple[int, int], None]) -> None:
        """``back``: gets the copies noted as lost that are good, as in ``Holdings``."""
        self._state = state
        self._index = index
        self._back = back
        self._seen: dict[int, tuple[BookieLedger, ChangingRows]] = {}
        self._logs: set[int] = set()

    def recover(self, directory: LogDirectory, noted: LogsNoted | None) -> None:
        """Read a directory. After a failure its rows leave the index again. Raises OSError."""
        self._logs = set()
        try:
            directory.recover(noted, self)
        except OSError:
            self._seen.clear()
            for _ in self._index.remove_at_boot(dict.fromkeys(self._logs, 0)):
                pass
            raise

    def take_checkpoint(self, directory: LogDirectory, checkpoint: Checkpoint) -> None:
        """Index the checkpoint of a directory. Raises OSError."""
        state, index = self._state, self._index
        state.decisions = max(state.decisions, checkpoint.decisions)
        named: set[int] = set()
        for block in checkpoint.blocks():
            state.note(block.ids, block.confirmed, block.replicated, checkpoint.decisions)
            named |= block.logs()
            self._logs |= named
            start = 0
            for ledger_id, count in zip(block.ids, block.counts, strict=True):
                rows_of_ledger = block.rows[start : (start := start + ROW_BYTES * count)]
                if state.decided and state.is_void(ledger_id, checkpoint.decisions):
                    index.take_anew(ledger_id)
                    continue
                index.put(ledger_id, rows_of_ledger)
                for where in state.lost_copies.get(ledger_id, ()):
                    if (rows := index.changing(ledger_id)) is not None:
                        rows.remove(where, where)
        directory.look_for_named(named)

    def take_rewritten(self, directory: LogDirectory) -> None:
        """Index every rewritten log of a directory whose checkpoint is lost. Raises OSError."""
        for rewritten in directory.rewritten.values():
            self._logs.add(rewritten.number)
            for found in scan_rewritten(directory.file_system, rewritten.path):
                if isinstance(found, BadPart):
                    directory.lose(f"{rewritten.path} is damaged")
                    continue
                block, content = found
                if self._is_void(block):
                    continue
                ledger, rows = self._of(block)
                where = location(rewritten.number, block.position)
                for first, last in runs(memoryview(content), block):
                    rows.insert(first, last, where, block.size)
                self._read_well(ledger.ledger_id, where)

    def taking(self, log: int) -> Callable[[LoggedFrames], None]:
        self._logs.add(log)
        start, seen, lost_copies = location(log, 0), self._seen, self._state.lost_copies
        decided = self._state.decided

        def take(frames: LoggedFrames) -> None:
            for run in frames.by_ledger():
                ledger_id = run.ledger_id[0]
                apart = ledger_id == FILLER_LEDGER or ledger_id in lost_copies or ledger_id in decided
                if len(run.size) < _RUN_MIN or apart:
                    for frame in run.each():
                        take_one(frame)
                    continue
                ledger, rows = seen.get(ledger_id) or self._of(next(run.each()))
                ledger.note(max(run.last_add_confirmed), max(run.last_add_fully_replicated))
                wheres = [start | position for position in run.position]
                rows.extend(run.first_entry_id, run.last_entry_id, wheres, run.size)

        def take_one(frame: LoggedFrame) -> None:
            position, size, ledger_id, first, last, confirmed, replicated, _ = frame
            if decided and self._is_void(frame):
                return
            known = seen.get(ledger_id)
            if known is not None:
                known[0].note(confirmed, replicated)
            elif ledger_id == FILLER_LEDGER:
                return
            else:
                known = self._of(frame)
            known[1].insert(first, last, start | position, size)
            if ledger_id in lost_copies:
                self._read_well(ledger_id, start | position)

        return take

    def logs_of_losses(self) -> set[int]:
        return {log_of(where) for copies in self._state.lost_copies.values() for where in copies}

    def _is_void(self, found: LoggedFrame | Block) -> bool:
        """Do the rows belong to another master key than the metadata's?"""
        decided = self._state.decided.get(found.ledger_id)
        return decided is not None and found.master_key != decided.master_key

    def _read_well(self, ledger_id: int, where: int) -> None:
        if where in self._state.lost_copies.get(ledger_id, ()):
            self._back[ledger_id, where] = None

    def _of(self, found: LoggedFrame | Block) -> tuple[BookieLedger, ChangingRows]:
        """Note the facts of a batch header; return its ledger and rows."""
        if len(self._seen) >= _LEDGERS_SEEN_MAX:
            self._seen.clear()
            self._state.ledgers.rest_all()
        ledger = self._state.of(found.ledger_id)
        if ledger.master_key is None:
            ledger.replay(MasterKeyNoted(found.ledger_id, found.master_key))
        ledger.note(found.last_add_confirmed, found.last_add_fully_replicated)
        known = self._seen[found.ledger_id] = ledger, self._index.of(found.ledger_id)
        return known

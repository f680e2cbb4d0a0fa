"""Troubles of one bookie, from its own status or its absence.

Law: a read-only bookie has one cause here: a disk, an order, or a change of the cluster.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from shlex import quote

from bookspark.operations.why.facts import Answer, Facts, Severity
from bookspark.operations.why.words import duration, named
from bookspark.protocol.changes.safety import left_over
from bookspark.store.wire.messages import BookieStatus
from bookspark.support.plain_text import counted, size_text

_REFUSED = os.strerror(errno.ECONNREFUSED)
SLOW_SYNC_SECONDS = 0.5
"""Slower syncs of a disk delay every writer."""
START = "bookspark job bookies"
"""Prints the path of the job that starts bookies, for spark-submit."""


def of_bookie(facts: Facts, name: str, status: BookieStatus) -> Iterator[Answer]:
    """Every trouble in the bookie's status."""
    for path, why in sorted(status.failed_directories.items()):
        yield Answer(
            "failed-directory",
            name,
            f"directory {path} of bookie {name} has failed",
            (
                why,
                f"what it held is lost there: entries of {counted(status.lacking_ledgers, 'ledger')}, not back yet",
            ),
            "check the disk; put an empty one in its place",
            f"bookspark cluster apply --replace-disk {quote(f'{name}={path}')}",
        )
    for path, why in sorted(status.full_directories.items()):
        if path not in status.failed_directories:
            yield full_disk(name, path, why, status)
    for path, seconds in sorted(status.sync_seconds.items()):
        if seconds > SLOW_SYNC_SECONDS:
            yield _slow_disk(name, path, seconds, status)
    if ordered(status):
        yield by_order(facts, name)
    yield from _healing(facts, name, status)
    for path in status.unread_logs:
        if status.healed_boot == status.lossy_boot and not facts.lost_records:
            remedy = "no bookie has all that lies there: check the disk; if it never reads it again, stop the bookie and say so"
            command = f"bookspark bookie accept-loss {' '.join(map(quote, status.directories))}"
        else:
            remedy = "check the disk; the entries are copied back from other bookies, and a start reads them again"
            command = f"bookspark bookie status {name}"
        yield Answer(
            "unread-log",
            name,
            f"bookie {name} does not know some of its entries: its disk can't read all of {path}",
            (f"{status.limbo_ledgers:,} ledgers are in limbo, and no entry is denied meanwhile",),
            remedy,
            command,
        )
    if status.lacking_ledgers and not status.failed_directories:
        damaged = [f"{counted(status.lost_copies, 'copy')} damaged since its start"] if status.lost_copies else []
        lost = sum(name in one.bookies and one.entries_lost for one in facts.tasks)
        yield Answer(
            "rot",
            name,
            f"bookie {name} lost copies of entries of {counted(status.lacking_ledgers, 'ledger')}, and not all are back",
            (
                *damaged,
                *(f"{count:,} reads of {path} failed" for path, count in status.read_errors.items()),
                *([f"no bookie gives entries of {counted(lost, 'ledger')}"] if lost else []),
            ),
            "check the disk"
            if lost >= status.lacking_ledgers
            else f"autorecovery brings {'the others' if lost else 'them'} back; check the disk",
            "bookspark autorecovery trigger",
        )
    elif status.read_errors and not status.failed_directories:
        yield Answer(
            "read-errors",
            name,
            f"{counted(status.unread_copies, 'copy')} of bookie {name} can't be read now"
            if status.unread_copies
            else f"a disk of bookie {name} could not read what it holds for a while",
            tuple(f"{path}: {count:,} reads failed since the start" for path, count in status.read_errors.items()),
            "check the disk; nothing is lost: what can't be read is read again, and autorecovery makes copies meanwhile"
            if status.unread_copies
            else "check the disk; nothing was lost, and it can be read again",
            f"bookspark bookie status {name}",
        )
    if status.stops_in_seconds is not None:
        yield Answer(
            "no-keeper",
            name,
            f"nobody looks after bookie {name}: it stops in {duration(status.stops_in_seconds)}",
            ("the job that started it has ended, or can't reach it",),
            f"start the job of the bookies again: spark-submit … $({START})",
            START,
        )
    if status.collection is not None and status.collection.problem:
        yield Answer(
            "collection",
            name,
            f"bookie {name} could not finish its last collection, so deleted ledgers keep their space",
            (status.collection.problem,),
            "mend what it names, and collect again",
            f"bookspark bookie collect {name}",
        )


def full_disk(name: str, path: str, why: str, status: BookieStatus) -> Answer:
    left = "the bookie is read-only" if status.read_only else "its other directories take the new entries"
    return Answer(
        "disk-full",
        name,
        f"directory {path} of bookie {name} does not take every add",
        (why, f"{size_text(status.free_bytes)} are free in all its directories; {left}"),
        "delete or truncate what is not wanted any more and collect; or add a bookie, and `bookspark cluster apply --balance`",
        f"bookspark bookie collect {name}",
    )


def _slow_disk(name: str, path: str, seconds: float, status: BookieStatus) -> Answer:
    left = (
        "it is read-only, so no new ledger is written there"
        if status.read_only
        else "every add that its writers wait for waits for that"
    )
    return Answer(
        "slow-disk",
        name,
        f"the disk of {path} of bookie {name} takes {seconds:.1f} s for a sync",
        (left,),
        "let its writers leave it, then check the disk, and what else uses it; afterwards "
        f"`bookspark bookie read-only {name} off`",
        f"bookspark bookie status {name}" if status.read_only else f"bookspark bookie read-only {name} on",
    )


def ordered(status: BookieStatus) -> bool:
    """Was the bookie ordered to be read-only? Any reason that is not a full directory's is an order."""
    return status.read_only and bool(set(status.reasons) - set(status.full_directories.values()))


def by_order(facts: Facts, name: str) -> Answer:
    if facts.change is not None and name in facts.change.progress.quieted:
        return Answer(
            "read-only-by-change",
            name,
            f"bookie {name} is read-only for the change of the cluster that is under way",
            ("the change made it so, and takes it back at its end",),
            "let the change go on, or give it up: `bookspark cluster give-up`",
            "bookspark cluster status",
            Severity.UNDER_WAY,
        )
    status = facts.cluster.statuses.get(name)
    left = status is not None and status.read_only_by_change
    who = "a change of the cluster that is over left it" if left else "an operator switched it to"
    return Answer(
        "read-only-by-order",
        name,
        f"bookie {name} is read-only by order",
        (f"{who} read-only; that holds over restarts",),
        "take the order back when the bookie is to take new entries",
        f"bookspark bookie read-only {name} off",
    )


def _healing(facts: Facts, name: str, status: BookieStatus) -> Iterator[Answer]:
    if status.lossy_boot == status.healed_boot:
        return
    healing = status.healing
    causes = [f"its lossy boot {status.lossy_boot} lost entries; {counted(status.limbo_ledgers, 'ledger')} in limbo"]
    if healing is None:
        yield Answer(
            "limbo",
            name,
            f"bookie {name} lost entries at a boot, and does not heal itself",
            tuple(causes),
            "let it heal: start it again with the option heal_lossy_boots",
            f"bookspark bookie status {name}",
        )
        return
    left = healing.seconds_left
    causes.append(
        f"{healing.ledgers - healing.ledgers_left:,} of {counted(healing.ledgers, 'ledger')} looked at, "
        f"{size_text(healing.bytes_copied)} are copied" + (f", about {duration(left)} left" if left is not None else "")
    )
    stuck = healing.saw_all and healing.ledgers_left
    if healing.entries_lost:
        ledger_ids = sorted({ledger_id for ledger_id, _, _ in healing.lost})
        causes.append(
            f"on no bookie that answers: {counted(healing.entries_lost, 'entry')} of: {named('ledger', ledger_ids)}"
        )
    yield Answer(
        "limbo" if stuck else "healing",
        name,
        f"bookie {name} can't bring back all that a boot lost" if stuck else f"bookie {name} heals itself",
        tuple(causes),
        may_have_them(facts) if stuck else "wait; it needs no help",
        f"bookspark bookie status {name}",
        Severity.TROUBLE if stuck else Severity.UNDER_WAY,
    )


def why_not(facts: Facts, bookie_id: str) -> str:
    """The reason why the bookie's copies don't count, as a predicate."""
    bookie = facts.observed.bookies.get(bookie_id)
    if bookie is None:
        return "is not a bookie of this cluster any more"
    if not bookie.registered:
        home = facts.cluster.home(bookie_id)
        return "is down" + (f"; it served last on host {home.host}" if home is not None else "")
    return bookie.unsettled_why or "lacks entries"


def is_up(facts: Facts, name: str) -> bool:
    """Is the bookie registered, and its process not known to be gone?"""
    bookie = facts.observed.bookies.get(name)
    return bookie is not None and bookie.registered and not ended(facts, name)


def may_have_them(facts: Facts) -> str:
    """The remedy for entries that no answering bookie gives."""
    away = [name for name in sorted(facts.observed.bookies) if not is_up(facts, name)]
    if away:
        return f"bring {', '.join(away)} back: they may have them"
    if facts.cluster.problems:
        return f"let {', '.join(sorted(facts.cluster.problems))} answer again: they may have them"
    return "all bookies are up and answer: restore a bookie that was removed, or its disk, if it may have them"


def ended(facts: Facts, name: str) -> bool:
    """Is the registered bookie's process gone? Its host refuses the connection; a hanging or cut-off host does not."""
    return _REFUSED in facts.cluster.problems.get(name, "")


def bookie_down(facts: Facts, name: str) -> Answer:
    home = facts.cluster.home(name)
    taken = facts.change is not None and name in facts.change.progress.away
    where = "" if home is None else f" on host {home.host} with {', '.join(home.directories)}"
    where = where or " at a place that nobody noted"
    cause = f"it is not registered, and has a cookie; it served last{where}"
    if ended(facts, name):
        cause = (
            f"nobody listens at its address: its process has ended; it served{where}, and its session is not over yet"
        )
    directories = "" if home is None else "".join(f" --directory {quote(one)}" for one in home.directories)
    return Answer(
        "bookie-down",
        name,
        f"{consequence(facts, [name])}bookie {name} is down",
        (
            cause,
            *(["a change of the cluster took it down"] if taken else []),
            *count_down(facts, [name]),
        ),
        "start it again with its directories, by the job of the bookies or by itself; if it is gone for good, "
        f"`bookspark autorecovery decommission {name}`",
        "bookspark cluster status" if taken else f"bookspark bookie run{directories}" if directories else START,
        Severity.UNDER_WAY if taken else Severity.TROUBLE,
    )


def consequence(facts: Facts, names: Iterable[str]) -> str:
    """The consequence of these bookies' absence, as the beginning of a sentence; "" if there is none."""
    told = []
    fragments = facts.observed.fragments
    sizes = Counter[int]()
    for shape, ledgers in fragments.by_shape().items():
        sizes[len(shape.ensemble)] += len(ledgers)
    if sizes and len(facts.writable()) < (wanted := sizes.most_common(1)[0][0]):
        told.append(f"no new ledger over {wanted} bookies can be made")
    gone = set(names)
    if lacking := {one for name in gone for one in fragments.of(name)}:
        less = max(one.write_quorum - left_over(one, gone) for one in lacking)
        # Tasks without a bookie: made with few copies, because bookies were down.
        few = {one.ledger_id for one in facts.tasks if not one.bookies}
        told.append(short_of(facts, {one.ledger_id for one in lacking} | few, less))
    return f"{', and '.join(told)}: " if told else ""


def short_of(facts: Facts, ledgers: Collection[int], copies: int | None = None) -> str:
    """The sentence that the rows of these ledgers lack copies. ``copies``: the most that an entry lacks."""
    logs = {facts.logs[one] for one in ledgers if one in facts.logs}
    others = sum(one not in facts.logs for one in ledgers)
    words = [f"rows of {named('log', logs)}"] if logs else []
    if others:
        words.append(counted(others, "other ledger" if logs else "ledger"))
    less = "fewer copies" if copies is None else "one copy less" if copies == 1 else f"up to {copies} copies less"
    return f"{' and '.join(words)} {'has' if others == 1 and not logs else 'have'} {less} than wanted"


def count_down(facts: Facts, names: Iterable[str]) -> Iterator[str]:
    """Sentences about the start of autorecovery for each bookie that is down."""
    found = facts.autorecovery
    for name in names:
        if found is None or found.auditor is None:
            continue
        if found.lost is not None and name in found.lost:
            yield f"{name} counts as lost: others take over its entries"
        elif found.away is not None and name in found.away:
            yield f"{name} counts as lost in {duration(found.away[name])}; until then nothing is copied"

"""Answers to questions about one ledger, bookie, disk or log, computed from facts alone.

Law: the protocol decides: ``protocol.changes.safety`` whether a bookie may stop, ``protocol.ledger.quorum`` whether a recovery
can end. An unknown fact is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from shlex import quote

from bookspark.errors import ConfigurationError
from bookspark.logs.readers.lag import ReaderLag
from bookspark.operations.why.bookie_troubles import START, bookie_down, by_order, full_disk, is_up, ordered, why_not
from bookspark.operations.why.facts import Answer, DiskFacts, Facts, LedgerFacts, LogFacts, Ranges, Severity
from bookspark.operations.why.words import NAMED, duration, named
from bookspark.protocol.changes.safety import is_in_the_way, left_over
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.ledger.quorum import covered
from bookspark.protocol.logs.log_record import EPOCH_LABEL
from bookspark.protocol.logs.orphans import epoch_of
from bookspark.protocol.logs.reader_record import ReaderKind, ReaderState
from bookspark.store.autorecovery.status import TaskStatus
from bookspark.support.plain_text import counted, size_text

BEHIND_SECONDS = 60.0
"""A live reader with a larger lag is a trouble."""


def why_under_replicated(facts: Facts, metadata: LedgerMetadata) -> Answer:
    """The ledger's lacking copies, and why they are not repaired yet."""
    ledger_id, subject = metadata.ledger_id, f"ledger {metadata.ledger_id}"
    task = next((one for one in facts.tasks if one.ledger_id == ledger_id), None)
    observed = facts.observed
    missing = {
        bookie: why_not(facts, bookie) if bookie in facts.observed.bookies else "is not in the cluster any more"
        for bookie in metadata.bookies()
        if not observed.counts(bookie, ledger_id)
    }
    if task is None and not missing and not metadata.lacks_copies:
        text = f"{subject} lacks no copy that anybody knows of"
        return Answer(
            "", subject, text, ("its bookies are up, and no task names it",), "", "bookspark autorecovery trigger"
        )
    worst = min(
        (left_over(one, missing.keys()) - one.ack_quorum for one in observed.fragments.of_ledger(ledger_id)), default=0
    )
    causes = [f"{bookie} {why}" for bookie, why in sorted(missing.items())]
    if task is not None:
        causes += [
            f"{bookie} is marked: {reason.value}" for bookie, reason in task.bookies.items() if bookie not in missing
        ]
    few = f"has {metadata.write_quorum} of {metadata.copies_wanted} copies"
    on = sorted(missing) or (list(task.bookies) if task else [])
    more, mend, command = _repair(facts, metadata, task)
    return Answer(
        "under-replicated",
        subject,
        f"{subject} lacks copies on {', '.join(on)}" if on else f"{subject} {few}",
        (*causes, *more),
        mend,
        command,
        Severity.DANGER if worst < 0 else Severity.TROUBLE,
    )


def _repair(facts: Facts, metadata: LedgerMetadata, task: TaskStatus | None) -> tuple[list[str], str, str]:
    """Causes of the missing repair, the remedy, and its command."""
    found = facts.autorecovery
    if found is None:
        return ["whether it is repaired is not known"], "look again", "bookspark autorecovery status"
    if not found.enabled:
        return ["autorecovery is disabled"], "switch it on", "bookspark autorecovery enable"
    if found.auditor is None:
        return ["no autorecovery process runs"], "start one, and let it run", "bookspark autorecovery run"
    if task is None:
        away = [f"{one} counts as lost in {duration(left)}" for one, left in (found.away or {}).items()]
        told = [one for one in away if one.split()[0] in metadata.bookies()]
        down = [one for one in metadata.bookies() if not is_up(facts, one)]
        return (
            [*told, "it is not marked for repair yet"],
            f"bring {', '.join(down)} back, or wait" if down else "wait: its bookies are up",
            "bookspark autorecovery status",
        )
    causes = [task.detail] if task.detail else []
    if task.holder:
        return [*causes, f"{task.holder} repairs it now"], "wait", "bookspark autorecovery status"
    if task.error:
        causes.append(f"the last of {counted(task.attempts, 'attempt')} failed: {task.error}")
        causes += [f"no bookie gives {missed}" for missed in task.missed if missed.lost]
    free = set(facts.writable()) - set(metadata.last_fragment.ensemble)
    needs_other = metadata.lacks_copies or any(reason.value == "lost" for reason in task.bookies.values())
    if needs_other and not free:
        causes.append("no other bookie can take the copies: all that take new entries are in its ensemble already")
        return causes, "start one more bookie, or bring the lost one back", START
    if task.error:
        return causes, "mend what it names", "bookspark autorecovery list"
    when = f"in {duration(task.next_attempt_seconds)}" if task.next_attempt_seconds else "as soon as a worker is free"
    return [*causes, f"it is repaired {when}"], "wait", "bookspark autorecovery status"


def why_not_closed(facts: Facts, ledger: LedgerFacts) -> Answer:
    """Why a ledger is not closed, and whether its recovery could end."""
    metadata = ledger.metadata
    subject = f"ledger {metadata.ledger_id}"
    if metadata.closed:
        return Answer("", subject, f"{subject} is closed at entry {metadata.last_entry_id:,}")
    before, now = _end(ledger.held_before), _end(ledger.held)
    causes = []
    if metadata.state is LedgerState.OPEN and now > before:
        text = f"{subject} is being written: its writer closes it"
        return Answer("", subject, text, (f"{counted(now - before, 'entry')} in {ledger.seconds:.1f} s",))
    state = "its recovery was begun and has not ended"
    kind = "recovery-stands"
    if metadata.state is LedgerState.OPEN:
        kind = "nobody-writes"
        state = f"it is open, and no entry came in {ledger.seconds:.1f} s: its writer idles, or is gone"
        if (lost := _lost_the_log(ledger)) is not None:
            state = lost
    causes.append(state)
    ensemble = metadata.last_fragment.ensemble
    answering = {
        n for n, one in enumerate(ensemble) if one in ledger.held and facts.observed.counts(one, metadata.ledger_id)
    }
    if not covered(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum, answering):
        silent = [one for n, one in enumerate(ensemble) if n not in answering]
        causes += [f"{one} {why_not(facts, one)}" for one in silent]
        away = [one for one in silent if not is_up(facts, one)]
        back = f"bring {', '.join(away)} back" if away else f"wait until {', '.join(silent)} can tell: they are up"
        return Answer(
            "recovery-blocked",
            subject,
            f"{subject} can't be recovered now: too few of its bookies can tell where it ends",
            tuple(causes),
            f"{back}, then recover it; if they are gone for good, see `bookspark ledger recover --help`",
            f"bookspark ledger recover {metadata.ledger_id}",
            Severity.DANGER,
        )
    return Answer(
        kind,
        subject,
        f"{subject} is {metadata.state.value}, and nobody was seen to write it",
        (*causes, "its bookies can tell where it ends"),
        "if nobody writes it any more, recover it: that ends its writer, and closes it",
        f"bookspark ledger recover {metadata.ledger_id}",
    )


def _end(held: Mapping[str, Ranges]) -> int:
    return max((last for ranges in held.values() for _, last in ranges), default=-1)


def _lost_the_log(ledger: LedgerFacts) -> str | None:
    """The reason why the writer can't continue its log; None if it can."""
    labels, record = ledger.metadata.custom_metadata, ledger.log
    epoch = epoch_of(labels)
    if record is None or EPOCH_LABEL not in labels or epoch > record.newest_epoch or epoch in record.live_epochs:
        return None
    return (
        f"its writer lost the log {record.name}: it wrote in epoch {epoch}, and the log is in epoch "
        f"{record.newest_epoch}; the owner's next query recovers or deletes it"
    )


def why_read_only(facts: Facts, name: str) -> Answer:
    """Why the bookie takes no new entries. Raises ConfigurationError for an unknown bookie."""
    bookie = facts.observed.bookies.get(name)
    if bookie is None:
        raise ConfigurationError(f"there is no bookie {name}; `bookspark bookies` prints those that there are")
    status = facts.cluster.statuses.get(name)
    if not bookie.registered:
        return bookie_down(facts, name)
    if not bookie.read_only:
        full = {} if status is None else status.full_directories
        text = f"bookie {name} is not read-only"
        return Answer("", name, text, tuple(f"but {path} takes no new entries: {why}" for path, why in full.items()))
    if status is None:
        why = facts.cluster.problems.get(name, "it does not answer")
        text = f"bookie {name} is registered as read-only, and does not say why"
        return Answer("bookie-silent", name, text, (why,), "look at its bookie.log", f"bookspark bookie status {name}")
    if ordered(status):
        return by_order(facts, name)
    for path, why in sorted(status.full_directories.items()):
        return full_disk(name, path, why, status)
    return Answer(
        "failed-directory",
        name,
        f"bookie {name} is read-only: none of its directories can be used",
        tuple(f"{path}: {why}" for path, why in status.failed_directories.items()),
        "check the disks and start it again",
        f"bookspark bookie status {name}",
    )


def why_not_freed(facts: Facts, name: str, disk: DiskFacts) -> Answer:
    """The contents of a bookie's disks, and why their space is not freed."""
    status = facts.cluster.statuses.get(name)
    log_bytes = sum(one.size for one in disk.logs)
    rest = max(0, log_bytes - disk.live_bytes - disk.deleted_bytes - disk.elsewhere_bytes)
    unsealed = sum(one.size for one in disk.logs if not one.sealed)
    causes = [
        f"its logs have {size_text(log_bytes)}, {size_text(unsealed)} of that in logs that are still written",
        f"{size_text(disk.live_bytes)} are entries of ledgers that exist and name it",
    ]
    if disk.elsewhere_ledgers:
        causes.append(
            f"{size_text(disk.elsewhere_bytes)} are of {counted(disk.elsewhere_ledgers, 'ledger')} that name other bookies now: "
            "they go once a ledger is closed, no repair of it is due, and each bookie that it names says that it has its copies"
        )
    if disk.deleted_ledgers:
        causes.append(
            f"{size_text(disk.deleted_bytes)} are of {counted(disk.deleted_ledgers, 'ledger')} that is deleted and not collected"
        )
    causes.append(
        f"{size_text(rest)} are in logs and belong to no entry: rewriting gives them back once it is worth it"
    )
    collection = None if status is None else status.collection
    if status is None:
        causes.append("it does not answer, so its last collection is not known")
    elif collection is None:
        causes.append("it has collected nothing since its start: collections come every gc_wait_time_seconds")
    elif collection.problem:
        causes.append(f"its last collection did not finish: {collection.problem}")
    else:
        freed = size_text(max(0, collection.bytes_freed))
        causes.append(f"its last collection forgot {counted(collection.ledgers, 'ledger')} and freed {freed}")
    waste = disk.deleted_bytes + disk.elsewhere_bytes + rest
    ledgers = disk.deleted_ledgers + disk.elsewhere_ledgers
    if not waste or (not ledgers and waste < log_bytes // 2 and not (collection and collection.problem)):
        text = f"the disks of {name} hold what its ledgers need: {size_text(disk.live_bytes)} of {size_text(log_bytes)}"
        return Answer("", name, text, tuple(causes), "delete ledgers or truncate logs to get room", "")
    return Answer(
        "not-collected",
        name,
        f"{size_text(waste)} of {size_text(log_bytes)} on the disks of {name} are not needed, and not freed yet",
        tuple(causes),
        "collect now",
        f"bookspark bookie collect {name}",
    )


def log_troubles(facts: Facts, log: LogFacts) -> Iterator[Answer]:
    """Troubles of the log, else of the queries and groups that read it."""
    names = sorted({one.reader or one.name for one in log.readers} - {""})
    found = [why_behind(facts, replace(log, asked=name), ()) for name in ("", *names)]
    # A trouble of the log is also one of its readers, and is reported once.
    yield from {one.subject: one for one in found if one.found}.values()


def why_behind(facts: Facts, log: LogFacts, health: Iterable[Answer]) -> Answer:
    """Obstacles of a log's writers and readers, or of the reader ``log.asked``. ``health``: the cluster's troubles."""
    record = log.record
    subject = f"log {record.name}"
    causes = [*_lanes_told(log)]
    blocked = list(_blocks(facts, log))
    bad = [one for one in health if one.severity is not Severity.UNDER_WAY]
    if blocked:
        worst = max(bad, key=lambda one: one.severity, default=None)
        return Answer(
            "log-blocked",
            subject,
            f"{subject} can't go on: {blocked[0]}",
            (*blocked[1:], *causes, *([worst.verdict] if worst else [])),
            worst.mend if worst else "start more bookies",
            worst.command if worst else START,
            Severity.DANGER,
        )
    asked = [one for one in log.readers if log.asked in (one.name, one.reader)] if log.asked else []
    if asked:
        return _reader_behind(facts, asked, causes)
    text = (
        f"nothing in the cluster holds {subject} up" if not bad else f"{subject} can go on, in a cluster with troubles"
    )
    causes += [_told(facts, one) for one in log.readers] or ["no reader of it has told how far it is"]
    return Answer(
        "", subject, text, (*causes, *(one.verdict for one in bad)), "", f"bookspark log describe {quote(record.name)}"
    )


def _reader_behind(facts: Facts, readers: Sequence[ReaderLag], causes: Sequence[str]) -> Answer:
    """The answer about one query or group. ``readers``: all its readers of the log."""
    worst = max(readers, key=lambda one: (one.gone, one.lag_rows or 0))
    subject, command = f"reader {worst.title}", f"bookspark log readers {quote(worst.log)}"
    told = tuple(_told(facts, one) for one in readers)
    if worst.gone:
        text = f"{subject} does not run, and is {_lag(worst)} behind log {worst.log}"
        mend = "start it again: it goes on where it was"
        return Answer("reader-gone", subject, text, (*told, *causes), mend, command)
    if worst.state is ReaderState.LIVE and worst.lag_seconds is not None and worst.lag_seconds > BEHIND_SECONDS:
        text = f"{subject} lives, and is {_lag(worst)} behind log {worst.log}"
        mend = (
            "nothing in the cluster holds it up: see what its micro-batches spend their time on, in query.lastProgress"
        )
        if worst.kind is ReaderKind.PYTHON:
            mend = "nothing in the cluster holds it up: see what the service does between two reads"
        return Answer("reader-behind", subject, text, (*told, *causes), mend, command)
    runs = {
        ReaderState.LIVE: "",
        ReaderState.STALE: "does not run, and ",
        ReaderState.CLOSED: "has ended in order, and ",
    }
    text = f"{subject} {runs[worst.state]}is {_lag(worst)} behind log {worst.log}"
    return Answer("", subject, text, (*told, *causes), "", command)


def _lag(reader: ReaderLag) -> str:
    if reader.lag_rows is None or reader.lag_seconds is None:
        return "an unknown number of rows"
    if not reader.lag_rows:
        return "no row"
    return f"{counted(reader.lag_rows, 'row')} and {duration(reader.lag_seconds)}"


def _told(facts: Facts, reader: ReaderLag) -> str:
    heard = duration(max(0.0, (facts.at_ms - reader.heard_ms) / 1000))
    problem = f"; its lag is not known: {reader.problem}" if reader.problem else ""
    state = f"{reader.state.value} (heard {heard} ago)"
    return f"{reader.kind.value} reader {reader.title} is {state}, and {_lag(reader)} behind{problem}"


def _lanes_told(log: LogFacts) -> Iterator[str]:
    """The log's row count, and its lanes by the age of the newest row."""
    rows = sum(one.rows for one in log.lanes)
    lanes = sorted(log.lanes, key=lambda one: inf if one.newest_seconds_ago is None else one.newest_seconds_ago)
    lanes = [one for one in lanes if one.commits or one.record.owner or one.problem] or lanes[:1]
    yield f"it has {counted(rows, 'row')} in {counted(len(log.lanes), 'lane')}"
    for one in lanes[:NAMED]:
        age = one.newest_seconds_ago
        newest = f"the newest is {duration(age)} old" if age is not None else "nothing is known to be committed"
        waits = (
            ""
            if one.record.recovered
            else "; its owner has not recovered its commits yet: until then nothing is committed"
        )
        yield f"lane {one.record.name} of {one.writer} has {counted(one.rows, 'row')}, {newest}{waits}"
    if len(lanes) > NAMED:
        yield f"{len(lanes) - NAMED:,} more lanes have older rows"


def _blocks(facts: Facts, log: LogFacts) -> Iterator[str]:
    for one in log.lanes:
        if one.problem:
            yield f"the commits of lane {one.record.name} can't be read: {one.problem}"
    needed, there = log.record.options.ensemble_size, facts.writable()
    if len(there) < needed:
        yield f"a new ledger of it needs {needed} bookies that take new entries, and there are {len(there)}"
    for lane in log.lanes:
        gone = [one for one in lane.ensemble if (seen := facts.observed.bookies.get(one)) is None or not seen.counts]
        if gone and len(lane.ensemble) - len(gone) < log.record.options.ack_quorum:
            told = ", ".join(f"{one} {why_not(facts, one)}" for one in gone)
            yield f"of the bookies of the last commits of lane {lane.record.name}, {told}"


def why_cant_stop(facts: Facts, name: str) -> Answer:
    """The risks of a stop of the bookie now. Raises ConfigurationError for an unknown bookie."""
    bookies = facts.observed.bookies
    if name not in bookies:
        raise ConfigurationError(f"there is no bookie {name}; `bookspark bookies` prints those that there are")
    if not bookies[name].registered:
        return bookie_down(facts, name)
    told = is_in_the_way(facts.observed, name, ())
    if not told:
        return Answer(
            "",
            name,
            f"{name} may be stopped, as far as records, statuses and tasks tell",
            ("every entry it holds keeps its ack quorum without it, and no ledger is being written to it",),
            "let this command stop it: it compares the indexes of the others before",
            f"bookspark cluster apply --restart {name}",
        )
    copies = is_in_the_way(facts.observed, name, (), below_write_quorum=True)
    others = [one for one in bookies if one != name and not bookies[one].counts]
    if copies:
        return Answer(
            "last-copies",
            name,
            f"{name} can't be stopped: entries would be left with too few copies",
            (copies, *(f"{one} {why_not(facts, one)}" for one in others)),
            "mend the other bookies first",
            "bookspark why",
            Severity.DANGER,
        )
    open_ledgers = named("ledger", (one.ledger_id for one in facts.observed.fragments.open_on(name)))
    return Answer(
        "being-written",
        name,
        f"{name} can't be stopped yet: {open_ledgers} may still get entries there",
        (told,),
        "let this command make it read-only, wait until its writers have left it, and restart it",
        f"bookspark cluster apply --restart {name}",
        Severity.UNDER_WAY,
    )

"""All troubles of a cluster, the worst first.

Law: each cause is reported once: bookies of one host that are all down are a lost host, and a bookie that is read-only because of
a full disk is a full disk. ``protocol.changes.safety`` counts copies. Load is no trouble: neither are open ledgers, ensemble
changes or full queues.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from shlex import quote

from bookspark.operations.why.bookie_troubles import (
    START,
    bookie_down,
    consequence,
    count_down,
    ended,
    is_up,
    may_have_them,
    of_bookie,
    short_of,
    why_not,
)
from bookspark.operations.why.facts import EXPIRED, SLOW_ZOOKEEPER_SECONDS, Answer, Facts, Health, Severity
from bookspark.operations.why.words import NAMED, duration, named
from bookspark.protocol.changes.safety import left_over
from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.store.autorecovery.status import TaskStatus
from bookspark.support.certificates import DAY_MS, end_text
from bookspark.support.plain_text import counted, size_text

CLOCK_OFF_MS = 60_000
"""With a larger difference, one of two clocks is wrong."""
CERTIFICATE_DAYS = 14
"""A certificate that ends sooner is a trouble."""
_WITHOUT_RESTART = "bookies and clients read the files at their next connection, without a restart (docs/security.md)"
_RENEW = (
    "put a new certificate of the same CA, and its key, in the files tls_certificate and tls_key of these bookies; "
    f"{_WITHOUT_RESTART}"
)
_RENEW_OWN = (
    f"put a new certificate of the same CA, and its key, in the files tls_certificate and tls_key; {_WITHOUT_RESTART}"
)
_RENEW_CA = (
    "add the CA's new certificate to this file, on each host that has it, and then renew the certificates that the old one "
    f"signed; {_WITHOUT_RESTART}"
)


def health_of(facts: Facts) -> Health:
    """All troubles, with a summary."""
    troubles = tuple(sorted(_troubles(facts), key=lambda one: -one.severity))
    bookies = facts.observed.bookies
    up = len(bookies) - len(_gone(facts))
    counts = (
        f"{up} of {len(bookies)} bookies are up, {len(facts.writable())} take new entries, "
        f"{counted(len(facts.observed.fragments.ledgers()), 'ledger')}, {facts.open_ledgers:,} of them open"
    )
    if facts.zookeeper_problem:
        return Health(f"{facts.zookeeper}: not known, because ZooKeeper could not be asked", troubles)
    if not troubles:
        return Health(f"{facts.zookeeper} is well: {counts}", troubles)
    what = {
        Severity.DANGER: "is in danger",
        Severity.TROUBLE: "has troubles",
        Severity.UNDER_WAY: "is mending itself",
    }[troubles[0].severity]
    return Health(f"{facts.zookeeper} {what}: {counts}", troubles)


def _troubles(facts: Facts) -> Iterator[Answer]:
    yield from _own_certificates(facts)
    if facts.zookeeper_problem:
        yield _zookeeper(facts)
        # The other facts are incomplete: absence means nothing.
        return
    yield from _slow_zookeeper(facts)
    yield from _exposed_zookeeper(facts)
    yield from _copies(facts)
    yield from _down(facts)
    yield from _silent(facts)
    yield from _bookies_certificates(facts)
    for name, status in sorted(facts.cluster.statuses.items()):
        yield from of_bookie(facts, name, status)
    yield from _nobody_writable(facts)
    yield from _autorecovery(facts)
    yield from _tasks(facts)
    yield from _misplaced(facts)
    yield from _recovering(facts)
    yield from _records(facts)
    yield from _versions(facts)
    yield from _clocks(facts)


# -- ZooKeeper


def _zookeeper(facts: Facts) -> Answer:
    return Answer(
        "zookeeper",
        facts.zookeeper,
        "ZooKeeper does not answer, or there is no cluster at that place",
        (facts.zookeeper_problem, "bookies serve on for a while; no ledger can be made, changed or recovered"),
        "start ZooKeeper again, or correct the connection string; then look again",
        "bookspark why",
        Severity.DANGER,
    )


def _slow_zookeeper(facts: Facts) -> Iterator[Answer]:
    if facts.zookeeper_seconds > SLOW_ZOOKEEPER_SECONDS:
        yield Answer(
            "zookeeper-slow",
            facts.zookeeper,
            f"ZooKeeper takes {facts.zookeeper_seconds:.1f} s for a small read",
            ("every new ledger, ensemble change and repair waits for it",),
            "give ZooKeeper a disk and cores of its own, and look at its own log",
            "bookspark why",
        )


def _exposed_zookeeper(facts: Facts) -> Iterator[Answer]:
    for door in facts.exposure.doors():
        yield Answer(door.kind, facts.zookeeper, door.what, (door.effect,), door.remedy, "bookspark why")


# -- bookies


def _copies(facts: Facts) -> Iterator[Answer]:
    """Ledgers with entries below their ack quorum, because of bookies that don't count."""
    observed = facts.observed
    # A bookie that only this command can't ask may have all its copies.
    good = _not_told(facts)
    bad = [name for name, one in observed.bookies.items() if not one.counts and name not in good]
    fragments = {one for name in bad for one in observed.fragments.of(name)}
    fragments |= {one for ledger_id in observed.lacking for one in observed.fragments.of_ledger(ledger_id)}
    # Each is an answer of its own, and no bookie has the copies.
    lost = {one.ledger_id for one in facts.tasks if one.entries_lost}
    unreadable, too_few, missing = set[int](), set[int](), Counter[str]()
    for one in fragments:
        gone = {bookie for bookie in one.ensemble if bookie not in good and not observed.counts(bookie, one.ledger_id)}
        if one.ledger_id in lost and all(is_up(facts, bookie) for bookie in gone):
            continue
        left = left_over(one, gone)
        if left < one.ack_quorum:
            (too_few if left else unreadable).add(one.ledger_id)
            missing.update(gone)
    for kind, ledgers, what in (
        ("no-copy", unreadable, "entries that no bookie which counts can give"),
        ("below-ack-quorum", too_few - unreadable, "entries with fewer copies than their ack quorum"),
    ):
        if ledgers:
            why = [f"{name} {why_not(facts, name)}" for name, _ in missing.most_common(NAMED)]
            yield Answer(
                kind,
                named("ledger", ledgers),
                f"{counted(len(ledgers), 'ledger')} {'has' if len(ledgers) == 1 else 'have'} {what}",
                tuple(why),
                f"{_bring_back(facts, missing)}, and stop no other one",
                f"bookspark why under-replicated {min(ledgers)}",
                Severity.DANGER,
            )


def _bring_back(facts: Facts, missing: Collection[str]) -> str:
    """The remedy for copies that don't count on these bookies."""
    if down := sorted(name for name in missing if not is_up(facts, name)):
        return f"bring {', '.join(down[:NAMED])} back"
    if facts.autorecovery is not None and (facts.autorecovery.auditor is None or not facts.autorecovery.enabled):
        return "let autorecovery run, which makes the copies again: all of these bookies are up"
    return "wait for the copies: all of these bookies are up, and get them again"


def _gone(facts: Facts) -> list[str]:
    return sorted({*facts.cluster.down(), *(name for name in facts.cluster.problems if ended(facts, name))})


def _down(facts: Facts) -> Iterator[Answer]:
    down = _gone(facts)
    by_host: dict[str, list[str]] = {}
    for name in down:
        if (home := facts.cluster.home(name)) is not None:
            by_host.setdefault(home.host, []).append(name)
    up = {one.host for name, one in facts.observed.bookies.items() if name not in down}
    lost = {host: names for host, names in by_host.items() if len(names) > 1 and host not in up}
    for host, names in sorted(lost.items()):
        yield Answer(
            "host-lost",
            f"host {host}",
            f"{consequence(facts, names)}all {len(names)} bookies of host {host} are down",
            (f"these are {', '.join(names)}", *count_down(facts, names)),
            f"bring the host back and start the job of the bookies again: spark-submit … $({START})",
            START,
        )
    told = {name for names in lost.values() for name in names}
    for name in down:
        if name not in told:
            yield bookie_down(facts, name)


def _silent(facts: Facts) -> Iterator[Answer]:
    refused = _refused(facts)
    if refused:
        name, why = next(iter(refused.items()))
        yield Answer(
            "wrong-secret",
            named("bookie", refused),
            f"{counted(len(refused), 'bookie')} and this command prove no secret to each other",
            (why,),
            "name the right shared_secret_file, or none if bookies have none, in the table [client] of the settings file, and "
            "give the file with --config",
            "bookspark --config bookspark.toml why",
        )
    # A file of this command that has ended is reported by itself, and explains these.
    if (strange := _strange_tls(facts)) and not _own_ended(facts):
        yield Answer(
            "wrong-tls",
            named("bookie", strange),
            f"{counted(len(strange), 'bookie')} and this command do not understand each other: one side talks TLS and the other "
            "does not, or their certificates don't fit",
            (next(iter(strange.values())),),
            "name the CA of the bookies as tls_ca in the table [client] of the settings file, or leave it out where bookies talk "
            "no TLS, and give the file with --config",
            "bookspark --config bookspark.toml why",
        )
    for name, why in sorted(facts.cluster.problems.items()):
        if name not in _not_told(facts) and not ended(facts, name):
            yield Answer(
                "bookie-silent",
                name,
                f"bookie {name} is registered and does not answer",
                (why, "it hangs, or is cut off from this host"),
                "find its host and process in this list, and look at them and at its bookie.log; if it hangs, end the process "
                "(kill -9), and start it again",
                "bookspark bookies",
            )


def _refused(facts: Facts) -> dict[str, str]:
    """Healthy bookies that refused this command, or that it refused, because one side does not prove the other's secret."""
    return {name: why for name, why in facts.cluster.problems.items() if "secret" in why}


def _strange_tls(facts: Facts) -> dict[str, str]:
    """Bookies whose connection failed by TLS: it was missing on one side, or the handshake failed. A bookie that refuses the
    client's certificate ends the connection behind the client's HELLO; the reset may overtake TLS's alert."""
    return {
        name: why
        for name, why in facts.cluster.problems.items()
        if EXPIRED not in why
        and ("[SSL" in why or ("tls_c" in why and ("closed by the bookie" in why or "Connection reset" in why)))
    }


def _expired(facts: Facts) -> dict[str, str]:
    """Bookies whose certificate was refused because it ended."""
    return {name: why for name, why in facts.cluster.problems.items() if EXPIRED in why}


def _not_told(facts: Facts) -> dict[str, str]:
    """Bookies that would answer a command with the right secret and TLS options."""
    return _refused(facts) | _strange_tls(facts) | _expired(facts)


# -- certificates


def _own_certificates(facts: Facts) -> Iterator[Answer]:
    """This command's own files that have ended, or soon will."""
    for file, end_ms in sorted(facts.own_certificates.items()):
        if _ends_soon(facts, end_ms):
            yield _certificate(
                facts, file, end_ms, "on this host", _RENEW_CA if file.startswith("tls_ca") else _RENEW_OWN
            )


def _bookies_certificates(facts: Facts) -> Iterator[Answer]:
    """Bookies' certificates that have ended, or soon will: those in use, or shown to a command that refuses them."""
    ended: dict[str, str] = {}
    if not any(file.startswith("tls_ca") for file in _own_ended(facts)):
        ended = _expired(facts)
    ends = {("tls_certificate", name): facts.shown_certificates.get(name, facts.at_ms) for name in ended}
    for name, status in facts.cluster.statuses.items():
        ends |= {(option, name): end_ms for option, end_ms in status.certificate_ends.items()}
    soon = {one: end_ms for one, end_ms in ends.items() if _ends_soon(facts, end_ms)}
    for option, remedy in (("tls_certificate", _RENEW), ("tls_client_ca", _RENEW_CA)):
        for has_ended in (True, False):
            names = sorted(
                name for (what, name), end in soon.items() if what == option and (end <= facts.at_ms) is has_ended
            )
            if names:
                first = min(names, key=lambda name: soon[option, name])
                causes = [ended[name] for name in names[:1] if name in ended]
                subject = named("bookie", names)
                yield _certificate(facts, option, soon[option, first], f"of {subject}", remedy, causes, subject)


def _own_ended(facts: Facts) -> list[str]:
    return [file for file, end_ms in facts.own_certificates.items() if end_ms <= facts.at_ms]


def _ends_soon(facts: Facts, end_ms: int) -> bool:
    return end_ms < facts.at_ms + CERTIFICATE_DAYS * DAY_MS


def _certificate(
    facts: Facts, what: str, end_ms: int, whose: str, remedy: str, causes: Sequence[str] = (), subject: str = ""
) -> Answer:
    ended = end_ms <= facts.at_ms
    lacks = (
        "nobody takes it any more: connections fail" if ended else "after that nobody takes it, and connections fail"
    )
    return Answer(
        "certificate-ended" if ended else "certificate-ends",
        subject or what,
        f"{what} {whose} {'has ended' if ended else 'ends soon'}",
        (f"it {end_text(end_ms, facts.at_ms)}", lacks, *causes),
        remedy,
        "bookspark why",
    )


def _nobody_writable(facts: Facts) -> Iterator[Answer]:
    if any(not facts.observed.bookies[name].read_only for name in _not_told(facts)):
        return
    if facts.observed.bookies and not facts.writable():
        yield Answer(
            "nothing-writable",
            facts.zookeeper,
            "no new ledger can be made, and none written to: no bookie takes new entries",
            tuple(
                f"{name} {'is read-only' if one.counts else why_not(facts, name)}"
                for name, one in sorted(facts.observed.bookies.items())[:NAMED]
            ),
            "mend the bookies, or start others",
            START,
            Severity.DANGER,
        )


# -- autorecovery


def _autorecovery(facts: Facts) -> Iterator[Answer]:
    found = facts.autorecovery
    if found is None:
        return
    if not found.enabled:
        yield Answer(
            "autorecovery-disabled",
            "autorecovery",
            "autorecovery is disabled: lost copies are not made again",
            ("somebody switched it off, for maintenance perhaps",),
            "switch it on when the maintenance is over",
            "bookspark autorecovery enable",
        )
    if found.auditor is None:
        yield Answer(
            "no-auditor",
            "autorecovery",
            "no autorecovery process runs: nobody finds or mends lost copies",
            ("ZooKeeper has no auditor",),
            "start one, on any host, and let it run",
            "bookspark autorecovery run",
        )


def _tasks(facts: Facts) -> Iterator[Answer]:
    found = facts.autorecovery
    lost = [one for one in facts.tasks if one.entries_lost]
    # Troubles that wait for bookies that are down are told with these bookies.
    gone = _gone(facts)
    waits = [
        one
        for one in facts.tasks
        if one not in lost and not any(is_up(facts, name) for name in one.bookies) and (one.bookies or gone)
    ]
    failed = [one for one in facts.tasks if one.error and one not in lost and one not in waits]
    for one in lost[:NAMED]:
        told = [str(missed) for missed in one.missed if missed.lost]
        yield Answer(
            "entries-lost",
            f"ledger {one.ledger_id}",
            f"no bookie gives some entries of ledger {one.ledger_id}",
            (*told[:NAMED], one.error),
            may_have_them(facts),
            f"bookspark why under-replicated {one.ledger_id}",
            Severity.DANGER,
        )
    if failed:
        short = [one.ledger_id for one in failed if not _only_moves(one)]
        yield Answer(
            "repair-fails",
            named("ledger", (one.ledger_id for one in failed)),
            f"{short_of(facts, short) + ': ' if short else ''}the last repair of {counted(len(failed), 'ledger')} "
            "failed",
            tuple(f"ledger {one.ledger_id}, {counted(one.attempts, 'attempt')}: {one.error}" for one in failed[:NAMED]),
            "mend what the last problem names",
            f"bookspark why under-replicated {failed[0].ledger_id}",
        )
    moved = [one for one in facts.tasks if _only_moves(one)]
    others = [one for one in facts.tasks if not any(one in told for told in (lost, failed, waits, moved))]
    left = len(others)
    if left and found is not None:
        time = "an unknown time" if found.seconds_left is None else duration(found.seconds_left)
        yield Answer(
            "under-replicated",
            named("ledger", (one.ledger_id for one in others)),
            f"{short_of(facts, [one.ledger_id for one in others])}; {found.being_repaired:,} are being repaired",
            (f"{size_text(found.bytes_left)} are left to copy, in about {time}",),
            "wait; if nothing moves, look at the troubles of autorecovery",
            "bookspark autorecovery status",
            Severity.UNDER_WAY,
        )


def _only_moves(task: TaskStatus) -> bool:
    return set(task.bookies.values()) == {Reason.MISPLACED}


def _misplaced(facts: Facts) -> Iterator[Answer]:
    if not facts.misplaced:
        return
    rule, ids = facts.observed.placement, set(facts.misplaced)
    marked = ids & {one.ledger_id for one in facts.tasks}
    movable = [one for one, may_move in facts.misplaced.items() if may_move or one in marked]
    stuck = len(ids) - len(movable)
    lost = f"the loss of one {rule.label or 'rack'} may take more copies of an entry than the rule allows"
    works = facts.autorecovery is not None and facts.autorecovery.enabled and facts.autorecovery.auditor is not None
    apart = f"with another {rule.label}" if rule.label else "on other racks"
    yield Answer(
        "misplaced",
        named("ledger", ids),
        f"{lost}: copies of {counted(len(ids), 'ledger')} are misplaced",
        (
            f"the placement rule of the cluster is {rule}; BookKeeper's clients choose bookies by themselves",
            *((f"{counted(len(marked), 'ledger')} are being moved",) if marked else ()),
            *((f"for {counted(stuck, 'ledger')} no bookie {apart} takes copies now",) if stuck else ()),
        ),
        f"start bookies {apart}"
        if not movable
        else "wait: autorecovery moves them"
        if marked and works
        else "have the auditor look at once; autorecovery moves them then",
        START
        if not movable
        else "bookspark autorecovery status"
        if marked and works
        else "bookspark autorecovery trigger",
        Severity.UNDER_WAY if marked and works and not stuck else Severity.TROUBLE,
    )


# -- recovery, records, versions, clocks


def _recovering(facts: Facts) -> Iterator[Answer]:
    if facts.recovering:
        yield Answer(
            "recovery-stands",
            named("ledger", facts.recovering),
            f"the recovery of {counted(len(facts.recovering), 'ledger')} has not ended",
            ("somebody began it, and it ended without an outcome or still waits for bookies",),
            "ask why, and recover it again",
            f"bookspark why not-closed {min(facts.recovering)}",
        )


def _records(facts: Facts) -> Iterator[Answer]:
    if facts.lost_records:
        ranges = [f"{first} to {last}" for first, last in facts.lost_records]
        yield Answer(
            "lost-records",
            f"ledgers {', '.join(ranges[:NAMED])}",
            "ZooKeeper does not know ledgers that bookies hold: an older copy of its data was put back",
            (
                "what it had noted after that copy was made is lost: ledgers, logs, where ledgers end",
                "bookies keep the entries of these ledgers, and no other ledger gets their ids",
            ),
            "see what they hold, save what you need, then give them up",
            "bookspark ledger lost",
            Severity.DANGER,
        )
    if facts.observed.unreadable:
        yield Answer(
            "unreadable-records",
            named("ledger", facts.observed.unreadable),
            f"the records of {counted(len(facts.observed.unreadable), 'ledger')} can't be decoded",
            tuple(list(facts.observed.unreadable.values())[:NAMED]),
            "use the newest version of Bookspark that runs here, or restore the record from a backup of ZooKeeper",
            f"bookspark ledger metadata {min(facts.observed.unreadable)}",
        )


def _versions(facts: Facts) -> Iterator[Answer]:
    versions = Counter(one.version for one in facts.cluster.statuses.values() if one.version)
    if len(versions) > 1:
        told = tuple(f"{count} of the bookies run {version}" for version, count in sorted(versions.items()))
        yield Answer(
            "version-skew",
            facts.zookeeper,
            "the bookies run different versions",
            told,
            "install the newer version on all hosts and restart those that are behind, one after the other",
            f"bookspark cluster apply --upgrade-to {quote(max(versions, key=_numbers))}"
            if facts.change is None
            else "bookspark cluster status",
            Severity.TROUBLE if facts.change is None else Severity.UNDER_WAY,
        )


def _numbers(version: str) -> list[int]:
    """Version 0.10.0 comes after 0.9.0."""
    return [int(digits) for digits in re.findall(r"\d+", version)]


def _clocks(facts: Facts) -> Iterator[Answer]:
    ahead_ms = {f"bookie {name}": one.clock_ahead_ms for name, one in facts.cluster.statuses.items()}
    if facts.autorecovery is not None:
        workers = facts.autorecovery.workers.items()
        ahead_ms |= {f"the autorecovery process {name}": one.clock_ahead_ms for name, one in workers}
    ahead_ms["this host"] = facts.clock_ahead_ms
    least_ms, most_ms = min(ahead_ms.values()), max(ahead_ms.values())
    off = {subject: ms for subject, ms in sorted(ahead_ms.items()) if abs(ms) > CLOCK_OFF_MS}
    if len(off) == len(ahead_ms) > 1 and most_ms - least_ms <= CLOCK_OFF_MS:
        # Hosts that agree with each other and not with ZooKeeper: its leader is wrong.
        yield _clock("ZooKeeper", -round((least_ms + most_ms) / 2), "that of all other hosts that were asked")
        return
    for subject, ms in off.items():
        yield _clock(subject, ms, "that of ZooKeeper")


def _clock(subject: str, ahead_ms: int, judge: str) -> Answer:
    off = f"{duration(abs(ahead_ms) / 1000)} {'ahead of' if ahead_ms > 0 else 'behind'} {judge}"
    return Answer(
        "clock",
        subject,
        f"the clock of {subject} is wrong: it is {off}",
        (
            "the append times of rows, retention and all that waits for a time follow the clock of ZooKeeper's leader"
            if subject == "ZooKeeper"
            else "nothing that others judge follows it; its log files and its display are wrong by as much",
        ),
        "have one source of time (NTP) on all hosts, and set this host's clock right",
        "bookspark why",
    )

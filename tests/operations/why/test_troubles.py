"""Troubles derived from made-up facts; troubles of real clusters are in ``test_real_troubles``."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bookspark.operations.changes.change_record import new_record
from bookspark.operations.why.answers import _lost_the_log, why_not_closed
from bookspark.operations.why.facts import Facts, Health, LedgerFacts, Severity
from bookspark.operations.why.picture import bookie_lines
from bookspark.operations.why.telling import document, health_lines
from bookspark.operations.why.troubles import health_of
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.changes.observed import Placed
from bookspark.protocol.changes.wanted import Progress, Wanted
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import EPOCH_LABEL, LogRecord
from bookspark.protocol.repair.underreplication_task import Missed, Reason
from bookspark.store.autorecovery.status import TaskStatus
from bookspark.store.metadata.autorecovery.underreplication_tasks import Progress as WorkerProgress
from bookspark.store.metadata.bookie_homes import BookieHome
from bookspark.store.wire.messages import BookieStatus, CollectionStatus, HealingStatus
from bookspark.support.certificates import DAY_MS
from tests.operations.why.kit import NOW_MS, autorecovery, check_command, facts, parse, status

DOWN = {"registered": False, "settled": False}
ORDER = "the bookie was switched to read-only (bookspark bookie read-only ID off)"

WANTS_TLS = "h:1 does not answer HELLO (not reachable: closed by the bookie); if it wants TLS, set tls_ca"
REFUSES_CERTIFICATE = (
    "h:1 does not answer HELLO (not reachable: [Errno 104] Connection reset by peer); if it wants a client's certificate, set "
    "tls_certificate to one that its tls_client_ca signed"
)
HAS_NO_TLS = (
    "h:1: [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006); if it speaks no TLS, leave tls_ca out"
)
HAS_ENDED = "h:1: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)"


def fragment(*ensemble: str, ledger_id: int = 7, ack_quorum: int = 2, open: bool = False) -> Placed:
    return Placed(ledger_id, 0, ensemble, len(ensemble), ack_quorum, open, 1000)


def clocks(**ahead_ms: int) -> dict[str, BookieStatus]:
    return {name: status(name, clock_ahead_ms=ms) for name, ms in ahead_ms.items()}


def kinds(found: Facts) -> list[str]:
    health = health_of(found)
    for one in health.troubles:
        check_command(one)
    assert [one.severity for one in health.troubles] == sorted((one.severity for one in health.troubles), reverse=True)
    return [one.kind for one in health.troubles]


def task(**fields: Any) -> TaskStatus:
    given: dict[str, Any] = {
        "ledger_id": 7,
        "bookies": {"a": Reason.LOST},
        "detail": "",
        "marked_seconds_ago": 1.0,
        "attempts": 0,
        "error": "",
        "next_attempt_seconds": 0.0,
        "holder": None,
    }
    return TaskStatus(**{**given, **fields})


def healing(**fields: Any) -> HealingStatus:
    given = {"ledgers": 10, "ledgers_left": 5, "entries_copied": 1, "bytes_copied": 1000, "seconds": 60.0}
    return HealingStatus(**{**given, **fields})  # type: ignore[arg-type]


def test_busy_cluster_has_no_trouble() -> None:
    found = facts(fragments=(fragment("a", "b", "c", open=True), fragment("a", "b", "c", ledger_id=8)), open_ledgers=1)
    health = health_of(found)
    assert health.troubles == () and health.command == ""
    assert health.sentence == "zk:2181 is well: 3 of 3 bookies are up, 3 take new entries, 2 ledgers, 1 of them open"


MISSED = Missed(3, 4, True, (), {"b": "no such entry"})
COLLECTION = CollectionStatus(1, 0, 0, 1.0, problem="ledger 5 can't be judged")
QUIETED = new_record(Wanted(restart=frozenset("a")), Progress({}, quieted=frozenset("a")), 1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (facts({"a": DOWN}), ["bookie-down"]),
        (facts({"a": DOWN}, homes={"a": BookieHome("h", ("/d/1",))}), ["bookie-down"]),
        (facts({"a": DOWN, "b": DOWN}, homes={n: BookieHome("h") for n in "ab"}), ["host-lost"]),
        (facts({"a": DOWN, "b": DOWN}, homes={n: BookieHome("host-c") for n in "ab"}), ["bookie-down", "bookie-down"]),
        (facts({"a": DOWN}, (fragment("a", "b", "c"),)), ["bookie-down"]),
        (facts({"a": DOWN, "b": DOWN}, (fragment("a", "b", "c"),)), ["below-ack-quorum", "bookie-down", "bookie-down"]),
        (facts({"a": DOWN}, (fragment("a", ack_quorum=1),)), ["no-copy", "bookie-down"]),
        (facts(dict.fromkeys("abc", DOWN)), ["nothing-writable", "bookie-down", "bookie-down", "bookie-down"]),
        (facts({"a": {"settled": False}}, bookie_problems={"a": "no answer"}), ["bookie-silent"]),
        (facts({"a": {"settled": False}}, bookie_problems={"a": "[Errno 111] Connection refused"}), ["bookie-down"]),
        (facts({"a": {"settled": False}}, bookie_problems={"a": "has another secret"}), ["wrong-secret"]),
        (
            facts(
                {name: {"settled": False} for name in "abc"},
                (fragment("a", "b", "c"),),
                bookie_problems=dict.fromkeys("abc", "has another secret"),
            ),
            ["wrong-secret"],
        ),
        (
            facts(
                {"a": {"settled": False}, "b": DOWN, "c": DOWN},
                (fragment("a", "b", "c"),),
                bookie_problems={"a": "has another secret"},
            ),
            ["below-ack-quorum", "bookie-down", "bookie-down", "wrong-secret"],
        ),
        (
            facts(
                {name: {"settled": False} for name in "abc"},
                (fragment("a", "b", "c"),),
                bookie_problems=dict.fromkeys("abc", WANTS_TLS),
            ),
            ["wrong-tls"],
        ),
        (
            facts(
                {name: {"settled": False} for name in "abc"},
                (fragment("a", "b", "c"),),
                bookie_problems=dict.fromkeys("abc", HAS_NO_TLS),
            ),
            ["wrong-tls"],
        ),
        (
            facts(
                {name: {"settled": False} for name in "abc"},
                (fragment("a", "b", "c"),),
                bookie_problems=dict.fromkeys("abc", REFUSES_CERTIFICATE),
            ),
            ["wrong-tls"],
        ),
        (
            facts(
                {"a": {"settled": False}},
                bookie_problems={"a": REFUSES_CERTIFICATE},
                own_certificates={"tls_certificate own.pem": NOW_MS - 1},
            ),
            ["certificate-ended"],
        ),
        (facts(own_certificates={"tls_ca ca.pem": NOW_MS + 15 * DAY_MS}), []),
        (facts(own_certificates={"tls_ca ca.pem": NOW_MS + 13 * DAY_MS}), ["certificate-ends"]),
        (
            facts(own_certificates={"tls_ca ca.pem": NOW_MS - 1}, zookeeper_problem="x"),
            ["zookeeper", "certificate-ended"],
        ),
        (facts(statuses={"a": status("a", certificate_ends={"tls_certificate": NOW_MS + 15 * DAY_MS})}), []),
        (
            facts(statuses={name: status(name, certificate_ends={"tls_certificate": NOW_MS + 1}) for name in "abc"}),
            ["certificate-ends"],
        ),
        (
            facts(
                statuses={
                    "a": status("a", certificate_ends={"tls_certificate": NOW_MS + 1}),
                    "b": status("b", certificate_ends={"tls_certificate": NOW_MS - 1, "tls_client_ca": NOW_MS - 1}),
                }
            ),
            ["certificate-ended", "certificate-ends", "certificate-ended"],
        ),
        (facts({"a": {"settled": False}}, bookie_problems={"a": HAS_ENDED}), ["certificate-ended"]),
        (
            facts(
                {"a": {"settled": False}},
                bookie_problems={"a": HAS_ENDED},
                own_certificates={"tls_ca ca.pem": NOW_MS - 1},
            ),
            ["certificate-ended"],
        ),
        (facts(statuses={"a": status("a", sync_seconds={"/d": 0.6, "/e": 0.4})}), ["slow-disk"]),
        (facts(statuses={"a": status("a", clock_ahead_ms=3_600_000)}), ["clock"]),
        (facts(statuses={"a": status("a", clock_ahead_ms=-3_600_000)}), ["clock"]),
        (facts(statuses=clocks(a=-30_000, b=30_000)), []),
        (facts(statuses=clocks(a=3_600_000, b=-7_200_000)), ["clock", "clock"]),
        (facts(statuses=clocks(a=3_600_000, b=3_600_000, c=3_610_000)), ["clock", "clock", "clock"]),
        (facts(statuses=clocks(a=3_600_000, b=3_600_000, c=3_610_000), clock_ahead_ms=3_590_000), ["clock"]),
        (facts(clock_ahead_ms=3_600_000), ["clock"]),
        (facts(autorecovery=autorecovery(workers={"host:1": WorkerProgress(clock_ahead_ms=-3_600_000)})), ["clock"]),
        (facts(statuses={"a": status("a", failed_directories={"/d": "EIO"}, lacking_ledgers=2)}), ["failed-directory"]),
        (facts(statuses={"a": status("a", full_directories={"/d": "full"}, reasons=["full"])}), ["disk-full"]),
        (
            facts(statuses={"a": status("a", read_only=True, full_directories={"/d": "x"}, reasons=["x"])}),
            ["disk-full"],
        ),
        (facts(statuses={"a": status("a", read_only=True, reasons=[ORDER])}), ["read-only-by-order"]),
        (facts(statuses={"a": status("a", read_only=True, reasons=[ORDER])}, change=QUIETED), ["read-only-by-change"]),
        (
            facts(statuses={"a": status("a", read_only=True, reasons=[ORDER], read_only_by_change=True)}),
            ["read-only-by-order"],
        ),
        (facts(statuses={"a": status("a", lacking_ledgers=1, lost_copies=3)}), ["rot"]),
        (facts(statuses={"a": status("a", read_errors={"/d": 2})}), ["read-errors"]),
        (facts(statuses={"a": status("a", unread_logs=["/d/logs/1"])}), ["unread-log"]),
        (facts(statuses={"a": status("a", lossy_boot=2, limbo_ledgers=5, healing=healing())}), ["healing"]),
        (facts(statuses={"a": status("a", lossy_boot=2, limbo_ledgers=5, healing=healing(saw_all=True))}), ["limbo"]),
        (facts(statuses={"a": status("a", lossy_boot=2, limbo_ledgers=5)}), ["limbo"]),
        (facts(statuses={"a": status("a", lossy_boot=2, healed_boot=2)}), []),
        (facts(statuses={"a": status("a", stops_in_seconds=30.0)}), ["no-keeper"]),
        (facts(statuses={"a": status("a", collection=COLLECTION)}), ["collection"]),
        (facts(statuses={"a": status("a", version="2")}), ["version-skew"]),
        (facts(autorecovery=autorecovery(enabled=False)), ["autorecovery-disabled"]),
        (facts(autorecovery=autorecovery(auditor=None)), ["no-auditor"]),
        (facts(tasks=(task(),), lacking={7: frozenset("a")}), ["under-replicated"]),
        (facts(tasks=(task(error="no bookie answers", attempts=3),)), ["repair-fails"]),
        (facts(tasks=(task(error="lost", missed=(MISSED,)),)), ["entries-lost"]),
        (facts(recovering=frozenset({7})), ["recovery-stands"]),
        (facts(unreadable={7: "it is newer"}), ["unreadable-records"]),
        (facts(lost_records=(LostRecords(4, 1009),)), ["lost-records"]),
        (facts(zookeeper_seconds=2.0), ["zookeeper-slow"]),
        (facts({"a": DOWN}, zookeeper_problem="no answer within 5 s"), ["zookeeper"]),
    ],
)
def test_each_cause_is_reported_once(found: Facts, expected: list[str]) -> None:
    assert kinds(found) == expected


@pytest.mark.parametrize(
    ("healed", "lost_records", "command"),
    [
        (1, (), "bookspark bookie status a"),
        (2, (), "bookspark bookie accept-loss /d"),
        (2, (LostRecords(4, 1009),), "bookspark bookie status a"),
    ],
    ids=["healing", "healed", "lost records"],
)
def test_remedy_for_a_bad_sector_accepts_its_loss_once_every_bookie_was_asked(
    healed: int, lost_records: tuple[LostRecords, ...], command: str
) -> None:
    bookie = status("a", unread_logs=["/d/logs/1"], lossy_boot=2, healed_boot=healed)
    troubles = health_of(facts(statuses={"a": bookie}, lost_records=lost_records)).troubles
    assert [answer.command for answer in troubles if answer.kind == "unread-log"] == [command]


def test_remedy_for_different_versions_names_the_newest() -> None:
    found = facts(statuses={"a": status("a", version="1.9.0"), "b": status("b", version="1.10.0")})
    (skew,) = [answer for answer in health_of(found).troubles if answer.kind == "version-skew"]
    assert skew.command == "bookspark cluster apply --upgrade-to 1.10.0"


def test_bookie_that_refuses_connections_is_not_counted_as_up() -> None:
    found = facts({"a": {"settled": False}}, bookie_problems={"a": "[Errno 111] Connection refused"})
    assert "2 of 3 bookies are up" in health_of(found).sentence
    assert [line.state for line in bookie_lines(found)] == ["down", "writable", "writable"]


def test_healing_reports_the_time_left() -> None:
    told = health_of(facts(statuses={"a": status("a", lossy_boot=2, limbo_ledgers=5, healing=healing())})).troubles[0]
    assert "about 0:01:00 left" in told.causes[1] and told.severity is Severity.UNDER_WAY


def test_down_bookie_is_named_with_host_directories_and_time_until_lost() -> None:
    found = facts(
        {"a": DOWN}, homes={"a": BookieHome("h", ("/d/1", "/d/2"))}, autorecovery=autorecovery(away={"a": 90.0})
    )
    (one,) = health_of(found).troubles
    assert "host h with /d/1, /d/2" in one.causes[0] and "a counts as lost in 0:01:30" in one.causes[1]
    assert one.command == "bookspark bookie run --directory /d/1 --directory /d/2"


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (lambda foreign: facts({"a": DOWN}, homes={"a": BookieHome("h", (foreign,))}), "bookie-down"),
        (lambda foreign: facts(statuses={"a": status("a", version=foreign)}), "version-skew"),
        (lambda foreign: facts(statuses={"a": status("a", failed_directories={foreign: "EIO"})}), "failed-directory"),
    ],
    ids=["directory", "version", "failed directory"],
)
def test_foreign_words_of_a_command_are_words_for_the_shell(found: Callable[[str], Facts], kind: str) -> None:
    """Operators copy commands. A stranger could put his own behind a semicolon, by a record in ZooKeeper or a bookie's answer."""
    foreign = "99.9.9; touch $(id) `id` 'x'"
    (one,) = [answer for answer in health_of(found(foreign)).troubles if answer.kind == kind]
    assert shlex.split(one.command)[-1].removeprefix("a=") == foreign
    assert shlex.join(shlex.split(one.command)) == one.command


def test_consequence_comes_first() -> None:
    found = facts({"a": DOWN}, (fragment("a", "b", "c"), fragment("b", "c", ledger_id=8)))
    (one,) = health_of(found).troubles
    assert one.verdict.startswith(
        "no new ledger over 3 bookies can be made, and 1 ledger has one copy less than wanted: "
    )
    assert one.verdict.endswith("bookie a is down")
    (one, *_) = health_of(facts({name: {"read_only": True} for name in "abc"})).troubles
    assert one.verdict == "no new ledger can be made, and none written to: no bookie takes new entries"


def test_lacking_copies_are_those_of_rows() -> None:
    found = facts(
        {"a": DOWN}, (fragment("a", "b", "c"), fragment("a", "b", "c", ledger_id=8)), logs={7: "orders", 8: "orders"}
    )
    (one,) = health_of(found).troubles
    assert one.verdict.endswith("rows of log orders have one copy less than wanted: bookie a is down")
    short = task(bookies={"a": Reason.LACKS}), task(ledger_id=8, bookies={"a": Reason.LACKS})
    (one,) = health_of(facts(tasks=short, logs={7: "orders"})).troubles
    assert (one.kind, one.severity) == ("under-replicated", Severity.UNDER_WAY)
    assert one.verdict == "rows of log orders and 1 other ledger have fewer copies than wanted; 0 are being repaired"


def test_ledger_that_lacks_a_copy_is_no_trouble_of_a_bookie_that_is_down() -> None:
    """Its task names no bookie, and with all bookies up the cluster was well."""
    few = task(bookies={}, detail="it has 2 of 3 copies")
    assert kinds(facts(tasks=(few,))) == ["under-replicated"]
    assert kinds(facts({"a": DOWN}, tasks=(few,))) == ["bookie-down"]


def test_misplaced_ledgers_lack_no_copy_and_are_named() -> None:
    moved = task(bookies={"a": Reason.MISPLACED})
    (one,) = health_of(facts(tasks=(moved,), misplaced={7: True})).troubles
    assert (one.kind, one.severity, one.mend) == ("misplaced", Severity.UNDER_WAY, "wait: autorecovery moves them")
    assert one.verdict.startswith("the loss of one rack may take more copies of an entry than the rule allows: ")
    (one,) = health_of(facts(misplaced={7: True})).troubles
    assert (one.severity, one.command) == (Severity.TROUBLE, "bookspark autorecovery trigger")
    (one,) = health_of(facts(misplaced={7: False})).troubles
    assert one.mend == "start bookies on other racks" and "no bookie on other racks takes copies now" in one.causes[1]
    check_command(one)


def test_bookies_that_are_up_are_not_to_be_brought_back() -> None:
    """Two bookies heal, and the remedy was to bring them back."""
    heals = {"settled": False, "unsettled_why": "heals itself"}
    for bookies, mend in (
        ({"a": heals, "b": heals}, "wait for the copies: all of these bookies are up"),
        ({"a": heals, "b": DOWN}, "bring b back"),
    ):
        one = next(
            one for one in health_of(facts(bookies, (fragment("a", "b", "c"),))).troubles if "copies" in one.verdict
        )
        assert one.kind == "below-ack-quorum" and one.mend.startswith(mend)


def test_lost_entries_with_all_bookies_up_name_no_bookie_to_bring_back() -> None:
    missed = task(missed=(MISSED,), error="no bookie gives them")
    (one,) = health_of(facts(tasks=(missed,))).troubles
    assert one.kind == "entries-lost" and one.mend.startswith("all bookies are up and answer")
    one = next(each for each in health_of(facts({"a": DOWN}, tasks=(missed,))).troubles if each.kind == "entries-lost")
    assert one.mend == "bring a back: they may have them"


def test_copies_that_no_bookie_gives_are_not_to_be_waited_for() -> None:
    """Two answers promised them back, beside the one that said that no bookie gives them."""
    missed = task(bookies={"a": Reason.LACKS}, missed=(Missed(3, 4, True, (), {}),), error="no bookie gives them")
    lacking = {"lacking": {7: frozenset("a")}, "fragments": (fragment("a", ack_quorum=1),), "tasks": (missed,)}
    lost, rot = health_of(facts(statuses={"a": status("a", lacking_ledgers=1)}, **lacking)).troubles
    assert (lost.kind, rot.kind) == ("entries-lost", "rot")
    assert lost.causes[0] == "entries 3..4 (no other bookie is in the write set)"
    assert (rot.causes, rot.mend) == (("no bookie gives entries of 1 ledger",), "check the disk")
    _, rot = health_of(facts(statuses={"a": status("a", lacking_ledgers=2)}, **lacking)).troubles
    assert rot.mend.startswith("autorecovery brings the others back")


def test_tasks_that_wait_for_bookies_that_are_down_are_told_with_these() -> None:
    waits = task(bookies={"a": Reason.LACKS}, error="a lacks entries of ledger 7 and is not registered", attempts=1)
    assert kinds(facts({"a": DOWN}, tasks=(waits,), autorecovery=autorecovery())) == ["bookie-down"]
    assert kinds(facts(tasks=(waits,), autorecovery=autorecovery())) == ["repair-fails"]


def test_bookies_that_heal_take_new_entries() -> None:
    """All three healed and took every add, and no bookie took new entries, it said."""
    found = facts({name: {"settled": False, "unsettled_why": "heals itself"} for name in "abc"})
    assert "nothing-writable" not in kinds(found) and "3 take new entries" in health_of(found).sentence


def test_health_is_printed_as_lines_and_as_json() -> None:
    health = health_of(facts({"a": DOWN}, autorecovery=autorecovery(enabled=False)))
    lines = list(health_lines(health))
    assert lines[0].startswith("zk:2181 has troubles: 2 of 3 bookies are up") and lines[-1] == f"next: {health.command}"
    told = msgspec.json.decode(msgspec.json.encode(document(health)))
    assert [one["severity"] for one in told["troubles"]] == ["trouble", "trouble"] and told["command"] == health.command
    assert list(health_lines(Health("all is well"))) == ["all is well"]


def test_parse_rejects_unknown_commands_and_options() -> None:
    parse(["autorecovery", "enable"])
    for wrong in (["autorecovery", "mend"], ["bookie", "collect"], ["why", "--no-such-option"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            parse(wrong)


@pytest.mark.parametrize("label", [b"9" * 5000, b"x", b"\xff", "²".encode()], ids=range(4))
def test_epoch_label_that_is_not_a_number_is_not_ours(label: bytes) -> None:
    ledger = replace(LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("a",)),)), custom_metadata={EPOCH_LABEL: label})
    assert _lost_the_log(LedgerFacts(ledger, log=LogRecord("orders", LogOptions(), b"", epoch=3))) is None
    was = replace(ledger, custom_metadata={EPOCH_LABEL: b"2"})
    assert "epoch 2" in str(_lost_the_log(LedgerFacts(was, log=LogRecord("orders", LogOptions(), b"", epoch=3))))


def test_answer_about_an_open_ledger_counts_the_entries_that_came_during_the_look() -> None:
    ledger = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("a",)),))
    found = why_not_closed(
        facts(), LedgerFacts(ledger, held={"a": [(0, 14)]}, held_before={"a": [(0, 9)]}, seconds=2.0)
    )
    assert found.verdict == "ledger 7 is being written: its writer closes it"
    assert found.causes == ("5 entries in 2.0 s",)

"""``bookspark autorecovery …``: the auditor, the replication workers and their tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.operations.cli.terminal import settings
from bookspark.operations.cli.terminal.command_options import BookieId, Json, Zookeeper, client, given, group
from bookspark.operations.cli.terminal.output import print_json, print_table, problem, say
from bookspark.operations.cli.terminal.signals import UNTIL, until_signal
from bookspark.operations.why.words import duration
from bookspark.support.command_line import FOUND
from bookspark.support.log_lines import begin_log
from bookspark.support.plain_text import counted, size_text

if TYPE_CHECKING:
    from bookspark.store.autorecovery.decommission import DecommissionProgress
    from bookspark.store.autorecovery.status import AutorecoveryStatus
    from bookspark.store.metadata.autorecovery.auditors import CheckReport

app = group("autorecovery", "Copy again what was lost: run autorecovery, watch it, control it.")


Timeout = Annotated[float, typer.Option("--timeout", min=0.0, help="Longest wait, in seconds.")]
_POLL_SECONDS = 1.0
_NOBODY_KNOWS = "nobody knows"
_NO_AUDITOR = "none; start one with `bookspark autorecovery run`"


@app.command(help=f"Run a replication worker and an auditor, {UNTIL}.")
def run(zookeeper: Zookeeper = "") -> None:
    from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
    from bookspark.store.autorecovery.process import Autorecovery
    from bookspark.store.client import BookKeeper

    begin_log()
    config = autorecovery_config(**settings.chosen("autorecovery"))
    bookkeeper = BookKeeper(given(zookeeper), **settings.chosen("client"))
    with until_signal() as stop, Autorecovery(bookkeeper, config) as running:
        say(running.name)
        stop()


@app.command()
def status(zookeeper: Zookeeper = "", as_json: Json = False) -> None:
    """Print losses, repairs and their estimated time."""
    from bookspark.store.autorecovery.status import autorecovery_status
    from bookspark.store.cluster_view import learn_time

    with client(zookeeper) as bookkeeper:
        now_ms = learn_time(bookkeeper)
        found = autorecovery_status(bookkeeper.metadata)
    if as_json:
        print_json(found)
        return
    for name, text in _status_lines(found, now_ms).items():
        say(f"{name:<12}{text}")
    for ledger_id, missed in found.missed.items():
        for one in missed:
            say(f"{'lost' if one.lost else 'not copied':<12}ledger {ledger_id}: {one}")


@app.command("list")
def list_tasks(zookeeper: Zookeeper = "", as_json: Json = False) -> None:
    """Print the ledgers that lack copies, with reason, worker and last problem."""
    from bookspark.store.autorecovery.status import task_statuses
    from bookspark.store.cluster_view import learn_time

    with client(zookeeper) as bookkeeper:
        learn_time(bookkeeper)
        unreadable: dict[int, str] = {}
        found = task_statuses(bookkeeper.metadata, unreadable)
    for ledger_id, why in unreadable.items():
        problem(f"the task of ledger {ledger_id} is left out: {why}")
    if as_json:
        print_json(found)
        return
    columns = ("ledger", "bookies", "found", "since", "worker", "attempts", "next in", "last problem")
    rows = [
        (
            str(one.ledger_id),
            ", ".join(f"{bookie} ({reason.value})" for bookie, reason in one.bookies.items()),
            one.detail,
            duration(one.marked_seconds_ago),
            one.holder or "",
            one.attempts,
            duration(one.next_attempt_seconds) if one.next_attempt_seconds else "",
            one.error,
        )
        for one in found
    ]
    print_table(columns, rows, spare=("attempts", "since", "next in"))


@app.command()
def trigger(zookeeper: Zookeeper = "", timeout: Timeout = 600.0, as_json: Json = False) -> None:
    """Compare each bookie's held and assigned entries now, and mark ledgers that lack copies.

    Exit status: 1 if copies are missing or something was not checked; 2 after --timeout, while the check goes on.
    """
    from bookspark.store.cluster_view import learn_time

    with client(zookeeper) as bookkeeper:
        auditors = bookkeeper.metadata.auditors
        if auditors.auditor() is None:
            raise BookKeeperError("there is no auditor; start one with `bookspark autorecovery run`")
        auditors.trigger()
        deadline = time.monotonic() + timeout
        while auditors.triggered() is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BookKeeperError(f"the check takes longer than {timeout:g} s; see `bookspark autorecovery status`")
            auditors.wait(min(left, _POLL_SECONDS))
        report, now_ms = auditors.last_check(), learn_time(bookkeeper)
    if report is None:
        raise BookKeeperError("the auditor wrote no report; see its log")
    if as_json:
        print_json(report, one_line=True)
    else:
        say(_check_text(report, now_ms))
    if report.marked or report.skipped or report.unreadable:
        raise typer.Exit(FOUND)


@app.command("who-is-auditor")
def who_is_auditor(zookeeper: Zookeeper = "") -> None:
    """Print the name of the auditor: host and process id."""
    with client(zookeeper) as bookkeeper:
        auditor = bookkeeper.metadata.auditors.auditor()
    if auditor is None:
        raise BookKeeperError("there is no auditor; start one with `bookspark autorecovery run`")
    say(auditor)


@app.command()
def delay(
    seconds: Annotated[
        str | None, typer.Argument(metavar="[SECONDS|default]", help="The new delay. Default: print the delay.")
    ] = None,
    zookeeper: Zookeeper = "",
) -> None:
    """Print or set the time until an absent bookie counts as lost, for all auditors."""
    with client(zookeeper) as bookkeeper:
        auditors = bookkeeper.metadata.auditors
        if seconds is not None:
            auditors.set_delay(_seconds(seconds))
        now = auditors.delay_seconds()
    say("not set: each auditor uses its setting lost_bookie_delay_seconds" if now is None else f"{now:g} s")


@app.command()
def enable(zookeeper: Zookeeper = "") -> None:
    """Undo `disable`."""
    with client(zookeeper) as bookkeeper:
        bookkeeper.metadata.underreplication.enable()


@app.command()
def disable(zookeeper: Zookeeper = "") -> None:
    """Begin no repair and mark nothing until `enable`. Running repairs finish."""
    with client(zookeeper) as bookkeeper:
        bookkeeper.metadata.underreplication.disable()


@app.command()
def decommission(
    bookie: BookieId,
    zookeeper: Zookeeper = "",
    timeout: Timeout = 86400.0,
) -> None:
    """Remove a stopped bookie for good: wait until others have its copies, then remove its cookie.

    Can be repeated. Needs a running `bookspark autorecovery run`.
    """
    from bookspark.store.autorecovery.decommission import decommission

    told: list[DecommissionProgress] = []

    def tell(progress: DecommissionProgress) -> None:
        if progress not in told[-1:]:
            told.append(progress)
            why = f"; {progress.problem}" if progress.problem else ""
            say(
                f"{progress.ledgers_left:,} of {counted(progress.ledgers, 'ledger')} left that name {bookie}{why}",
                err=True,
            )

    with client(zookeeper) as bookkeeper:
        decommission(bookkeeper, bookie, timeout_seconds=timeout, progress=tell)
    say(f"{bookie} is removed from the cluster")


def _status_lines(found: AutorecoveryStatus, now_ms: int) -> dict[str, str]:
    left = "nothing" if found.auditor else _NOBODY_KNOWS
    if found.ledgers:
        time_left = "unknown time" if found.seconds_left is None else f"about {duration(found.seconds_left)}"
        least = "" if found.auditor else "at least "
        left = f"{least}{counted(found.ledgers, 'ledger')}, {size_text(found.bytes_left)}, {time_left}"
    rate = "" if found.bytes_per_second is None else f", {size_text(found.bytes_per_second)}/s"
    lost = _NOBODY_KNOWS if found.lost is None else ", ".join(found.lost) or "none"
    away = _NOBODY_KNOWS
    if found.away is not None:
        away = ", ".join(f"{bookie} in {duration(seconds)}" for bookie, seconds in found.away.items()) or "none"
    return {
        "auditor": (found.auditor or _NO_AUDITOR) + ("" if found.enabled else " (autorecovery is disabled)"),
        "workers": f"{len(found.workers)}{rate}",
        "lost": lost,
        "may be lost": away,
        "left": left,
        "at work": f"{counted(found.being_repaired, 'ledger')}; {found.failed:,} failed the last time",
        **({"unreadable": _named(found.unreadable)} if found.unreadable else {}),
        "last check": ("none" if found.last_check is None else _check_text(found.last_check, now_ms))
        + ("; another is under way" if found.checking else ""),
    }


def _named(unreadable: Mapping[int, str]) -> str:
    return "; ".join(f"ledger {ledger_id}: {why}" for ledger_id, why in unreadable.items())


def _check_text(report: CheckReport, now_ms: int) -> str:
    skipped = "; ".join(f"{bookie} was not asked: {why}" for bookie, why in report.skipped.items())
    ago = duration(max(0.0, (now_ms - report.finished_at_ms) / 1000))
    return (
        f"copies lacking in {report.marked:,} of {counted(report.ledgers, 'ledger')}, {ago} ago{'; ' if skipped else ''}{skipped}"
        + (f"; not checked: {_named(report.unreadable)}" if report.unreadable else "")
    )


def _seconds(text: str) -> float | None:
    if text == "default":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigurationError(f"{text!r} is no number of seconds; write a number of 0 or more, or default")
    return seconds

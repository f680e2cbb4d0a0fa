"""``bookspark cluster …``: plan, execution and progress of changes of a live cluster."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookspark.errors import ConfigurationError
from bookspark.operations.cli.terminal import settings
from bookspark.operations.cli.terminal.command_options import Json, Yes, Zookeeper, client, group, grouped
from bookspark.operations.cli.terminal.output import print_json, say, say_lines
from bookspark.operations.cli.terminal.signals import interruptible
from bookspark.support.command_line import FOUND
from bookspark.support.plain_text import size_text

if TYPE_CHECKING:
    from bookspark.operations.changes.applying import Applying
    from bookspark.operations.changes.change_record import ChangeRecord
    from bookspark.protocol.changes.observed import Observed
    from bookspark.protocol.changes.steps import Decision, Step
    from bookspark.protocol.changes.wanted import Progress, Wanted
    from bookspark.store.client import BookKeeper

app = group("cluster", "Change a cluster that lives: restart, upgrade, grow, shrink, move bookies, replace disks.")


_ALL = "all"


@dataclass(frozen=True)
class Wishes:
    """Options that name a change."""

    restart: Annotated[
        list[str] | None,
        typer.Option(metavar="BOOKIE|all", help="Restart this bookie, in sequence. May be repeated."),
    ] = None
    upgrade_to: Annotated[
        str,
        typer.Option(metavar="VERSION", help="Restart bookies of other versions, all or those of --restart."),
    ] = ""
    replace_disk: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BOOKIE=DIRECTORY",
            help="Replace a directory's disk by an empty one. The bookie heals itself.",
        ),
    ] = None
    move: Annotated[
        list[str] | None,
        typer.Option(
            "--move",
            metavar="BOOKIE=TARGET",
            help="The bookie leaves; TARGET (a bookie or a host) gets its copies.",
        ),
    ] = None
    remove: Annotated[
        list[str] | None, typer.Option(metavar="BOOKIE", help="The bookie leaves; the others get its copies.")
    ] = None
    balance: Annotated[bool, typer.Option("--balance", help="Move copies to the emptiest bookies.")] = False
    at_once: Annotated[
        int, typer.Option(min=1, max=1000, help="Bookies that it may make read-only or stop at once.")
    ] = 1
    below_write_quorum: Annotated[
        bool,
        typer.Option(
            "--below-write-quorum",
            help="Restart bookies of ledgers being written while an ack quorum stays up.",
        ),
    ] = False


_MOVES_TOLD = 20


@app.command()
@grouped
def plan(wishes: Wishes = Wishes(), zookeeper: Zookeeper = "", as_json: Json = False) -> None:
    """Print what `apply` would do.

    Exit status 1: the cluster's state does not allow the whole change.
    """
    from bookspark.operations.changes.looking import Looking
    from bookspark.protocol.changes.wanted import begin

    with client(zookeeper) as bookkeeper:
        observed = Looking(bookkeeper).look()
    wanted = _wanted(observed, wishes)
    if wanted is None:
        raise ConfigurationError("say what is wanted: --restart, --upgrade-to, --remove, … (see --help)")
    steps, end = _foreseen(wanted, begin(wanted, observed), observed)
    if as_json:
        print_json(_plan_document(steps, end))
    else:
        say_lines(_plan_lines(steps, end))
    if not end.complete:
        raise typer.Exit(FOUND)


@app.command()
@grouped
def apply(wishes: Wishes = Wishes(), zookeeper: Zookeeper = "", yes: Yes = False, as_json: Json = False) -> None:
    """Print the plan, ask, and carry it out. Without options: resume the current change.

    It says when to restart, stop or equip a bookie, and notices that. It can be ended and resumed at any time, from any host.
    """
    from bookspark.operations.changes.looking import Looking
    from bookspark.protocol.changes.wanted import begin

    with client(zookeeper) as bookkeeper, interruptible():
        observed = Looking(bookkeeper).look()
        wanted = _wanted(observed, wishes)
        if wanted is not None:
            steps, end = _foreseen(wanted, begin(wanted, observed), observed)
            say_lines(_plan_lines(steps, end), err=True)
            if not yes:
                typer.confirm("Do it?", abort=True, err=True)
        with _applying(bookkeeper) as applying:
            if wanted is not None:
                applying.begin(wanted)
            record = applying.run()
    _echo_record(record, as_json)


@app.command()
def status(zookeeper: Zookeeper = "", as_json: Json = False) -> None:
    """Print the current or last change and its next step.

    Exit status 1: a change is under way.
    """
    from bookspark.operations.changes.change_record import Kept
    from bookspark.operations.changes.looking import Looking
    from bookspark.protocol.changes.planner import decide

    with client(zookeeper) as bookkeeper:
        record = Kept(bookkeeper.metadata).read()
        holder = bookkeeper.metadata.change_lock.holder()
        decision: Decision | None = None
        if record is not None and record.under_way:
            decision = decide(record.wanted.wanted(), record.progress.progress(), Looking(bookkeeper).look())
    if as_json:
        found = {
            "change": record,
            "applied_by": holder,
            "next": [] if decision is None else [str(step) for step in decision.steps],
            "waits": [] if decision is None else decision.waits,
            "refusals": [] if decision is None else decision.refusals,
        }
        print_json(found)
    elif record is None:
        say("nobody ever changed this cluster by `bookspark cluster apply`")
    else:
        say_lines(_record_lines(record))
        if decision is not None:
            say(f"applied by  {holder or 'nobody; go on by `bookspark cluster apply`'}")
            say_lines(_decision_lines(decision))
    if decision is not None:
        raise typer.Exit(FOUND)


@app.command("give-up")
def give_up(zookeeper: Zookeeper = "", as_json: Json = False) -> None:
    """Give up the current change: its read-only bookies take entries again. Moved copies stay."""
    with client(zookeeper) as bookkeeper, interruptible(), _applying(bookkeeper) as applying:
        applying.give_up()
        record = applying.run()
    _echo_record(record, as_json)


@app.command()
def placement(
    rule: Annotated[
        str, typer.Argument(help="rack_aware, random, one_per_host, or one_per_<label> with a label of the bookies.")
    ] = "",
    racks_min: Annotated[
        int, typer.Option(min=1, help="With rack_aware: fewest racks for an entry's copies; fewer are refused.")
    ] = 1,
    zookeeper: Zookeeper = "",
    as_json: Json = False,
) -> None:
    """Print the cluster's placement rule; with RULE, change it first.

    Running clients follow it at once, and autorecovery moves misplaced copies of closed ledgers.
    """
    from bookspark.protocol.ledger.placement import PlacementRule
    from bookspark.store.cluster_view import known_bookies, with_homes
    from bookspark.store.metadata.placement_rule import read_placement, write_placement

    if racks_min > 1 and not rule:
        raise ConfigurationError("--racks-min needs the rule: bookspark cluster placement rack_aware --racks-min …")
    with client(zookeeper) as bookkeeper:
        store = bookkeeper.metadata
        if rule:
            write_placement(store, PlacementRule(rule, racks_min))
            store.auditors.trigger()
        found = read_placement(store)
        view = with_homes(known_bookies(store), store)
    by_rack: dict[str, list[str]] = {}
    for name, one in view.bookies.items():
        by_rack.setdefault(one.rack, []).append(name if one.registration is not None else f"{name} (down)")
    if as_json:
        print_json({"rule": found.name, "racks_min": found.racks_min, "racks": by_rack})
        return
    say(f"placement   {found}")
    for rack, names in sorted(by_rack.items()):
        say(f"{f'rack {rack}' if rack else 'no rack':<12}{', '.join(names)}")


def _applying(bookkeeper: BookKeeper) -> Applying:
    from bookspark.operations.changes.applying import Applying
    from bookspark.operations.changes.hands import AskOperator
    from bookspark.store.changes_config import changes_config

    def tell(text: str) -> None:
        say(text, err=True)
        sys.stderr.flush()

    return Applying(bookkeeper, AskOperator(tell), changes_config(**settings.chosen("changes")), tell)


# -- options


def _wanted(observed: Observed, wishes: Wishes) -> Wanted | None:
    """The wanted state by the options; None without options."""
    from bookspark.protocol.changes.wanted import Wanted

    restarted, removed = set(wishes.restart or ()), frozenset(wishes.remove or ())
    disks, moves = _pairs("--replace-disk", wishes.replace_disk), _pairs("--move", wishes.move)
    if not (restarted or wishes.upgrade_to or disks or moves or removed or wishes.balance):
        return None
    if _ALL in restarted or (wishes.upgrade_to and not restarted):
        restarted = set(observed.bookies) - moves.keys() - removed - disks.keys()
    return Wanted(
        restart=frozenset(restarted),
        version=wishes.upgrade_to,
        replace_disks=disks,
        move={bookie: _targets(observed, bookie, target) for bookie, target in moves.items()},
        remove=removed,
        balance=wishes.balance,
        at_once=wishes.at_once,
        below_write_quorum=wishes.below_write_quorum,
    )


def _pairs(option: str, given: Iterable[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not (name and separator and value) or name in found:
            raise ConfigurationError(f"{option} {text!r} can't be used; write BOOKIE=…, and each bookie once")
        found[name] = value
    return found


def _targets(observed: Observed, bookie: str, target: str) -> tuple[str, ...]:
    if target in observed.bookies:
        return (target,)
    found = [name for name, one in sorted(observed.bookies.items()) if one.host == target and name != bookie]
    if not found:
        raise ConfigurationError(
            f"{target!r} in --move is neither a bookie nor a host with one; start a bookie there first"
        )
    return tuple(found)


# -- output


def _foreseen(wanted: Wanted, progress: Progress, observed: Observed) -> tuple[list[Step], Decision]:
    from bookspark.protocol.changes.foresight import foreseen

    *steps, end = foreseen(wanted, progress, observed)
    return steps, end  # type: ignore[return-value]


def _plan_document(steps: Sequence[Step], end: Decision) -> dict[str, Any]:
    from bookspark.protocol.changes.steps import Move

    moves = [one for one in steps if isinstance(one, Move)]
    return {
        "steps": [_step_document(one) for one in steps],
        "moves": len(moves),
        "moved_bytes": sum(one.byte_count for one in moves),
        "waits": end.waits,
        "refusals": end.refusals,
    }


def _step_document(step: Step) -> Mapping[str, Any]:
    fields = {name: getattr(step, name) for name in step.__dataclass_fields__}
    return {"step": type(step).__name__, **fields, "text": str(step)}


def _plan_lines(steps: Sequence[Step], end: Decision) -> list[str]:
    """A line for each step, and one for each run of moves."""
    from bookspark.protocol.changes.steps import Move

    lines: list[str] = []
    run: list[Move] = []

    def tell_run() -> None:
        if run:
            sizes = size_text(sum(one.byte_count for one in run))
            sources = Counter(one.source for one in run)
            told = ", ".join(f"{count:,} from {name}" for name, count in sorted(sources.items())[:_MOVES_TOLD])
            more = f" and {len(sources) - _MOVES_TOLD} more bookies" if len(sources) > _MOVES_TOLD else ""
            lines.append(f"move {len(run):,} fragments, {sizes}: {told}{more}")
            run.clear()

    for one in steps:
        if isinstance(one, Move):
            run.append(one)
        else:
            tell_run()
            lines.append(str(one))
    tell_run()
    if not lines and end.complete:
        lines.append("nothing is to be done")
    return lines + list(_decision_lines(end))


def _decision_lines(decision: Decision) -> Iterable[str]:
    for step in decision.steps[:_MOVES_TOLD]:
        yield f"next        {step}"
    for text in decision.waits:
        yield f"waits       {text}"
    for text in decision.refusals:
        yield f"impossible  {text}"


def _record_lines(record: ChangeRecord) -> Iterable[str]:
    wanted = record.wanted
    said = {
        "restart": ", ".join(wanted.restart) + (f" with version {wanted.version}" if wanted.version else ""),
        "new disk": ", ".join(f"{name} {directory}" for name, directory in wanted.replace_disks.items()),
        "move": ", ".join(f"{name} to {', '.join(targets)}" for name, targets in wanted.move.items()),
        "remove": ", ".join(wanted.remove),
        "balance": "yes" if wanted.balance else "",
        "read-only": ", ".join(record.progress.quieted),
        "taken down": ", ".join(record.progress.away),
    }
    yield f"state       {record.state.value}{'' if record.under_way else ', nothing is left to be done'}"
    yield f"made        {record.steps:,} steps, {record.moves:,} moves, {size_text(record.moved_bytes)} copied"
    for name, text in said.items():
        if text:
            yield f"{name:<12}{text}"


def _echo_record(record: ChangeRecord, as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    say_lines(_record_lines(record))

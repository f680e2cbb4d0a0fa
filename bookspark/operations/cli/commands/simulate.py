"""``bookspark simulate``: the protocol's real machines through every order of events within bounds, or through random orders.

Law: a violation ends with the exit status of a finding (``bookspark.support.command_line``), after its story. Standard output
depends only on the options, so two runs can be compared byte for byte; its last line is one JSON object. Standard error reports
the speed, and whether the simulator's modules were compiled (``bookspark.lab.simulation.compiled``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bookspark.errors import ConfigurationError
from bookspark.lab.simulation.compiled import SHARED, use_compiled
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.operations.cli.terminal.output import print_json, problem
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.support.command_line import FOUND

if TYPE_CHECKING:
    from bookspark.lab.simulation.search.coverage import Pair
    from bookspark.lab.simulation.state import Move
    from bookspark.lab.simulation.view import Violation
    from bookspark.lab.simulation.world import World

_CHANGE_MODES = {mode.value.replace(" ", "-"): mode for mode in ChangeMode}
_SIZES, _TROUBLE, _MODES, _SWITCHES = "Sizes", "Trouble", "Modes", "Safety switches"


def _number(help_text: str, panel: str) -> Any:
    return typer.Option(min=0, help=help_text, rich_help_panel=panel, show_default=False)


def _switch(name: str) -> Any:
    what = dict(SimulationOptions.switches())[name]
    return typer.Option(f"--no-{name.replace('_', '-')}", help=f"Switched off: {what}.", rich_help_panel=_SWITCHES)


def simulate(
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Check every order of events within the bounds.")
    ] = False,
    random: Annotated[int | None, typer.Option(min=1, metavar="N", help="Check N random schedules.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First random seed; each next schedule has the seed + 1.")] = 0,
    states_max: Annotated[int | None, typer.Option(min=1, help="End an exhaustive search at this many states.")] = None,
    seconds_max: Annotated[float | None, typer.Option(min=0, help="End after this many seconds.")] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Name state-event pairs that never came.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a violation's sequence diagram to this page."),
    ] = None,
    ensemble: Annotated[int | None, _number("Bookies in an ensemble (3).", _SIZES)] = None,
    write_quorum: Annotated[int | None, _number("Copies of an entry (3).", _SIZES)] = None,
    ack_quorum: Annotated[int | None, _number("Copies that confirm an entry (2).", _SIZES)] = None,
    spares: Annotated[int | None, _number("Bookies outside the first ensemble (0).", _SIZES)] = None,
    entries: Annotated[int | None, _number("Entries that the writer appends at most (1).", _SIZES)] = None,
    recoverers: Annotated[int | None, _number("Attempts at ledger recovery (1).", _SIZES)] = None,
    readers: Annotated[int | None, _number("Tailing readers (0).", _SIZES)] = None,
    reads: Annotated[int | None, _number("How often each of them reads (2).", _SIZES)] = None,
    explicit_lacs: Annotated[
        int | None, _number("How often the writer sends its last add confirmed (LAC) by itself (0).", _SIZES)
    ] = None,
    replicators: Annotated[int | None, _number("Attempts of autorecovery (0).", _SIZES)] = None,
    hold_ups: Annotated[int | None, _number("Times that a bookie holds the writer up (0).", _TROUBLE)] = None,
    crashes: Annotated[int | None, _number("Bookie crashes (0).", _TROUBLE)] = None,
    losses: Annotated[int | None, _number("Messages that time out (0).", _TROUBLE)] = None,
    duplicates: Annotated[int | None, _number("Requests that arrive twice (0).", _TROUBLE)] = None,
    departures: Annotated[int | None, _number("Bookies that go away for good (0).", _TROUBLE)] = None,
    accept_loss: Annotated[
        bool | None,
        typer.Option(
            help="Does an operator accept losses, with lost bookies named?",
            rich_help_panel=_MODES,
        ),
    ] = None,
    crash_loses: Annotated[
        CrashLoses | None, typer.Option(help="What a crash takes of a bookie's disks.", rich_help_panel=_TROUBLE)
    ] = None,
    closes: Annotated[
        bool | None, typer.Option(help="May the writer close the ledger?", rich_help_panel=_MODES)
    ] = None,
    abandons: Annotated[
        bool | None, typer.Option(help="May the writer's client end at any moment?", rich_help_panel=_MODES)
    ] = None,
    holds_back: Annotated[
        bool | None, typer.Option(help="Do adds wait for a bookie that is behind?", rich_help_panel=_MODES)
    ] = None,
    long_polls: Annotated[
        bool | None, typer.Option(help="May readers wait for an entry?", rich_help_panel=_MODES)
    ] = None,
    second_ledger: Annotated[
        bool | None,
        typer.Option(help="Do the bookies have a second ledger? Random schedules only.", rich_help_panel=_MODES),
    ] = None,
    deletes: Annotated[
        bool | None, typer.Option(help="May the ledger be deleted and garbage-collected?", rich_help_panel=_MODES)
    ] = None,
    heals: Annotated[
        bool | None, typer.Option(help="Do bookies heal after a boot that lost entries?", rich_help_panel=_MODES)
    ] = None,
    journal_write_data: Annotated[
        bool | None,
        typer.Option(help="Do bookies acknowledge after the sync, or before it (BP-46)?", rich_help_panel=_MODES),
    ] = None,
    ledger_type: Annotated[
        LedgerType | None, typer.Option(help="Durability of the ledger (BP-14).", rich_help_panel=_MODES)
    ] = None,
    replication: Annotated[
        Replication | None,
        typer.Option(
            help="Copies of a closed ledger: ack quorum or write quorum (guaranteed).",
            rich_help_panel=_MODES,
        ),
    ] = None,
    ensemble_changes: Annotated[
        str | None,
        typer.Option(metavar="|".join(_CHANGE_MODES), help="When failed bookies are replaced.", rich_help_panel=_MODES),
    ] = None,
    no_limbo: Annotated[bool, _switch("limbo")] = False,
    no_boot_fencing: Annotated[bool, _switch("boot_fencing")] = False,
    no_lossy_boot_mark: Annotated[bool, _switch("lossy_boot_mark")] = False,
    no_fence_on_recovery_read: Annotated[bool, _switch("fence_on_recovery_read")] = False,
    no_sync_on_recovery_add: Annotated[bool, _switch("sync_on_recovery_add")] = False,
    no_collection_mark: Annotated[bool, _switch("collection_mark")] = False,
    no_named_losses: Annotated[bool, _switch("named_losses")] = False,
    no_later_entries: Annotated[bool, _switch("later_entries")] = False,
    no_pinning: Annotated[bool, _switch("pinning")] = False,
) -> None:
    """Check the protocol: in no order of events is acknowledged data lost, truncated or contradicted.

    A random search draws all other options for each schedule. With a protection switched off, the search finds the violation
    that it prevents, and prints its story.
    """
    given = locals()
    if exhaustive == (random is not None):
        _refuse("give either --exhaustive or --random N")
    if ensemble_changes is not None and ensemble_changes not in _CHANGE_MODES:
        _refuse(f"--ensemble-changes is one of {', '.join(_CHANGE_MODES)}, not {ensemble_changes}")
    given["ensemble_changes"] = None if ensemble_changes is None else _CHANGE_MODES[ensemble_changes]
    options = {
        name: given[name]
        for name in SimulationOptions.__dataclass_fields__
        if name in given and given[name] is not None
    }
    options |= {name: False for name, _ in SimulationOptions.switches() if given[f"no_{name}"]}
    use_compiled()
    try:
        if random is None:
            _exhaustive(SimulationOptions(**options), states_max, seconds_max, page, coverage)
        else:
            _random(options, random, seed, seconds_max, page, coverage)
    except ConfigurationError as error:
        _refuse(str(error))


def _refuse(message: str) -> NoReturn:
    raise typer.BadParameter(message)


def _exhaustive(
    options: SimulationOptions, states_max: int | None, seconds_max: float | None, page: Path | None, coverage: bool
) -> None:
    from bookspark.lab.simulation.search.coverage import met_pairs
    from bookspark.lab.simulation.search.exhaustive import Exhaustive

    search = Exhaustive(options)
    result = search.run(states_max, seconds_max)
    _speed(result.states, "states", result.seconds)
    document = {**_met(met_pairs(search.world.met), coverage), "states": result.states, "finished": result.finished}
    if result.violation is None:
        _end(document)
    else:
        _tell(document, search.world, result.moves, result.violation, f"--exhaustive {options.arguments()}", page)


def _random(
    given: dict[str, Any], schedules: int, seed: int, seconds_max: float | None, page: Path | None, coverage: bool
) -> None:
    from bookspark.lab.simulation.search.random_schedules import RandomSchedules

    search = RandomSchedules(given)
    result = search.run(schedules, seed, seconds_max)
    _speed(result.schedules, "schedules", result.seconds)
    failure = result.failure
    finished = result.schedules == schedules or failure is not None
    document = {**_met(search.met, coverage), "schedules": result.schedules, "finished": finished}
    if failure is None:
        _end(document)
        return
    fixed = failure.options.arguments(given)
    typer.echo(f"seed {failure.seed}, {failure.moves_before} steps, shrunk to {len(failure.moves)}")
    typer.echo(f"options drawn: {failure.options.arguments()}")
    typer.echo(f"options of the story: {failure.world.options.arguments()}")
    command = f"--random 1 --seed {failure.seed} {fixed}"
    _tell(document, failure.world, failure.moves, failure.violation, command, page)


def _met(met: frozenset[Pair], coverage: bool) -> dict[str, Any]:
    """Counts of state-event pairs: met, and in all."""
    from bookspark.lab.simulation.search.coverage import all_pairs

    pairs = all_pairs()
    for pair in sorted(pairs - met) if coverage else ():
        typer.echo(f"never came: {pair.event} to a {pair.machine} that is {pair.state}")
    return {"pairs_met": len(met), "pairs": len(pairs)}


def _speed(count: int, what: str, seconds: float) -> None:
    how = " (compiled)" if SHARED in sys.modules else ""
    typer.echo(f"{count:,} {what}, {count / max(seconds, 1e-9):,.0f} a second of processor time{how}", err=True)


def _tell(
    document: dict[str, Any], world: World, moves: Sequence[Move], violation: Violation, options: str, page: Path | None
) -> NoReturn:
    from bookspark.lab.simulation.story import tell
    from bookspark.lab.simulation.story_page import story_page

    command = f"bookspark simulate {options}".rstrip()
    for line in tell(world, moves):
        typer.echo(line)
    typer.echo(f"again: {command}")
    if page is not None:
        try:
            page.write_text(story_page(world, moves, violation, command), encoding="utf-8")
        except OSError as error:
            problem(f"the page can't be written: {error}")
    _end(document, {**violation._asdict(), "steps": len(moves)})
    raise typer.Exit(FOUND)


def _end(document: dict[str, Any], violation: dict[str, Any] | None = None) -> None:
    print_json({**document, "violation": violation}, one_line=True)


def add_to(app: typer.Typer) -> None:
    app.command()(simulate)

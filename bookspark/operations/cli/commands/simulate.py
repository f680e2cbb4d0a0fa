"""``bookspark simulate``: the protocol's real machines through every order of events within bounds, or through random orders.

Law: a violation ends with the exit status of a finding (``bookspark.support.command_line``), after its story. Standard output
depends only on the options, so two runs can be compared byte for byte; its last line is one JSON object. Standard error reports
the speed, and whether the simulator's modules were compiled (``bookspark.lab.simulation.compiled``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer

from bookspark.errors import ConfigurationError
from bookspark.lab.simulation.compiled import SHARED, use_compiled
from bookspark.lab.simulation.simulation_options import MODES, SIZES, SWITCHES, TROUBLE, SimulationOptions, word_of
from bookspark.operations.cli.terminal.command_options import with_parameters
from bookspark.operations.cli.terminal.output import print_json, problem, say, say_lines
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.support.command_line import FOUND

if TYPE_CHECKING:
    from bookspark.lab.simulation.search.coverage import Pair
    from bookspark.lab.simulation.state import Move
    from bookspark.lab.simulation.view import Violation
    from bookspark.lab.simulation.world import World

_GROUPS = (SIZES, TROUBLE, MODES, SWITCHES)
_CHANGE_MODES = {word_of(mode): mode for mode in ChangeMode}


def simulate(
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Check every order of events within the bounds.")
    ] = False,
    random: Annotated[int | None, typer.Option(min=1, metavar="N", help="Check N random schedules.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First random seed; the next schedule has the next one.")] = 0,
    states_max: Annotated[int | None, typer.Option(min=1, help="End an exhaustive search at this many states.")] = None,
    seconds_max: Annotated[float | None, typer.Option(min=0, help="End after this many seconds.")] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Name state-event pairs that never occurred.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a violation's sequence diagram here."),
    ] = None,
    **given: Any,
) -> None:
    """Check that no order of events loses, truncates or contradicts acknowledged data.

    A random search draws all other options for each schedule. With a protection switched off, the search finds a violation
    and prints its story.
    """
    if exhaustive == (random is not None):
        _refuse("give either --exhaustive or --random N")
    mode = given["ensemble_changes"]
    if mode is not None and mode not in _CHANGE_MODES:
        _refuse(f"--ensemble-changes is one of {', '.join(_CHANGE_MODES)}, not {mode}")
    options = {name: value for name, value in given.items() if value is not None and not name.startswith("no_")}
    if mode is not None:
        options["ensemble_changes"] = _CHANGE_MODES[mode]
    options |= {name: False for name in SimulationOptions.switches() if given[f"no_{name}"]}
    use_compiled()
    try:
        if random is None:
            _exhaustive(SimulationOptions(**options), states_max, seconds_max, page, coverage)
        else:
            _random(options, random, seed, seconds_max, page, coverage)
    except ConfigurationError as error:
        _refuse(str(error))


def _world_options() -> Iterator[inspect.Parameter]:
    """An option for each field of ``SimulationOptions``, group by group; None: not given."""
    kinds = get_type_hints(SimulationOptions)
    for one in sorted(fields(SimulationOptions), key=lambda one: _GROUPS.index(one.metadata["group"])):
        name, kind, default = one.name, kinds[one.name], None
        words: list[str] = []
        told: dict[str, Any] = {"help": one.metadata["help"], "rich_help_panel": one.metadata["group"]}
        if one.metadata["group"] == SWITCHES:
            words, name, default = [f"--no-{name.replace('_', '-')}"], f"no_{name}", False
        elif kind is int:
            told |= {"min": 0, "show_default": False}
        elif kind is ChangeMode:
            kind, told = str, {**told, "metavar": "|".join(_CHANGE_MODES)}
        hint: Any = kind if default is False else kind | None
        note = Annotated[hint, typer.Option(*words, **told)]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=note)


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
    say(f"seed {failure.seed}, {failure.moves_before} steps, shrunk to {len(failure.moves)}")
    say(f"options drawn: {failure.options.arguments()}")
    say(f"options of the story: {failure.world.options.arguments()}")
    command = f"--random 1 --seed {failure.seed} {fixed}"
    _tell(document, failure.world, failure.moves, failure.violation, command, page)


def _met(met: frozenset[Pair], coverage: bool) -> dict[str, Any]:
    """Counts of state-event pairs: met, and in all."""
    from bookspark.lab.simulation.search.coverage import all_pairs

    pairs = all_pairs()
    for pair in sorted(pairs - met) if coverage else ():
        say(f"never came: {pair.event} to a {pair.machine} that is {pair.state}")
    return {"pairs_met": len(met), "pairs": len(pairs)}


def _speed(count: int, what: str, seconds: float) -> None:
    how = " (compiled)" if SHARED in sys.modules else ""
    say(f"{count:,} {what}, {count / max(seconds, 1e-9):,.0f} a second of processor time{how}", err=True)


def _tell(
    document: dict[str, Any], world: World, moves: Sequence[Move], violation: Violation, options: str, page: Path | None
) -> NoReturn:
    from bookspark.lab.simulation.story import tell
    from bookspark.lab.simulation.story_page import story_page

    command = f"bookspark simulate {options}".rstrip()
    say_lines(tell(world, moves))
    say(f"again: {command}")
    if page is not None:
        try:
            page.write_text(story_page(world, moves, violation, command), encoding="utf-8")
        except OSError as error:
            problem(f"the page can't be written: {error}")
    _end(document, {**violation._asdict(), "steps": len(moves)})
    raise typer.Exit(FOUND)


def _end(document: dict[str, Any], violation: dict[str, Any] | None = None) -> None:
    print_json({**document, "violation": violation}, one_line=True)


app = typer.Typer()
_own_options = list(inspect.signature(simulate, eval_str=True).parameters.values())[:-1]
app.command()(with_parameters(simulate, [*_own_options, *_world_options()]))

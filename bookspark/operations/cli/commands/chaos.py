"""``bookspark chaos``: random faults of real bookies under real clients, with checks of the clients' histories. ``bookspark
replay``: recorded decisions repeated by the pure code.

Law: a violation or a different decision ends with the exit status of a finding (``bookspark.support.command_line``). The last
line is one JSON object. The seed fixes the random choices but not their timing: no run repeats exactly, but its record can be
replayed. A record of another version is refused.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookspark.errors import ConfigurationError
from bookspark.operations.cli.terminal.output import print_json, say, say_lines
from bookspark.support.command_line import FOUND
from bookspark.support.log_lines import begin_log
from bookspark.support.plain_text import counted

if TYPE_CHECKING:
    from bookspark.lab.replay.replaying import Counts
    from bookspark.lab.replay.run import Result

_SHOWN_MAX = 5


app = typer.Typer()


@app.command()
def chaos(
    seconds: Annotated[float, typer.Option(min=1, help="Length of the run.")] = 60.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed. Default: a new one.")] = None,
    bookies: Annotated[int, typer.Option(min=5, help="Number of bookies. Ensembles have up to 5.")] = 5,
    writers: Annotated[int, typer.Option(min=1, help="Clients that write ledgers.")] = 3,
    recoverers: Annotated[int, typer.Option(min=0, help="Clients that recover ledgers of others.")] = 2,
    readers: Annotated[int, typer.Option(min=0, help="Clients that read.")] = 2,
    faults_at_once: Annotated[int, typer.Option(min=0, help="Broken bookies or links at once, at most.")] = 2,
    record: Annotated[
        str, typer.Option(metavar="FOLDER", help="Record all decisions here, for bookspark replay.")
    ] = "",
    report_seconds: Annotated[float, typer.Option(min=1, help="Time between lines of progress.")] = 10.0,
) -> None:
    """Kill, suspend and restart bookies and cut links of a new cluster at random, and check the laws: acknowledged entries
    stay readable, an entry has one value, the last add confirmed (LAC) never goes back, a closed ledger has one end.
    """
    from bookspark.testing.chaos import Chaos, ChaosResult

    begin_log(level=logging.ERROR)
    if seed is None:
        seed = random.randrange(1 << 31)
    run = Chaos(seconds, seed, bookies, writers, recoverers, readers, faults_at_once, record=record)
    say(f"seed {seed}: {counted(bookies, 'bookie')}, {seconds:g} s")
    told = 0.0

    def tell(now: float, result: ChaosResult) -> None:
        nonlocal told
        if now - told >= report_seconds:
            told = now
            checked = result.checked
            say(
                f"{now:6.0f} s: {counted(sum(result.injected.values()), 'fault')}, {counted(result.ledgers, 'ledger')}, "
                f"{counted(checked['acked'], 'entry')} acknowledged, {checked['read']} read, "
                f"{counted(sum(result.errors.values()), 'error')}"
            )

    result = run.run(tell)
    for title, counts in (
        ("injected", result.injected),
        ("errors that clients got", result.errors),
        ("events checked", result.checked),
    ):
        say(f"{title}: {', '.join(f'{name} {count}' for name, count in counts.items()) or 'none'}")
    say_lines(f"VIOLATION: {violation}" for violation in result.violations)
    if result.excerpt:
        say("the history before it:")
    say_lines(result.excerpt)
    document = {name: value for name, value in result._asdict().items() if name != "excerpt"}
    print_json({**document, "bookies": bookies, "violations": len(result.violations)}, one_line=True)
    if result.violations:
        raise typer.Exit(FOUND)


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the option record_decisions.")],
    story: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the sequence diagram of a ledger (default: the first failing one) to this page.",
        ),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Repeat that history in the simulator and print its story.")
    ] = False,
    ledger: Annotated[int | None, typer.Option(min=0, help="Ledger of --story or --simulate.")] = None,
) -> None:
    """Repeat processes' recorded decisions in the pure code, and compare every answer.

    Then check the laws of the simulator and of chaos for each ledger.
    """
    if ledger is not None and story is None and not simulate:
        raise typer.BadParameter("--ledger names the ledger of a story: give --story FILE or --simulate too")
    from bookspark.lab.replay.run import Replay

    run = Replay(folder)
    result = run.run(_tell_process)
    _sum_up(result)
    chosen = result.first_failing if ledger is None else ledger
    if chosen is None and (simulate or story is not None):
        say("there is no story: nothing differs and no law is broken (--ledger tells of any ledger)")
    elif chosen is not None:
        if story is not None:
            try:
                story.write_text(run.page(chosen), encoding="utf-8")
            except OSError as error:
                raise ConfigurationError(
                    f"the page can't be written to {story}: {error.strerror}; name another file with --story"
                ) from error
            say(f"the history of ledger {chosen}: {story}")
            say(f"in the simulator: {run.simulation(chosen)}")
        if simulate:
            played = run.staged(chosen)
            say(f"ledger {chosen} in the simulator: {played.world.options.arguments()}")
            say_lines(played.lines())
            if played.passed_over:
                say(f"     {played.passed_over} steps that the simulator has no move for are passed over")
    found = len(result.differences) + len(result.broken)
    print_json(
        {
            "processes": len(result.counts),
            "machines": sum(one.machines for one in result.counts),
            "decisions": result.decisions,
            "differences": len(result.differences),
            "not_replayed": result.lost,
            "ledgers": result.ledgers,
            "violations": [one._asdict() for one in result.broken[:_SHOWN_MAX]],
        },
        one_line=True,
    )
    if found:
        raise typer.Exit(FOUND)


def _tell_process(counts: Counts) -> None:
    """A line for each process."""
    words = [f"{counted(counts.machines, 'machine')}, {counted(counts.decisions, 'decision')}"]
    if counts.lost:
        words.append(f"{counts.lost:,} of machines that were made before what is kept")
    if not counts.clean:
        torn = f", {counts.torn} bytes are no whole chunk" if counts.torn else ""
        words.append(f"it was killed or still runs{torn}")
    words.append(f"DIFFERENT: {counted(len(counts.differences), 'machine')}" if counts.differences else "all equal")
    say(f"{counts.process}: {'; '.join(words)}")


def _sum_up(result: Result) -> None:
    kinds: Counter[str] = Counter()
    for counts in result.counts:
        kinds.update(counts.by_kind)
    say(f"decisions: {', '.join(f'{kind} {count:,}' for kind, count in kinds.most_common()) or 'none'}")
    for one in result.differences[:_SHOWN_MAX]:
        say(f"DIFFERENCE: {one.machine} of {one.process}, its decision {one.decision}, about {one.at}")
        say(f"  given     {one.given}")
        say(f"  recorded  {one.recorded}")
        say(f"  now       {one.now}")
    for broken in result.broken[:_SHOWN_MAX]:
        say(f"VIOLATION: ledger {broken.ledger_id}: {broken.law}: {broken.what}")
    verdict = (
        "every answer is equal"
        if not result.differences
        else f"different: {counted(len(result.differences), 'machine')}"
    )
    laws = f"{len(result.broken)} laws are broken" if result.broken else "no law is broken"
    say(f"{counted(result.decisions, 'decision')}: {verdict}; {counted(result.ledgers, 'ledger')}: {laws}")

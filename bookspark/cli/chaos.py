"""``bookspark chaos``: real bookies broken at random while real clients work, and what these saw checked.

Law: status 0: no violation; 1: a violation, and the history around it; 2: the options can't be used. The last line is one JSON
object. The seed fixes what is drawn, not what the draws meet: a run can't be repeated exactly.
"""

from __future__ import annotations

import json
import logging
import random
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(chaos)


def chaos(
    seconds: Annotated[float, typer.Option(min=1, help="How long to go on.")] = 60.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Of all that is drawn; by default any.")] = None,
    bookies: Annotated[int, typer.Option(min=5, help="Bookie processes; ledgers have up to 5 in an ensemble.")] = 5,
    writers: Annotated[int, typer.Option(min=1)] = 3,
    recoverers: Annotated[int, typer.Option(min=0)] = 2,
    readers: Annotated[int, typer.Option(min=0)] = 2,
    faults_at_once: Annotated[int, typer.Option(min=0, help="Bookies or links broken at a time.")] = 2,
    report_seconds: Annotated[float, typer.Option(min=1, help="Between lines that tell how it goes.")] = 10.0,
) -> None:
    """Kill, suspend and restart bookies and cut their links at random, and check that nothing acknowledged is ever lost.

    A cluster of its own is started for it. Checked of all that writers, recoverers and readers see: an acknowledged entry stays
    readable, an entry has one value, the LAC never goes back, a closed ledger has one end.
    """
    from bookspark.testing.chaos import Chaos, ChaosResult

    logging.basicConfig(level=logging.ERROR)
    if seed is None:
        seed = random.randrange(1 << 31)
    run = Chaos(seconds, seed, bookies, writers, recoverers, readers, faults_at_once)
    typer.echo(f"seed {seed}: {bookies} bookies, {seconds:g} s")
    told = 0.0

    def tell(now: float, result: ChaosResult) -> None:
        nonlocal told
        if now - told >= report_seconds:
            told = now
            checked = result.checked
            typer.echo(
                f"{now:6.0f} s: {sum(result.injected.values())} faults, {result.ledgers} ledgers, "
                f"{checked['acked']} entries acknowledged, {checked['read']} read, {sum(result.errors.values())} errors"
            )

    result = run.run(tell)
    for title, counts in (
        ("injected", result.injected),
        ("errors that clients got", result.errors),
        ("events checked", result.checked),
    ):
        typer.echo(f"{title}: {', '.join(f'{name} {count}' for name, count in counts.items()) or 'none'}")
    for violation in result.violations:
        typer.echo(f"VIOLATION: {violation}")
    if result.excerpt:
        typer.echo("the history before it:")
    for line in result.excerpt:
        typer.echo(line)
    document = {name: value for name, value in result._asdict().items() if name != "excerpt"}
    typer.echo(json.dumps({**document, "bookies": bookies, "violations": len(result.violations)}))
    if result.violations:
        raise typer.Exit(1)

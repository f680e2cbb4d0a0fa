"""``bookspark chaos``: real bookies are broken at random while real clients work. What the clients saw is checked.

Law: a violation is something found (``bookspark.command_line``), and its history is printed.
The last line is one JSON object. The seed fixes the random choices, but not their timing: a run can't be repeated exactly.
"""

from __future__ import annotations

import json
import logging
import random
from typing import Annotated

import typer

from bookspark.command_line import FOUND


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(chaos)


def chaos(
    seconds: Annotated[float, typer.Option(min=1, help="How long the run lasts.")] = 60.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all random choices. Default: a new one.")] = None,
    bookies: Annotated[int, typer.Option(min=5, help="Number of bookies. Ensembles have up to 5.")] = 5,
    writers: Annotated[int, typer.Option(min=1, help="Clients that write ledgers.")] = 3,
    recoverers: Annotated[int, typer.Option(min=0, help="Clients that recover ledgers of others.")] = 2,
    readers: Annotated[int, typer.Option(min=0, help="Clients that read.")] = 2,
    faults_at_once: Annotated[
        int, typer.Option(min=0, help="Bookies or links that are broken at the same time, at most.")
    ] = 2,
    report_seconds: Annotated[float, typer.Option(min=1, help="Time between lines of progress.")] = 10.0,
) -> None:
    """Kill, suspend and restart bookies and cut their links at random, and check that no acknowledged entry is lost.

    The command starts a cluster for this. It checks what writers, recoverers and readers saw: an acknowledged entry stays
    readable, an entry has one value, the last add confirmed (LAC) never goes back, and a closed ledger has one end.
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
        raise typer.Exit(FOUND)

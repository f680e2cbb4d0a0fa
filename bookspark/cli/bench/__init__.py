"""``bookspark bench …``: how fast it is here. Each command prints one JSON line a case.

Absolute figures say more about the machine than about Bookspark; ``scripts/bench`` compares them with a peer's in one run.
"""

from __future__ import annotations

import typer

from bookspark.cli.bench import ledger, storage

app = typer.Typer(help="Measure: one JSON line a case.", no_args_is_help=True, rich_markup_mode=None)
ledger.add_to(app)
storage.add_to(app)

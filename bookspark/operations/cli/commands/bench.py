"""``bookspark bench …``: measurements on this machine. Each case is one JSON line on standard output.

Absolute figures depend on the machine; ``bookspark bench peers`` compares them with other systems'. Times are in ms unless their
name says seconds, sizes in bytes. Latency is the caller's: from the call to the acknowledgement.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bookspark.errors import ConfigurationError
from bookspark.lab.bench.kept_results import checkout, keep
from bookspark.lab.bench.ledger.cases import CASES, Turn, chosen
from bookspark.lab.bench.storage.storage_cases import Part, kept_lines, measure_storage
from bookspark.operations.cli.terminal.command_options import group, grouped
from bookspark.operations.cli.terminal.output import print_json, say, say_lines
from bookspark.support.arguments import check_names
from bookspark.support.cache_folder import cache_folder
from bookspark.support.command_line import COULD_NOT

app = group("bench", "Measure. Each case prints one JSON line on standard output.")


peers = group(
    "peers", "Measure beside other systems, in turns, and print a table of ratios. Needs a JDK and Maven (mvn)."
)
app.add_typer(peers)

SYSTEM = "bookspark"
QUICK_LEDGER_SCALE = 0.05
QUICK_SPARK_SCALE = 0.01

_DIRECTORY = "Folder on the measured disk. Default: that of temporary files; for peers that of --cache."
Scale = Annotated[float, typer.Option(min=0.0, help="Multiplies the work.")]
Directory = Annotated[Path | None, typer.Option(help=_DIRECTORY)]
Case = Annotated[list[str] | None, typer.Option(metavar="L1|L2|…", help="Only this case. May be repeated.")]
Turns = Annotated[list[Turn] | None, typer.Option(help="Only these workloads. May be repeated.")]
Cache = Annotated[
    Path | None,
    typer.Option(help="Folder of jars and results. Default: ~/.cache/bookspark/bench."),
]
Kept = Annotated[Path | None, typer.Option(help="Append the medians to history.jsonl here.")]
LinesAlone = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Runs:
    quick: Annotated[bool, typer.Option("--quick", help="A short trial.")] = False
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each system; figures are medians.")] = 3
    scale: Scale = 1.0

    def begin(self, quick_scale: float = QUICK_LEDGER_SCALE) -> tuple[int, float]:
        """Rounds and scale. From now on SIGTERM raises SystemExit, so the started servers are stopped."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
        return (1, quick_scale) if self.quick else (self.rounds, self.scale)


@dataclass(frozen=True)
class BatchRuns(Runs):
    scale: Annotated[float, typer.Option(min=0.0, help="Multiplies the work.")] = 1.0


@dataclass(frozen=True)
class RowRuns(Runs):
    scale: Annotated[float, typer.Option(min=0.0, help="Multiplies the work.")] = 1.0


@dataclass(frozen=True)
class Places:
    directory: Annotated[Path | None, typer.Option(help=_DIRECTORY)] = None
    cache: Cache = None
    as_json: LinesAlone = False


@app.command()
def ledger(
    turn: Annotated[
        list[Turn] | None,
        typer.Option(help="Only these workloads. May be repeated."),
    ] = None,
    case: Case = None,
    scale: Scale = 1.0,
    directory: Directory = None,
) -> None:
    """Time a client and three bookies of this host, each workload on a fresh cluster: write quorum 3, ack quorum 2, CRC32C."""
    # Imported here: the import loads the client, which is slow.
    from bookspark.lab.bench.ledger.workloads import measure

    check_names(case or (), CASES, "case")
    for each in turn or Turn:
        workloads = chosen(each, case or (), scale)
        for workload, figures in measure(each, workloads, directory) if workloads else ():
            line: dict[str, Any] = {"label": workload.label, "system": SYSTEM, **workload.numbers(), **figures}
            print_json(line, one_line=True)


@app.command()
def storage(
    part: Annotated[list[Part] | None, typer.Option(help="Only this part. May be repeated.")] = None,
    scale: Annotated[float, typer.Option(min=0.0, help="Multiplies the work.")] = 1.0,
    directory: Directory = None,
    cache: Kept = None,
) -> None:
    """Time a bookie's storage beside a loop that writes and syncs the same bytes."""
    cases = []
    for case in measure_storage(part or Part, scale, directory):
        print_json(case, one_line=True)
        cases.append(case)
    _keep(cache, "storage", kept_lines(cases), scale)


@app.command("micro-batches")
@grouped
def micro_batches(
    runs: BatchRuns = BatchRuns(),
    directory: Directory = None,
    cache: Kept = None,
) -> None:
    """Time Spark's reads of 1,500 small commits beside a large one, and triggers of one row beside the sink noop."""
    from bookspark.lab.bench.micro_batches import measure

    rounds, scale = runs.begin(QUICK_SPARK_SCALE)
    lines = []
    try:
        for line in measure(rounds, scale, directory):
            print_json(line, one_line=True)
            lines.append(line)
    finally:
        if lines:
            _keep(cache, "micro-batches", lines, scale)


@app.command()
def repair(
    rounds: Annotated[int, typer.Option(min=1, help="Lost bookies, in sequence.")] = 3,
    entry_bytes: Annotated[int, typer.Option(min=1, help="Payload of an entry.")] = 1000,
    megabytes: Annotated[int, typer.Option(min=1, help="Payload written, in 10⁶ bytes.")] = 400,
    ledgers: Annotated[int, typer.Option(min=1, help="Number of ledgers.")] = 12,
    ledgers_at_once: Annotated[int, typer.Option(min=1, help="Ledgers repaired at once.")] = 16,
    directory: Directory = None,
) -> None:
    """Time the repair of a lost bookie beside a plain copy of files."""
    from bookspark.lab.bench.repair import measure_repair

    for case in measure_repair(rounds, entry_bytes, megabytes, ledgers, ledgers_at_once, directory):
        print_json(case, one_line=True)


@app.command()
@grouped
def against(
    commit: Annotated[str, typer.Argument(metavar="COMMIT", help="A commit of this checkout.")],
    runs: Runs = Runs(),
    turn: Turns = None,
    directory: Directory = None,
    checkout: Annotated[Path, typer.Option(help="This tree.")] = Path(),
    as_json: LinesAlone = False,
) -> None:
    """Time ledgers of this checkout and another commit, and print ratios."""
    from bookspark.lab.bench.trees import against as measured

    rounds, scale = runs.begin()
    table, _ = measured(checkout.resolve(), commit, turn or list(Turn), rounds, scale, directory)
    _finish("" if as_json else table, ())


@app.command()
def page(
    file: Annotated[Path, typer.Argument(metavar="PAGE", help="The page, such as docs/performance.md.")],
    cache: Cache = None,
    quick: Annotated[bool, typer.Option("--quick", help="Also take short runs.")] = False,
) -> None:
    """Write a page's tables from the newest kept results."""
    from bookspark.lab.bench.page import kept_runs, with_tables

    if not file.is_file():
        raise ConfigurationError(f"there is no page {file}")
    file.write_text(with_tables(file.read_text("utf-8"), kept_runs(_existing(cache), quick)), "utf-8")


@peers.command("ledger")
@grouped
def peers_ledger(
    runs: Runs = Runs(),
    turn: Turns = None,
    case: Case = None,
    places: Places = Places(),
) -> None:
    """Time ledgers beside Apache BookKeeper."""
    from bookspark.lab.bench.peers.ledger_comparison import compare

    check_names(case or (), CASES, "case")
    rounds, scale = runs.begin()
    table, failures = compare(_existing(places.cache), places.directory, turn or list(Turn), rounds, scale, case or ())
    _finish("" if places.as_json else table, failures)


@peers.command("spark")
@grouped
def peers_spark(
    runs: RowRuns = RowRuns(),
    system: Annotated[
        list[str] | None,
        typer.Option(metavar="bookspark|delta|kafka", help="Only these systems. May be repeated."),
    ] = None,
    places: Places = Places(),
) -> None:
    """Time sink and source beside Delta and Kafka."""
    from bookspark.lab.bench.peers.spark_comparison import compare
    from bookspark.lab.bench.peers.spark_systems import SYSTEMS

    check_names(system or (), SYSTEMS, "system")
    rounds, scale = runs.begin(QUICK_SPARK_SCALE)
    table, failures = compare(_existing(places.cache), places.directory, system or list(SYSTEMS), rounds, scale)
    _finish("" if places.as_json else table, failures)


@peers.command("logs")
@grouped
def peers_logs(
    runs: Runs = Runs(),
    kafka: Annotated[bool, typer.Option(help="Also Kafka (pip install confluent-kafka).")] = True,
    places: Places = Places(),
) -> None:
    """Time a log's producer and readers, without Spark, beside a bare ledger and Kafka."""
    from bookspark.lab.bench.peers.log_comparison import compare

    rounds, scale = runs.begin()
    table = compare(_existing(places.cache), places.directory, rounds, scale, kafka)
    _finish("" if places.as_json else table, ())


@peers.command("client")
@grouped
def peers_client(
    runs: Runs = Runs(),
    against: Annotated[
        str,
        typer.Option(metavar="COMMIT", help="Also bookies of this commit of the checkout."),
    ] = "",
    alone: Annotated[bool, typer.Option("--alone", help="With --against: without BookKeeper's bookies.")] = False,
    places: Places = Places(),
) -> None:
    """Time BookKeeper's client on Bookspark's bookies beside BookKeeper's."""
    from bookspark.lab.bench.peers.client_comparison import compare

    rounds, scale = runs.begin()
    table, failures = compare(_existing(places.cache), places.directory, rounds, scale, against, alone)
    _finish("" if places.as_json else table, failures)


def _keep(cache: Path | None, bench: str, lines: list[dict[str, Any]], scale: float) -> None:
    """Keep the medians in the folder, if given, and print changes since the last run."""
    if cache is not None:
        for change in keep(_existing(cache), bench, lines, scale, checkout()):
            say(f"changed: {change}", err=True)


def _existing(cache: Path | None) -> Path:
    # Absolute, because the measured servers run in other working directories.
    place = (cache or cache_folder() / "bench").absolute()
    place.mkdir(parents=True, exist_ok=True)
    return place


def _finish(table: str, failures: Sequence[str]) -> None:
    say_lines(table.splitlines())
    if failures:
        say_lines(failures, err=True)
        raise typer.Exit(COULD_NOT)

"""Pravega's ``DurableDataLog`` on Bookspark's bookies, while its writers and a bookie are killed.

Law: a writer's ``initialize`` fences the ledgers of the writer before it. A reader wants each record once, in order, and no
record behind one of a later writer. Records are appended while

==========  ========================================================================================
at 15 %     the writer is killed (SIGKILL), and another begins
at 30 %     the writer is suspended (SIGSTOP), and resumed once another has initialized the log
at 45 %     a bookie with a copy of the open ledger is killed
at 60 %     the writer is killed, and another begins, while the bookie is dead
at 75 %     the bookie is started again
==========  ========================================================================================

Each writer reads all records that its predecessors acknowledged. The resumed writer's appends fail, and it had no acknowledgement
of a record that its successor did not read. They fail as those of a writer that is not primary, but for one that was just
replacing a bookie or a ledger: Pravega maps the error of BookKeeper's client to another one then, or retries for three minutes.
At last each record is read once, in order: by Pravega's reader, and by Bookspark's client from the log's ledgers. Then the log is
truncated in its middle: the ledgers before are gone from the metadata. Settings are Pravega's defaults, except for places and
ledgers of 4 MiB.
"""

from __future__ import annotations

from pathlib import Path

from bookspark import BookKeeper
from tests.processes import halted
from tests.system.peers.java_programs import (
    Judge,
    Programs,
    Steps,
    a_cluster,
    bookie_of_open_ledger,
    payload,
    read_whole,
)


def story(home: Path, count: int, size: int, step: Steps) -> None:
    """Append ``count`` records of ``size`` bytes under all faults, and check. Raises AssertionError at the first violation."""
    with (
        a_cluster(home) as cluster,
        Programs("pravega", home / "pravega") as programs,
        BookKeeper(cluster.zookeeper) as client,
    ):
        host, _, path = cluster.zookeeper.removeprefix("zk://").partition("/")
        writers = 0

        def records(name: str, *words: object) -> Judge:
            return programs.judge(name, "Records", host, f"/{path}/ledgers", size, *words)

        def next_writer() -> Judge:
            nonlocal writers
            writers += 1
            return records(f"writer-{writers}", "write", writers, count)

        def last_read(acknowledged: int) -> int:
            _, first, last = writer.wait_for("^recovered ").split()
            assert int(first) <= 0 and int(last) >= acknowledged, (
                f"{acknowledged} was acknowledged, read: {first} to {last}"
            )
            step(f"writer {writers} begins", f"record {acknowledged} was acknowledged, read up to record {last}")
            return int(last)

        def reached(part: float) -> None:
            writer.wait_for(f"^appended {int(count * part) // 100 * 100 - 1}$")
            step(f"{part:.0%} appended")

        def killed() -> int:
            writer.end()
            return writer.printed("appended")

        writer = next_writer()
        last_read(-1)
        reached(0.15)
        acknowledged = killed()
        writer = next_writer()
        last_read(acknowledged)
        reached(0.3)
        suspended = writer
        with halted(suspended.pid):
            writer = next_writer()
            writer.wait_for("^initialized$")
        step("suspended writer resumed")
        last = last_read(suspended.printed("appended"))
        reached(0.45)
        bookie = bookie_of_open_ledger(cluster, client)
        bookie.kill()
        step("bookie killed", bookie.bookie_id)
        reached(0.6)
        acknowledged = killed()
        writer = next_writer()
        last_read(acknowledged)
        reached(0.75)
        bookie.start()
        step("bookie started again")
        step(f"writer {writers}", appended := writer.verdict())
        assert appended == f"{count} records appended"
        verdict = suspended.verdict()
        step("suspended writer", verdict)
        assert verdict.startswith(("not primary ", "failed ")), verdict
        assert int(verdict.split()[-1]) <= last, f"the next writer read up to record {last}"
        writer = next_writer()
        assert last_read(count - 1) == count - 1
        step("judge", writer.verdict())

        ledgers = [int(each) for each in records("ledgers", "ledgers").verdict().split()]
        numbers, first_numbers = numbers_of(client, ledgers, size)
        assert numbers == list(range(count)), "Bookspark's client reads other records"
        step("read by Bookspark's client", f"{len(numbers)} records in {len(ledgers)} ledgers, in order")

        step("judge", records("truncate", "truncate", count // 2).verdict())
        remaining = {int(each) for each in records("ledgers", "ledgers").verdict().split()}
        there = set(client.list_ledgers())
        gone = [each for each in ledgers if each not in there]
        assert remaining <= there, f"ledgers {remaining - there} of the log are gone"
        later = [first_numbers[each] for each in ledgers if each not in gone and each in first_numbers]
        assert gone and remaining.isdisjoint(gone), f"gone: {gone}, of the log: {remaining}"
        assert min(later) <= count // 2, f"records from {min(later)} on remain"
        step("truncated in the middle", f"{len(gone)} ledgers are gone, {len(remaining)} remain")


def numbers_of(client: BookKeeper, ledgers: list[int], size: int) -> tuple[list[int], dict[int, int]]:
    """The records' numbers in these ledgers, and each ledger's first. Checks each record's bytes; raises AssertionError."""
    numbers: list[int] = []
    first_numbers: dict[int, int] = {}
    for ledger_id in ledgers:
        for entry in read_whole(client, ledger_id):
            assert entry == payload(entry[:16], size), (
                f"ledger {ledger_id}: a record has other bytes than were appended"
            )
            numbers.append(int.from_bytes(entry[:8], "big"))
            first_numbers.setdefault(ledger_id, numbers[-1])
    return numbers, first_numbers

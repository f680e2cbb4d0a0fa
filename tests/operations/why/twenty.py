"""Twenty troubles, each caused in a real cluster: the expected words of ``bookspark why`` and the console, and the repair.

A trouble is a function that starts a cluster and breaks something. It returns after the break, with the trouble's kind,
words of its sentence, the console page, and the actions that people must do by hand besides typing the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bookspark import errors
from bookspark.local import LocalBookie
from bookspark.logs import create_log, open_log
from bookspark.logs.readers.lag import readers_of
from bookspark.protocol.logs.reader_record import ReaderState
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.bookie.disk.entry_log import LOGS
from bookspark.store.client.inspection.copies import copies_on
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.awaiting import await_that
from tests.operations.why.slow_relay import SlowRelay
from tests.operations.why.trouble_stage import Stage
from tests.secret_files import write_secrets


def nothing() -> None:
    """No action by hand."""


class Broken(NamedTuple):
    """The expected reports and the repair of a trouble."""

    kind: str
    # part of the sentence that reports the trouble
    words: str
    # kinds of troubles that come with it
    also: frozenset[str] = frozenset()
    # question for `bookspark why`; "": about the whole cluster
    question: str = ""
    # console page that reports it
    page: str = "/"
    # a person's action before the command, as the answer says
    before: Callable[[], None] = nothing
    # a person's action after the command, or while it runs
    after: Callable[[], None] = nothing


class Trouble(NamedTuple):
    """One of the twenty."""

    title: str
    # the rule of conf/prometheus that fires; "": no metric reveals the trouble
    alert: str
    bring_about: Callable[[Stage], Broken]


TROUBLES: list[Trouble] = []


def trouble(title: str, alert: str) -> Callable[[Callable[[Stage], Broken]], Callable[[Stage], Broken]]:
    """Add a function to the table."""

    def put(bring_about: Callable[[Stage], Broken]) -> Callable[[Stage], Broken]:
        TROUBLES.append(Trouble(title, alert, bring_about))
        return bring_about

    return put


@trouble("a bookie is killed", "BooksparkBookieDown")
def _(stage: Stage) -> Broken:
    bookie = stage.start().bookies[0]
    stage.ledger()
    bookie.kill()
    return Broken("bookie-down", bookie.bookie_id)


@trouble("a host is lost with two bookies", "BooksparkBookieDown")
def _(stage: Stage) -> Broken:
    cluster = stage.start(bookies=[{}, {}, {}, {"host": "127.0.0.2"}, {"host": "127.0.0.2"}], faulty=True)
    lost = cluster.bookies[3:]
    for bookie in lost:
        bookie.kill()
    return Broken("host-lost", "all 2 bookies of host", before=lambda: [one.start() for one in lost])  # type: ignore[arg-type, return-value]


@trouble("a bookie hangs", "BooksparkNotScraped")
def _(stage: Stage) -> Broken:
    bookie = stage.start().bookies[0]
    stage.ledger()
    bookie.suspend()

    def again() -> None:
        bookie.kill()
        bookie.start()

    return Broken("bookie-silent", "is registered and does not answer", frozenset({"bookie-down"}), after=again)


@trouble("two of a ledger's three bookies are killed", "BooksparkBookieDown")
def _(stage: Stage) -> Broken:
    cluster = stage.start(bookies=3)
    ledger_id = stage.ledger()
    for bookie in cluster.bookies[:2]:
        bookie.kill()
    also = frozenset({"bookie-down", "host-lost", "under-replicated"})
    return (
        Broken(
            "below-ack-quorum",
            "fewer copies than their ack quorum",
            also,
            before=cluster.bookies[0].start,
            after=cluster.bookies[1].start,
        )
        if ledger_id >= 0
        else Broken("", "")
    )


@trouble("nobody looks after a bookie any more", "BooksparkNoKeeper")
def _(stage: Stage) -> Broken:
    bookie = stage.start(lease_seconds=300.0).bookies[0]
    assert bookie._bookie is not None
    bookie._bookie.lease.close()

    def adopt() -> None:
        bookie._bookie = None
        bookie.start()

    return Broken("no-keeper", "nobody looks after bookie", after=adopt)


@trouble("a boot lost entries, and the bookie does not heal itself", "BooksparkLimbo")
def _(stage: Stage) -> Broken:
    never = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40, "heal_lossy_boots": False}
    cluster = stage.start(bookies=3, journal_write_data=False, **never)
    # An idle writer would send its LAC, and with that record the bookie would sync the entries that the power cut must
    # take.
    ledger = cluster.bookkeeper(explicit_lac_interval_seconds=3600.0).create_ledger(ack_quorum=3)
    ledger.append(b"x")
    bookie = cluster.bookies[0]
    bookie.kill()
    bookie.lose_unsynced()
    bookie.start()

    def heal() -> None:
        ledger.close()
        bookie.stop()
        healing = LocalBookie(
            bookie_config(directories=bookie.directories, zookeeper=stage.zookeeper, lease_seconds=10.0)
        )
        healing.start()
        stage.at_the_end(healing.stop)

    return Broken("limbo", "lost entries at a boot, and does not heal itself", after=heal)


@trouble("a disk is full", "BooksparkDirectoryFull")
def _(stage: Stage) -> Broken:
    small = {"entry_log_bytes_max": 256 << 10, "directory_bytes_max": 4 << 20, "disk_check_interval_seconds": 0.1}
    cluster = stage.start(bookies=[small, {}, {}, {}])
    name = cluster.bookies[0].bookie_id
    filled = []

    def fill() -> bool:
        with suppress(errors.NotEnoughBookiesError), stage.client.create_ledger(4, 4, 2) as ledger:
            filled.append(ledger.ledger_id)
            ledger.append_batch([os.urandom(10_000) for _ in range(50)])
        return bool(stage.client.bookie_status(name).full_directories)

    # A sealed log returns its preallocated space, so a disk may be full only for a moment.
    while not (fill() and fill() and fill()):
        pass

    def delete() -> None:
        for ledger_id in filled:
            stage.client.delete_ledger(ledger_id)

    return Broken("disk-full", f"of bookie {name} does not take every add", before=delete)


@trouble("a disk fails", "BooksparkDirectoryFailed")
def _(stage: Stage) -> Broken:
    stage.start(bookies=3, faulty=True)
    places = [str(stage.folder / one) for one in ("disk-0", "disk-1")]
    options = {"zookeeper": stage.zookeeper, "metrics_port": -1, "lease_seconds": 10.0}
    bookie = LocalBookie(bookie_config(directories=places, **options))
    bookie.start()
    stage.at_the_end(bookie.stop)
    for _ in range(4):
        stage.ledger(ensemble_size=4, write_quorum=4, ack_quorum=2)
    stage.breaks(bookie, f"* {places[1]}/* 1.. io-error")
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            with suppress(errors.BookKeeperError):
                stage.ledger(ensemble_size=4, write_quorum=4, ack_quorum=2)

    # A failed disk is noticed only when the bookie uses it.
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    await_that(lambda: stage.client.bookie_status(bookie.bookie_id).failed_directories)
    ends.set()
    writer.join(60)

    def equip() -> None:
        """The steps that `cluster apply` prints: stop the bookie, mount an empty disk, fix its cookies, start it."""
        bookie.stop()
        for path in sorted(Path(places[1]).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        fixed = stage.run(["cookie", "fix", "--yes", *places])
        assert fixed.status == 0, fixed
        bookie.start()

    also = frozenset({"under-replicated", "rot", "healing", "read-only-by-change"})
    return Broken("failed-directory", f"of bookie {bookie.bookie_id} has failed", also, after=equip)


@trouble("a byte of a copy has changed, and autorecovery is off", "BooksparkRot")
def _(stage: Stage) -> Broken:
    cluster = stage.start(bookies=3)
    ledger_id = stage.ledger(200)
    stage.client.metadata.underreplication.disable()
    bookie = cluster.bookies[0]
    row = await_that(lambda: stage.client.list_ranges(bookie.bookie_id, ledger_id).to_pylist())[0]
    with open(f"{bookie.directories[0]}/{LOGS}/{row['log']:08x}.arrows", "r+b") as file:
        file.seek(row["position"] + row["bytes"] // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    # Read the copy there, so that the bookie notices the changed byte.
    rows = stage.client.list_ranges(bookie.bookie_id, ledger_id).to_pylist()
    places = sorted((one["first_entry_id"], one["last_entry_id"]) for one in rows)
    list(copies_on(stage.client.context, bookie.bookie_id, ledger_id, places))
    return Broken("rot", "lost copies of entries", frozenset({"autorecovery-disabled", "under-replicated"}))


@trouble("one disk is slow", "BooksparkSlowDisk")
def _(stage: Stage) -> Broken:
    cluster = stage.start(faulty=True)
    stage.writes()
    bookie = cluster.bookies[0]
    # With only three writable bookies every ledger is on the slow disk.
    for other in cluster.bookies[3:]:
        stage.client.switch_read_only(other.bookie_id, True)
    stage.breaks(bookie, f"sync {bookie.directories[0]}/{LOGS}/* 1.. slow:0.8")

    def repair() -> None:
        bookie.stop()
        bookie.start()
        for one in (bookie, *cluster.bookies[3:]):
            stage.client.switch_read_only(one.bookie_id, False)

    return Broken("slow-disk", "s for a sync", frozenset({"read-only-by-order"}), after=repair)


@trouble("a clock jumps ahead by an hour", "BooksparkClock")
def _(stage: Stage) -> Broken:
    bookie = stage.start(faulty=True).bookies[0]
    stage.breaks(bookie, "clock 3600")
    return Broken("clock", f"the clock of bookie {bookie.bookie_id}", before=lambda: stage.breaks(bookie, "clock 0"))


@trouble("a bookie is read-only by order", "BooksparkReadOnly")
def _(stage: Stage) -> Broken:
    name = stage.start().bookies[0].bookie_id
    stage.client.switch_read_only(name, True)
    return Broken("read-only-by-order", f"bookie {name} is read-only by order")


@trouble("ZooKeeper is slow", "BooksparkZooKeeperSlow")
def _(stage: Stage) -> Broken:
    own = stage.enter(EmbeddedZooKeeper(stage.folder / "zookeeper"))
    relay = stage.enter(SlowRelay(own.connection_string))
    stage.start(zookeeper=relay.address, bookies=3)
    relay.seconds = 0.28
    return Broken("zookeeper-slow", "for a small read", before=lambda: setattr(relay, "seconds", 0.0))


@trouble("ZooKeeper is down", "BooksparkZooKeeper")
def _(stage: Stage) -> Broken:
    own = stage.enter(EmbeddedZooKeeper(stage.folder / "zookeeper"))
    relay = stage.enter(SlowRelay(own.connection_string))
    stage.start(zookeeper=relay.address, bookies=3)
    relay.cut()
    return Broken("zookeeper", "ZooKeeper does not answer", before=relay.mend)


@trouble("the secret of who asks is wrong", "BooksparkWrongSecret")
def _(stage: Stage) -> Broken:
    for name in ("right", "wrong"):
        write_secrets(stage.folder / name)
    right = str(stage.folder / "right")
    (stage.folder / "bookspark.toml").write_text(f'[client]\nshared_secret_file = "{right}"\n')
    stage.start(bookies=3, shared_secret_file=right, autorecovery={"client": {"shared_secret_file": right}})

    def give_the_file() -> None:
        stage.environment["BOOKSPARK_CONFIG"] = str(stage.folder / "bookspark.toml")

    return Broken("wrong-secret", "prove no secret", after=give_the_file)


@trouble("autorecovery is switched off", "BooksparkAutorecoveryDisabled")
def _(stage: Stage) -> Broken:
    stage.start()
    stage.client.metadata.underreplication.disable()
    return Broken("autorecovery-disabled", "autorecovery is disabled")


@trouble("no autorecovery process runs", "BooksparkNoAuditor")
def _(stage: Stage) -> Broken:
    stage.start().autorecovery[0].stop()
    return Broken("no-auditor", "no autorecovery process runs")


@trouble("the writer of an open ledger was killed", "")
def _(stage: Stage) -> Broken:
    stage.start()
    script = (
        "import sys\nfrom bookspark import BookKeeper\nledger = BookKeeper(sys.argv[1]).create_ledger()\n"
        "ledger.append(b'x')\nprint(ledger.ledger_id, flush=True)\nsys.stdin.read()"
    )
    writer = _script(stage, script)
    assert writer.stdout is not None
    ledger_id = int(writer.stdout.readline())
    writer.kill()
    return Broken(
        "nobody-writes",
        "nobody was seen to write it",
        question=f"not closed {ledger_id}",
        page=f"/ledger?id={ledger_id}",
    )


@trouble("a ledger recovery was begun and never ended", "BooksparkRecoveryStands")
def _(stage: Stage) -> Broken:
    cluster = stage.start(bookies=3)
    ledger = stage.client.create_ledger()
    ledger.append(b"x")
    for bookie in cluster.bookies[:2]:
        bookie.kill()
    with cluster.bookkeeper(recovery_timeout_seconds=2.0) as other, suppress(errors.LedgerRecoveryError):
        other.open_ledger(ledger.ledger_id)
    for bookie in cluster.bookies[:2]:
        bookie.start()
    return Broken("recovery-stands", "has not ended")


@trouble("a query that reads a log has died", "BooksparkReaderGone")
def _(stage: Stage) -> Broken:
    stage.start()
    with create_log(stage.client, "orders").producer("billing") as producer:
        producer.append_batch([b"order"] * 10)
        script = (
            "import sys\nfrom bookspark import BookKeeper\nfrom bookspark.logs import open_log\n"
            "reader = open_log(BookKeeper(sys.argv[1]), 'orders').reader(group='shipping')\n"
            "while True:\n    if reader.read(100, 1.0):\n        reader.commit()\n        print('read', flush=True)"
        )
        query = _script(stage, script)
        assert query.stdout is not None and query.stdout.readline()
        # A reader reports its position at most once a second.
        await_that(lambda: [one.lag_rows for one in readers_of(stage.client, "orders")] == [0])
        query.send_signal(signal.SIGKILL)
        query.wait(60)
        producer.append_batch([b"order"] * 10)
    # A reader that has not reported for 20 s counts as stopped.
    await_that(lambda: readers_of(stage.client, "orders")[0].state is ReaderState.STALE)

    def again() -> None:
        with open_log(stage.client, "orders").reader(group="shipping") as reader:
            left = 10
            while left:
                left -= len(reader.read(100, 1.0))
            reader.commit()

    return Broken(
        "reader-gone",
        "does not run, and is 10 rows",
        question="is shipping behind",
        page="/log?name=orders",
        after=again,
    )


def _script(stage: Stage, script: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, stage.zookeeper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stage.at_the_end(process.communicate)
    stage.at_the_end(process.kill)
    return process

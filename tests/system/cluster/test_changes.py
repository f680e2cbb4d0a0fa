"""Changes of a cluster of real processes, while ledgers are written and read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookspark.errors import BookieError, ConfigurationError, MetadataStoreError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.operations.changes.applying import Applying
from bookspark.operations.changes.change_record import ChangeRecord, ChangeState, Kept
from bookspark.operations.changes.looking import Looking
from bookspark.protocol.changes.observed import Observed
from bookspark.protocol.changes.wanted import Wanted
from bookspark.servers.daemon import launch
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client import BookKeeper
from tests.awaiting import SECONDS_MAX, await_that
from tests.local_hands import LocalHands
from tests.system.cluster.copies import await_copies
from tests.system.cluster.newer_daemon import VERSION

pytestmark = pytest.mark.acceptance

QUICK = ChangesConfig(poll_seconds=0.1, confirm_seconds=0.3, stall_seconds=60.0)
PAYLOAD = b"x" * 500


@pytest.fixture
def five(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    options = {"check_interval_hours": 0.0, "poll_seconds": 0.5, "grace_seconds": 1.0}
    with LocalCluster(5, zookeeper=new_chroot(), autorecovery=options, stamp_missing_cookies=True) as running:
        yield running


@pytest.fixture
def client(five: LocalCluster) -> BookKeeper:
    """Waits for a bookie that is slow on a busy machine, rather than change the ensemble."""
    return five.bookkeeper(answer_timeout_seconds=SECONDS_MAX, bookie_stall_seconds=SECONDS_MAX)


class Load:
    """A writer that fills ledger after ledger, and readers of confirmed entries."""

    def __init__(self, cluster: LocalCluster, readers: int = 2) -> None:
        self._client = cluster.bookkeeper()
        self._stopping = threading.Event()
        self.written: dict[int, list[bytes]] = {}
        self.failures: list[BaseException] = []
        self.reads = 0
        self._threads = [threading.Thread(target=self._guarded, args=(self._write,))]
        self._threads += [threading.Thread(target=self._guarded, args=(self._read,)) for _ in range(readers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        await_that(lambda: self.failures or self.reads > 2)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(SECONDS_MAX)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)

    def _write(self) -> None:
        number = 0
        while not self._stopping.is_set():
            ledger = self._client.create_ledger()
            rows = self.written.setdefault(ledger.ledger_id, [])
            for _ in range(300):
                row = b"row %d" % number
                assert ledger.append(row) == len(rows)
                rows.append(row)
                number += 1
                if self._stopping.wait(0.001):
                    break
            ledger.close()

    def _read(self) -> None:
        while not self._stopping.is_set():
            for ledger_id, rows in list(self.written.items())[-3:]:
                count = len(rows)
                reader = self._client.open_ledger_no_recovery(ledger_id)
                last = min(count - 1, reader.read_last_add_confirmed())
                if last >= 0:
                    assert [entry.payload for entry in reader.read(0, last)] == rows[: last + 1]
                    self.reads += 1
            self._stopping.wait(0.05)

    def check(self) -> None:
        """No append failed, no row was lost, every read was right."""
        assert not self.failures, self.failures
        for ledger_id, rows in self.written.items():
            found = self._client.open_ledger(ledger_id)
            assert [entry.payload for entry in found.read()] == rows


def filled(client: BookKeeper, count: int = 12) -> list[int]:
    """Closed ledgers with all copies written."""
    ids = []
    for _ in range(count):
        with client.create_ledger() as ledger:
            ledger.append_batch([PAYLOAD] * 40)
        ids.append(ledger.ledger_id)
    for one in ids:
        await_copies(client, one)
    return ids


def apply(cluster: LocalCluster, client: BookKeeper, wanted: Wanted, config: ChangesConfig = QUICK) -> ChangeRecord:
    with Applying(client, LocalHands(cluster.bookies), config) as applying:
        applying.begin(wanted)
        return applying.run()


def stands_for(words: str, cluster: LocalCluster, client: BookKeeper, wanted: Wanted) -> None:
    """The change stalls, and the error gives the reason. On a busy machine it may stall before it has come so far: then
    continue it."""
    short = ChangesConfig(poll_seconds=0.1, confirm_seconds=0.1, stall_seconds=1.0)

    def stands() -> re.Match[str] | None:
        with pytest.raises(BookieError, match="nothing has happened for 1 s") as caught:
            apply(cluster, client, wanted, short)
        return re.search(words, str(caught.value))

    await_that(stands, what=words)


def holders(client: BookKeeper, ledger_id: int) -> dict[str, int]:
    """The number of entries of the ledger that each bookie lists."""
    found: dict[str, int] = {}
    for bookie in client.metadata.bookies():
        table = client.list_ranges(bookie, ledger_id).to_pylist()
        ids = {e for row in table for e in range(row["first_entry_id"], row["last_entry_id"] + 1)}
        if ids:
            found[bookie] = len(ids)
    return found


def read_only(client: BookKeeper, cluster: LocalCluster) -> list[str]:
    return [b.bookie_id for b in cluster.bookies if b.pid and client.bookie_status(b.bookie_id).read_only]


@contextmanager
def lacking(client: BookKeeper, cluster: LocalCluster) -> Iterator[tuple[int, LocalBookie, LocalBookie]]:
    """A closed ledger with an ack quorum of copies: its metadata names three bookies, and one of them never got its entries."""
    by_id = {one.bookie_id: one for one in cluster.bookies}
    ledger = client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    ledger.append(b"on all")
    names = ledger.metadata.last_fragment.ensemble
    # An ack quorum of two acknowledged the first entry; wait for the third copy.
    await_that(lambda: holders(client, ledger.ledger_id) == dict.fromkeys(names, 1))
    deaf = by_id[names[2]]
    deaf.suspend()
    ledger.append_batch([PAYLOAD] * 5)
    ledger.close()
    deaf.kill()
    deaf.start()
    assert ledger.metadata.fragments[-1].ensemble == names
    assert holders(client, ledger.ledger_id) == {names[0]: 6, names[1]: 6, names[2]: 1}
    yield ledger.ledger_id, by_id[names[0]], deaf


def test_a_rolling_restart_under_load_fails_no_append_and_loses_no_row(five: LocalCluster, client: BookKeeper) -> None:
    pids = {one.bookie_id: one.pid for one in five.bookies}
    with Load(five) as load:
        record = apply(five, client, Wanted(restart=frozenset(pids)))
        reads = load.reads
        await_that(lambda: load.failures or load.reads > reads)
    load.check()
    assert all(one.pid is not None and one.pid != pids[one.bookie_id] for one in five.bookies)
    assert record.moves == 0 and record.moved_bytes == 0
    assert read_only(client, five) == []


def test_rolling_upgrade_under_load_skips_upgraded_bookies_and_loses_no_row(
    five: LocalCluster, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = frozenset(one.bookie_id for one in five.bookies)
    monkeypatch.setattr(launch, "DAEMON", "tests.system.cluster.newer_daemon")
    five.bookies[3].stop()
    five.bookies[3].start()  # an already upgraded bookie
    pid = five.bookies[3].pid
    with Load(five) as load:
        record = apply(five, client, Wanted(restart=names, version=VERSION))
    load.check()
    assert {client.bookie_status(name).version for name in names} == {VERSION}
    assert five.bookies[3].pid == pid and record.steps == 3 * 4 and record.moved_bytes == 0


def test_bookie_that_restarts_with_the_old_version_stops_the_upgrade(five: LocalCluster, client: BookKeeper) -> None:
    names = sorted(one.bookie_id for one in five.bookies)
    pids = {one.bookie_id: one.pid for one in five.bookies}
    with pytest.raises(BookieError, match=rf"{names[0]} was restarted and runs version .*, not {VERSION}"):
        apply(five, client, Wanted(restart=frozenset(names), version=VERSION))
    assert [one.bookie_id for one in five.bookies if one.pid != pids[one.bookie_id]] == [names[0]]


def test_removed_bookie_leaves_under_load_and_its_copies_move(five: LocalCluster, client: BookKeeper) -> None:
    ids = filled(client)
    leaving = five.bookies[0]
    with Load(five, readers=1) as load:
        record = apply(five, client, Wanted(remove=frozenset([leaving.bookie_id])))
    load.check()
    assert leaving.pid is None and leaving.bookie_id not in client.metadata.list_cookies()
    for ledger_id in client.list_ledgers():
        assert leaving.bookie_id not in client.get_ledger_metadata(ledger_id).bookies()
    for ledger_id in ids:
        assert sorted(holders(client, ledger_id).values()) == [40, 40, 40]
    assert record.moves > 0


def test_move_to_a_new_bookie_copies_only_the_old_bookies_entries(five: LocalCluster, client: BookKeeper) -> None:
    ids = filled(client)
    old = five.bookies[0].bookie_id
    held = sum(holders(client, one).get(old, 0) for one in ids)
    new = five.add_bookie().bookie_id
    record = apply(five, client, Wanted(move={old: (new,)}))
    assert sum(holders(client, one).get(new, 0) for one in ids) == held
    assert record.moved_bytes <= 1.1 * held * (len(PAYLOAD) + 60) + 2000 * record.moves
    assert old not in client.metadata.list_cookies()


def test_balance_gives_a_new_bookie_its_share_of_entries(five: LocalCluster, client: BookKeeper) -> None:
    ids = filled(client, 30)
    five.add_bookie()
    apply(five, client, Wanted(balance=True))
    counts: dict[str, int] = {}
    for one in ids:
        for bookie, count in holders_named(client, one).items():
            counts[bookie] = counts.get(bookie, 0) + count
    assert len(counts) == 6 and max(counts.values()) <= 1.2 * sum(counts.values()) / 6


def holders_named(client: BookKeeper, ledger_id: int) -> dict[str, int]:
    metadata = client.get_ledger_metadata(ledger_id)
    return dict.fromkeys(metadata.bookies(), metadata.last_entry_id + 1)


def test_replaced_disk_gets_its_copies_back(five: LocalCluster, client: BookKeeper) -> None:
    ids = filled(client)
    bookie = five.bookies[1]
    before = {one: holders(client, one).get(bookie.bookie_id, 0) for one in ids}
    assert any(before.values())
    with Load(five, readers=1) as load:
        apply(five, client, Wanted(replace_disks={bookie.bookie_id: bookie.directories[0]}))
    load.check()
    assert client.bookie_status(bookie.bookie_id).lossy_boot == 1
    assert {one: holders(client, one).get(bookie.bookie_id, 0) for one in ids} == before


def test_copies_named_in_metadata_but_missing_on_the_bookie_do_not_count(
    five: LocalCluster, client: BookKeeper
) -> None:
    """An entry with an ack quorum of copies is on two of the three bookies that the metadata names."""
    client.metadata.underreplication.disable()
    with lacking(client, five) as (ledger_id, bookie, deaf):
        pid = bookie.pid
        wanted = Wanted(restart=frozenset([bookie.bookie_id]))
        stands_for(f"{deaf.bookie_id} lacks entries", five, client, wanted)
        assert bookie.pid == pid
        client.metadata.underreplication.enable()
        apply(five, client, wanted)
        assert bookie.pid != pid
        assert holders(client, ledger_id)[deaf.bookie_id] == 6


def test_change_is_completed_after_its_process_was_killed(
    five: LocalCluster, client: BookKeeper, tmp_path: Path
) -> None:
    filled(client, 4)
    settings = tmp_path / "settings.toml"
    settings.write_text(
        "[client]\nmetadata_session_timeout_seconds = 4.0\n[changes]\npoll_seconds = 0.2\nconfirm_seconds = 0.2\n"
    )
    command = [sys.executable, "-m", "bookspark", "cluster", "apply", "--restart", "all", "--yes"]
    environment = {**os.environ, "BOOKSPARK_ZOOKEEPER": five.zookeeper, "BOOKSPARK_CONFIG": str(settings)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(b"do this now: restart"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait(SECONDS_MAX)
    process.stderr.close()
    record = Kept(client.metadata).read()
    assert record is not None and record.state is ChangeState.UNDER_WAY and len(record.progress.away) == 1
    pids = {one.bookie_id: one.pid for one in five.bookies}
    with Applying(client, LocalHands(five.bookies), QUICK) as applying:
        assert applying.run().state is ChangeState.COMPLETE
    assert all(one.pid != pids[one.bookie_id] for one in five.bookies)
    assert read_only(client, five) == []


def test_change_waits_for_an_idle_writer_and_names_its_ledger(five: LocalCluster, client: BookKeeper) -> None:
    ledger = client.create_ledger()
    ledger.append(b"and nothing more")
    name = ledger.metadata.last_fragment.ensemble[0]
    wanted = Wanted(restart=frozenset([name]))
    stands_for(rf"ledger {ledger.ledger_id} is being written to {name}.*cluster apply", five, client, wanted)
    assert read_only(client, five) == [name]
    with pytest.raises(ConfigurationError, match="another change of this cluster is under way"):
        apply(five, client, Wanted(balance=True))
    with Applying(client, LocalHands(five.bookies), QUICK) as applying:
        applying.give_up()
        assert applying.run().state is ChangeState.GIVEN_UP
    assert read_only(client, five) == []
    assert ledger.append(b"more") == 1
    ledger.close()


def test_change_survives_failed_calls_of_the_metadata_store(
    five: LocalCluster, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Looking.look, []

    def look(looking: Looking) -> Observed:
        calls.append(None)
        if len(calls) % 3 == 0:
            raise MetadataStoreError("not reached")
        return real(looking)

    monkeypatch.setattr(Looking, "look", look)
    bookie = five.bookies[0]
    pid = bookie.pid
    assert apply(five, client, Wanted(restart=frozenset([bookie.bookie_id]))).state is ChangeState.COMPLETE
    assert bookie.pid != pid and read_only(client, five) == []


def test_second_process_cannot_apply_a_change_at_the_same_time(five: LocalCluster, client: BookKeeper) -> None:
    hasty = five.bookkeeper(metadata_session_timeout_seconds=2.0)
    # The first process never ends; the second gives up after two of its own sessions.
    with (
        Applying(client, LocalHands(five.bookies), QUICK),
        pytest.raises(BookieError, match="applies a change of this cluster"),
        Applying(hasty, LocalHands(five.bookies), QUICK),
    ):
        pass

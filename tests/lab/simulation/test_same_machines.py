"""The simulator drives the machines that the client and the bookie run: breaking a machine breaks both."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import types
import typing
from pathlib import Path

import pytest

import bookspark.protocol
from bookspark.lab.simulation.clients import reader, recoverer, writer
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.local import LocalCluster
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.store.client import bookkeeper
from bookspark.store.client.reading import read_handle
from bookspark.store.client.writing import ledger_driver
from bookspark.store.wire.header import Status
from tests.store.bookie.kit import KEY, Pumped, config


def test_client_imports_the_simulators_machines():
    assert ledger_driver.LedgerWriter is writer.LedgerWriter
    assert bookkeeper.LedgerRecovery is recoverer.LedgerRecovery
    assert read_handle.RangeRead is reader.RangeRead
    assert read_handle.LacRead is reader.LacRead
    assert read_handle.LacWait is reader.LacWait


def add_after_fence(directory):
    """Fence a real bookie's storage, then add an entry as the old writer."""
    storage = Pumped(config(directory))
    try:
        assert storage.add(7, 0) is Status.OK
        assert storage.fence(7, KEY) is Status.OK
        return storage.add(7, 1)
    finally:
        storage.storage.close()


def test_bookie_that_forgets_fences_fails_in_the_simulator_and_for_real(monkeypatch, tmp_path):
    options = SimulationOptions(2, 2, 1)
    assert Exhaustive(options).run().violation is None
    assert add_after_fence(tmp_path / "whole") is Status.FENCED
    monkeypatch.setattr(BookieLedger, "admit_add", lambda self, key, recovery: Decision(Positive(), recovery=True))
    assert Exhaustive(options).run().violation.invariant == "no_divergence_between_writer_and_metadata"
    assert add_after_fence(tmp_path / "broken") is Status.OK


def append_while_one_hangs(cluster, seconds):
    """Whether a real client's append at AQ 3 is confirmed within ``seconds`` while one of three bookies hangs."""
    with cluster.bookkeeper() as client:
        ledger = client.create_ledger(ack_quorum=3)
        cluster.bookies[0].suspend()
        try:
            ledger.append_async(b"entry").result(seconds)
        except TimeoutError:
            return False
        finally:
            cluster.bookies[0].resume()
        return True


def counts_one_ack_for_all(writer, event):
    op = writer.cursors.pending.get(event.first)
    if op is not None:
        op.acks |= set(op.bookies)
    return writer._advance()


def test_writer_that_counts_no_acks_fails_in_the_simulator_and_for_real(monkeypatch, new_chroot):
    options = SimulationOptions(2, 2, 2, recoverers=0)
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster:
        assert Exhaustive(options).run().violation is None
        assert not append_while_one_hangs(cluster, 1.5)
        monkeypatch.setattr(LedgerWriter, "_answered", counts_one_ack_for_all)
        assert Exhaustive(options).run().violation.invariant == "all_committed_entries_reach_ack_quorum"
        assert append_while_one_hangs(cluster, 60.0)


@pytest.mark.parametrize(
    "machine", [writer.LedgerWriter, recoverer.LedgerRecovery, reader.RangeRead, reader.LacRead, reader.LacWait]
)
def test_simulated_machines_are_defined_in_the_protocol(machine):
    assert machine.__module__.startswith("bookspark.protocol.")


# -- events and actions

LEASE = "a barrier task's lease on its bookie: the world of the simulator has one ledger, and no tasks"
GIVEN_IDS = "ids are put in order before anything is sent; tests/protocol/test_given_ids.py tries every order"
MEMORY = "memory of connections, which the simulator lacks; tests/protocol/test_peer_memory.py tries its steps"
# Events and actions of the protocol named only by production or only by the simulator, with the reason.
ONE_SIDED = {
    "Given": GIVEN_IDS,
    "NoMore": GIVEN_IDS,
    "Claim": LEASE,
    "Drop": LEASE,
    "Stop": LEASE,
    "Tick": LEASE,
    "Grant": LEASE,
    "Refuse": LEASE,
    "End": LEASE,
    "Shrink": MEMORY,
}


def members(union):
    """The classes of a union; a member may be a union itself."""
    return {kind for part in typing.get_args(union) for kind in (members(part) or {part}) if isinstance(kind, type)}


def events_and_actions():
    """The members of every union in the protocol whose name ends with Event or Action."""
    for found in pkgutil.walk_packages(bookspark.protocol.__path__, "bookspark.protocol."):
        for name, value in vars(importlib.import_module(found.name)).items():
            if name.endswith(("Event", "Action")) and isinstance(value, types.UnionType):
                yield from members(value)


def names_of_the_protocol(folder):
    """Every class of the protocol named by a module in ``folder``, imports excepted."""
    for path in (Path(bookspark.__file__).parent / folder).rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        known = {}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bookspark.protocol"):
                for name in node.names:
                    known[name.asname or name.name] = imported(node.module, name.name)
        for node in nodes:
            named = None
            if isinstance(node, ast.Name):
                named = known.get(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                named = getattr(known.get(node.value.id), node.attr, None)
            if isinstance(named, type):
                yield named


def imported(module, name):
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def test_production_and_the_simulator_use_the_same_events_and_actions():
    """An event or action used only by production is not verified; used only by the simulator, it is verified for nothing.
    Once, the client decided on explicit LACs by itself."""
    kinds = set(events_and_actions())
    production = {kind for folder in ("store", "servers") for kind in names_of_the_protocol(folder)}
    simulated = set(names_of_the_protocol("lab/simulation"))
    one_sided = {kind.__name__ for kind in kinds if (kind in production) is not (kind in simulated)}
    assert one_sided == ONE_SIDED.keys()


def test_every_event_and_action_is_used():
    """Used by a module other than the machines themselves."""
    used = {kind for folder in ("store", "servers", "lab/simulation") for kind in names_of_the_protocol(folder)}
    assert {kind.__name__ for kind in set(events_and_actions()) - used} == set()

"""Notes in the metadata store of the reach of a bookie's directories."""

from __future__ import annotations

import threading

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.bookie.reach import Reach
from bookspark.store.metadata import bookie_reach
from bookspark.store.metadata.bookie_reach import REACHES, ReachNotes
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.store.metadata.kit import EVENT_SECONDS

ME = "bookie-1"


@pytest.fixture
def store():
    return MemoryStore()


def noted(store):
    return ReachNotes(store, ME).noted


def test_reach_note_is_read_at_the_next_start(store):
    assert noted(store) == {}
    notes = ReachNotes(store, ME)
    reach = {"/a": Reach(1, 2), "/b": Reach(3, 4)}
    notes.follow(lambda: reach)
    assert noted(store) == reach
    reach = {"/b": Reach(5, 6)}
    notes.end()
    assert noted(store) == {"/a": Reach(1, 2), "/b": Reach(5, 6)}


def test_reach_is_noted_while_the_bookie_serves(store, monkeypatch):
    monkeypatch.setattr(bookie_reach, "NOTED_SECONDS", 0.001)
    asked, reach = threading.Event(), Reach(1, 1)

    def tell():
        if reach.writes == 2:
            asked.set()
        return {"/a": reach}

    notes = ReachNotes(store, ME)
    notes.follow(tell)
    reach = Reach(2, 2)
    assert asked.wait(EVENT_SECONDS)
    notes.end()
    assert noted(store) == {"/a": Reach(2, 2)}


def test_unchanged_reach_is_not_written(store):
    notes = ReachNotes(store, ME)
    notes.follow(lambda: {"/a": Reach(1, 1)})
    before = store.read_record(REACHES, ME)
    notes.note()
    notes.end()
    assert store.read_record(REACHES, ME) == before


def test_failed_write_of_a_reach_note_is_ignored_and_repeated(store, monkeypatch):
    reach = Reach(1, 1)
    notes = ReachNotes(store, ME)
    notes.follow(lambda: {"/a": reach})
    reach = Reach(2, 2)

    def unreachable(*arguments):
        raise MetadataStoreError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_record", unreachable)
        notes.note()
    assert noted(store) == {"/a": Reach(1, 1)}
    notes.end()
    assert noted(store) == {"/a": Reach(2, 2)}


def test_damaged_reach_note_counts_as_none(store):
    store.write_record(REACHES, ME, b"{", None)
    notes = ReachNotes(store, ME)
    assert notes.noted == {}
    notes.follow(lambda: {"/a": Reach(1, 1)})
    notes.end()
    assert noted(store) == {"/a": Reach(1, 1)}


def test_bookie_that_never_serves_notes_no_reach(store):
    ReachNotes(store, ME).end()
    assert noted(store) == {}

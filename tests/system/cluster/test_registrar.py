"""A bookie's registration follows its storage between writable and read-only."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from typing import Any

import pytest

from bookspark.errors import InvalidCookieError, MetadataStoreError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.servers.daemon.bookie_process import Registrar
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from tests.awaiting import SECONDS_MAX


class Disks:
    """A stand-in for the storage, as a registrar sees it."""

    def __init__(self) -> None:
        self.read_only = False
        self.read_only_changed = lambda read_only: None

    @property
    def disks(self) -> Disks:
        return self

    def turn(self, read_only: bool) -> None:
        self.read_only = read_only
        self.read_only_changed(read_only)


class Store(MemoryStore):
    """A store whose first ``refusals`` registrations fail."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0
        self.refusal = MetadataStoreError("ZooKeeper does not answer")
        self.registered = threading.Semaphore(0)

    def register_bookie(self, registration: BookieRegistration, *identity: Any) -> None:
        if self.refusals:
            self.refusals -= 1
            raise self.refusal
        super().register_bookie(registration, *identity)
        self.registered.release()

    def wait_registered(self) -> bool:
        assert self.registered.acquire(timeout=SECONDS_MAX)
        return self.bookies()["b"].read_only


COOKIE = Cookie("b", ("/disk",), "instance", "n")


@pytest.fixture
def store():
    made = Store()
    made.write_cookie(COOKIE, None)
    return made


@pytest.fixture
def disks():
    return Disks()


@pytest.fixture
def replaced():
    """The errors with which the bookie has to end."""
    return queue.SimpleQueue()


@pytest.fixture
def registrar(store, disks, replaced):
    made = Registrar(store, BookieRegistration("b", "127.0.0.1:1", 1), disks, COOKIE, replaced.put)
    yield made
    made.unregister()
    assert store.bookies() == {}


def test_registration_follows_storage_to_read_only_and_back(registrar, store, disks):
    registrar.register()
    assert store.wait_registered() is False
    disks.turn(True)
    assert store.wait_registered() is True
    disks.turn(False)
    assert store.wait_registered() is False


def test_bookie_that_starts_full_is_registered_as_read_only(registrar, store, disks):
    disks.read_only = True
    registrar.register()
    assert store.wait_registered() is True


def test_registration_is_retried_when_the_metadata_store_fails(registrar, store, disks, monkeypatch):
    monkeypatch.setattr("bookspark.servers.daemon.bookie_process._RETRY_SECONDS", 0.01)
    registrar.register()
    store.wait_registered()
    store.refusals = 2
    disks.turn(True)
    assert store.wait_registered() is True


def test_bookie_that_another_host_became_does_not_register(registrar, store):
    store.write_cookie(replace(COOKIE, nonce="m"), 0)
    with pytest.raises(InvalidCookieError, match="have become b since"):
        registrar.register()
    assert store.bookies() == {}


def test_bookie_that_another_host_became_ends_at_its_change_to_read_only(registrar, store, disks, replaced):
    registrar.register()
    store.wait_registered()
    store.refusals = 1
    store.refusal = InvalidCookieError("other directories have become b since")
    disks.turn(True)
    assert replaced.get(timeout=SECONDS_MAX) is store.refusal

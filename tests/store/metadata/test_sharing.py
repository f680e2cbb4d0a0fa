"""Sharing of work among members, on ZooKeeper and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import await_that
from tests.store.metadata.kit import clients

PATH = "audit@orders"


@pytest.fixture(params=["zookeeper", "memory"])
def new_store(request: pytest.FixtureRequest) -> Iterator[Callable[[], MetadataStore]]:
    """Makes clients of the same cluster, each with its own session."""
    with clients(request.getfixturevalue("chroot") if request.param == "zookeeper" else "") as new:
        yield new


def test_share_has_a_single_holder_until_given_back(new_store: Callable[[], MetadataStore]) -> None:
    one, two = (new_store().sharing(PATH, name) for name in ("one", "two"))
    assert one.join() == ["one"] and two.join() == ["one", "two"] == one.join()
    assert one.take(["0", "7"]) == {"0", "7"} and two.take(["7", "8"]) == {"8"}
    assert one.take(["0"]) == {"0"}, "it is taken again"
    assert one.holders() == two.holders() == {"0": "one", "7": "one", "8": "two"}
    two.give_back(["7"])
    one.give_back(["0"])
    assert two.holders() == {"7": "one", "8": "two"}, "what another holds stays"
    one.leave(["7"])
    assert two.join() == ["two"] and two.holders() == {"8": "two"}


def test_shares_of_an_ended_session_become_free(new_store: Callable[[], MetadataStore]) -> None:
    store, other = new_store(), new_store().sharing(PATH, "other")
    gone = store.sharing(PATH, "gone")
    gone.join()
    gone.take(["3"])
    other.join()
    store.close()
    assert await_that(lambda: other.join() == ["other"] and other.take(["3"])) == {"3"}


def test_sharing_groups_are_independent(new_store: Callable[[], MetadataStore]) -> None:
    store = new_store()
    one, other = store.sharing(PATH, "a"), store.sharing("audit@orders@3", "a")
    one.join()
    assert one.take(["3"]) == other.take(["3"]) == {"3"} and other.holders() == {"3": "a"}


def test_last_member_removes_the_groups_node(chroot: str) -> None:
    with clients(chroot) as new:
        store = new()
        assert isinstance(store, ZooKeeperStore)
        one = store.sharing(PATH, "one")
        one.join()
        one.take(["0"])
        one.leave(["0"])
        await_that(lambda: not store.client.exists(f"{store.layout.sharing}/{PATH}"))

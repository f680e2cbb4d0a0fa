"""The cluster of fake bookies that the client's tests share."""

from __future__ import annotations

import pytest

from tests.store.client.fake_bookie import Cluster


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    made.close()

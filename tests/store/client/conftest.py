"""Fixture of the client's tests: a cluster of fake bookies."""

from __future__ import annotations

import pytest

from tests.store.client.fake_bookie import Cluster


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    made.close()

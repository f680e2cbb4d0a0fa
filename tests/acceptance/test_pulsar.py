"""A Pulsar broker keeps its topics on our bookies, while both are killed and restarted. ``scripts/peers pulsar`` does the same
with 100,000 messages (docs/compatibility.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.pulsar.story import a_broker, tried

pytestmark = pytest.mark.timeout(2400)
COUNT, BYTES = 8_000, 1024


def test_a_pulsar_broker_loses_no_message_and_gives_a_deleted_topics_space_back(tmp_path: Path) -> None:
    told: list[str] = []
    with a_broker(tmp_path) as (cluster, broker):
        tried(cluster, broker, COUNT, BYTES, lambda step: told.append(step.what))
    assert told[-2:] == ["space given back", "the other topic"]

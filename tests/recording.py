"""A record of this process's decisions, in a folder of the test's own."""

from __future__ import annotations

import pytest

from bookspark.decisions.machines import recording_class
from bookspark.decisions.recorder import end_recording, record_into


@pytest.fixture
def record(tmp_path):
    """The folder into which this process records until the test ends. ``end_recording`` ends it before."""
    # A test may have changed the methods that recording classes were made of.
    recording_class.cache_clear()
    folder = tmp_path / "decisions"
    record_into(str(folder), "test")
    yield folder
    end_recording()
    recording_class.cache_clear()

"""A record of this process's decisions, in a folder of the test's own."""

from __future__ import annotations

import pytest

from bookspark.store.decisions import recorder
from bookspark.store.decisions.machines import recording_class
from bookspark.store.decisions.recorder import end_recording, record_into


@pytest.fixture
def record(tmp_path):
    """The folder into which this process records until the test ends, or until ``end_recording``. Waiting decisions are
    written only then, or where the test says so; otherwise a slower machine would write more chunks."""
    # A test may have replaced methods from which the recording classes were made.
    recording_class.cache_clear()
    folder = tmp_path / "decisions"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorder, "_DRAIN_SECONDS", 3600)
        record_into(str(folder), "test")
        yield folder
        end_recording()
    recording_class.cache_clear()

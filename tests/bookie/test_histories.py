"""Random histories of a storage on disks that fail, fill up and lie, together with kills and power cuts: nothing is denied.

The seeds are fixed; ``scripts/soak histories`` tries as many as you like. A failure tells its seed and its shortest story."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_ENTRY
from bookspark.testing.memory_files import MemoryFile
from tests.bookie.histories import History, failure_of, stepped
from tests.bookie.stories import TROUBLES, Story, drawn_story, shortened

SEEDS = range(50)


@pytest.fixture(autouse=True)
def without_threads():
    with stepped():
        yield


@pytest.mark.parametrize("trouble", TROUBLES)
def test_whatever_happens_to_the_disk_nothing_that_was_acknowledged_is_denied_and_no_fence_forgotten(trouble):
    for seed in SEEDS:
        story = drawn_story(trouble, seed)
        failure = failure_of(story)
        if failure:
            short = shortened(story, lambda other, failure=failure: failure_of(other) == failure)
            pytest.fail(f"{trouble} {seed}: {failure}\n{short}")


def test_a_storage_that_does_not_sync_its_fences_is_found_out(monkeypatch):
    sync = MemoryFile.sync
    monkeypatch.setattr(MemoryFile, "sync", lambda file: None if "control.log" in file._path else sync(file))
    assert any("fence" in failure_of(drawn_story("none", seed)) for seed in range(300))


def test_a_bookie_that_denies_what_it_can_not_find_is_found_out(monkeypatch):
    monkeypatch.setattr("bookspark.bookie.holdings.reads.answer_absent", lambda *arguments, **options: NO_SUCH_ENTRY)
    failures = [failure_of(drawn_story("io", seed)) for seed in range(300)]
    assert any("denied" in failure for failure in failures)


def test_a_story_is_shortened_to_what_its_failure_needs(monkeypatch):
    monkeypatch.setattr(History, "do_fence", lambda history, slot: 1 / slot)
    story = next(story for seed in range(99) if "Zero" in failure_of(story := drawn_story("none", seed)))
    short = shortened(story, lambda other: "Zero" in failure_of(other))
    assert short.steps == (("fence", 0),) and len(story.steps) > 1


def test_a_clean_stop_on_a_full_disk_leaves_no_marker():
    """The marker was made for an add that found no room: the next boot fenced all ledgers, although nothing could be lost."""
    steps = (("full", 1000), ("add", 0, 5, 1, 0), ("stop", ""))
    assert failure_of(Story(1, 2500, False, 100_000, False, False, steps)) == ""

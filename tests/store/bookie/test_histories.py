"""Random histories of a storage on disks that fail, fill up and lie, with kills and power cuts.

The seeds are fixed; ``scripts/soak histories`` tries any number. A failure reports its seed and its shortest story.
"""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_ENTRY
from bookspark.testing.memory_files import MemoryFile
from tests.store.bookie.histories import History, failure_of, stepped
from tests.store.bookie.stories import RECOVERY, TROUBLES, Story, drawn_story, shortened

SEEDS = range(15)


@pytest.fixture(autouse=True)
def without_threads():
    with stepped():
        yield


@pytest.mark.parametrize("trouble", TROUBLES)
def test_disk_troubles_never_deny_acknowledged_entries_or_forget_fences(trouble):
    for seed in SEEDS:
        story = drawn_story(trouble, seed)
        failure = failure_of(story)
        if failure:
            short = shortened(story, lambda other, failure=failure: failure_of(other) == failure)
            pytest.fail(f"{trouble} {seed}: {failure}\n{short}")


def test_histories_detect_a_storage_that_does_not_sync_fences(monkeypatch):
    sync = MemoryFile.sync
    monkeypatch.setattr(MemoryFile, "sync", lambda file: None if "control.log" in file._path else sync(file))
    assert any("fence" in failure_of(drawn_story("none", seed)) for seed in range(300))


def test_histories_detect_a_bookie_that_denies_unreadable_entries(monkeypatch):
    monkeypatch.setattr(
        "bookspark.store.bookie.holdings.reads.answer_absent", lambda *arguments, **options: NO_SUCH_ENTRY
    )
    assert any("denied" in failure_of(drawn_story("io", seed)) for seed in range(300))


def test_failing_story_is_shortened_to_its_necessary_steps(monkeypatch):
    monkeypatch.setattr(History, "do_fence", lambda history, slot: 1 / slot)
    story = next(story for seed in range(99) if "Zero" in failure_of(story := drawn_story("none", seed)))
    short = shortened(story, lambda other: "Zero" in failure_of(other))
    assert short.steps == (("fence", 0),) and len(story.steps) > 1


def test_a_clean_stop_on_a_full_disk_leaves_no_marker():
    """The marker was created for an add without room: the next boot fenced all ledgers, although nothing could be lost."""
    steps = (("full", 1000), ("add", 0, 5, 1, 0), ("stop", ""))
    assert failure_of(Story(1, 2500, False, 100_000, False, False, steps)) == ""


def test_background_sync_gets_a_sync_error_already_seen_by_the_commit_thread():
    """Its descriptor was opened for the sync, and the kernel reports no earlier error that another descriptor already got: the
    note ran ahead of the disk, and entries that recovery added again were acknowledged at once and lost by the next power
    cut."""
    first, again = ("add", 0, 0, 2, 0), ("add", 0, 0, 5, RECOVERY)
    failing = (first, ("commit",), ("add", 0, 2, 3, RECOVERY), ("commit",), ("background",))
    for seed in range(5):
        steps = (
            ("fault", f"sync *.arrows 1 write-back:{seed}"),
            *failing,
            ("kill", ""),
            again,
            ("commit",),
            ("crash", -8, ""),
        )
        history = History(Story(1, 2500, False, 1, True, False, steps))
        history.run()
        slot = history.slots[0]
        assert [entry.entry_id for entry in history.read(slot, 0, 4)[0]] == sorted(history.promises.acked[slot])
        assert history.promises.acked[slot] == {0, 1, 2, 3, 4}


def test_note_without_room_retires_no_directory():
    """A part of the note fitted; this was taken for an I/O error, and all entries of the directory were lost here."""
    for left in range(0, 60, 3):
        steps = (("add", 0, 0, 2, 0), ("seal",), ("full", left), ("add", 0, 2, 2, 0), ("commit",))
        assert failure_of(Story(1, 1500, True, 1, False, False, steps)) == ""


def test_lossy_boot_without_room_in_a_directory_continues_with_the_others():
    """The directory was given up, so its unclean marker stayed: the boot after a clean stop was lossy again."""
    crash = ("crash", -2, "")
    before = ("add", 0, 4, 4, 0), ("checkpoint",), crash, ("delete", 0), ("delete", 1)
    after = ("add", 1, 5, 4, 0), ("commit",), crash, ("stop", "")
    for left in range(100, 400, 20):
        assert failure_of(Story(2, 1500, False, 100_000, False, False, (*before, ("full", left), *after))) == ""


def test_log_without_room_is_not_missed_by_later_boots():
    """A checkpoint covered the log, the next boot removed it as empty, and the boot after that reported it missing."""
    steps = (("add", 1, 2, 2, 0), ("full", 1000), ("stop", ""), ("kill", ""))
    assert failure_of(Story(1, 1500, True, 100_000, False, False, steps)) == ""


FAILING_NOTE = ("fault", "sync *control.synced 1 write-back:25")
FAILING_CONTROL = ("fault", "sync * 3 write-back:33")
IN_ITS_FIRST_SECOND = ("fence", 0), ("commit",), ("vanish", 0.0), ("crash", -8, "")
WHILE_IT_IS_WRITTEN_ANEW = (
    ("fence", 1), ("fence", 2), ("second",), FAILING_NOTE, ("vanish", 0.0), ("fence", 0), ("delete", 2), ("stop", ""),
)  # fmt: skip


@pytest.mark.parametrize("steps", [IN_ITS_FIRST_SECOND, WHILE_IT_IS_WRITTEN_ANEW])
def test_vanished_new_control_log_is_detected(steps):
    """While its note was 0, no file showed that the control log had existed: the bookie started anew, without a fence."""
    assert failure_of(Story(1, 2500, True, 100_000, False, False, steps)) == ""


def test_control_log_rewritten_at_boot_keeps_the_records_of_phase_one():
    """The new content was collected before phase one, and replaced the lossy boot, its fences and its limbo."""
    adds = ("add", 1, 11, 1, 0), ("add", 0, 6, 3, 0), ("commit",)
    for left in range(0, 120, 20):
        steps = (*adds, ("full", left), ("crash", -4, ""), ("commit",), ("crash", -8, ""))
        assert failure_of(Story(1, 1500, False, 100_000, False, False, steps)) == ""


def test_logs_removed_on_a_full_disk_are_not_missed():
    """There was no room to note the removal, and the checkpoint no longer covered anything."""
    adds = ("add", 0, 7, 1, 0), ("commit",), ("add", 0, 3, 4, 0), ("seal",)
    for left in range(0, 200, 20):
        steps = (*adds, ("full", left), ("delete", 0), ("reclaim", 0.0, True), ("crash", -8, ""))
        assert failure_of(Story(1, 1500, True, 100_000, False, False, steps)) == ""


def test_unsynced_log_vanished_under_a_trusted_boot_id_is_detected():
    """Its note was 0, like the note of a removed log: entries acknowledged before the sync were denied."""
    steps = (("add", 0, 2, 3, 0), ("seal",), ("add", 0, 5, 3, 0), ("commit",), ("vanish", 0.65), ("kill", ""))
    assert failure_of(Story(1, 1500, False, 100_000, False, True, steps)) == ""


@pytest.mark.parametrize("lie", ["lost", *(f"misdirected:{by}" for by in (-400, -8, 8, 128, 512, 4096))])
def test_lost_or_misplaced_write_under_a_trusted_boot_id_is_detected(lie):
    """The page left the cache and was read again before the process died: the apparent torn write had been acknowledged before
    its sync, and was denied. So the note records how far the log was written."""
    add = ("add", 0, 8, 4, 0)
    for which in range(1, 10):
        for following in ((), (add,), (add, add)):
            steps = (
                ("add", 2, 4, 2, RECOVERY), ("fault", f"write */logs/* {which} {lie}"), ("checkpoint",), add, *following,
                ("scrub",), ("kill", ""), ("kill", ""),
            )  # fmt: skip
            assert failure_of(Story(1, 1500, False, 100_000, False, True, steps)) == ""


def test_vanished_marker_is_created_again_before_further_promises():
    """Entries acknowledged early after that were denied after a power cut."""
    for last in (("commit",), ("heal",)):
        steps = (("add", 0, 6, 3, 0), ("commit",), ("vanish", 0.99), ("add", 1, 7, 4, 0), last, ("crash", -1, ""))
        assert failure_of(Story(1, 1500, False, 100_000, False, False, steps)) == ""


def test_index_drops_rows_of_a_vanished_log_covered_by_the_checkpoint():
    """A recovery add of such an entry ended the loop with a KeyError."""
    steps = (("add", 1, 7, 3, 0), ("stop", ""), ("vanish", 0.7), ("kill", ""), ("add", 1, 6, 3, RECOVERY), ("commit",))
    assert failure_of(Story(1, 1500, True, 100_000, False, False, steps)) == ""


def test_unreadable_free_space_does_not_end_reclaiming():
    steps = (("add", 2, 9, 4, 0), ("seal",), ("fault", "free_bytes * 1 io-error"), ("reclaim", 0.0, True))
    assert failure_of(Story(1, 2500, True, 100_000, False, False, steps)) == ""


def test_zeroed_part_of_a_checkpoint_is_not_read_as_blocks():
    """A lost write left zeros: a block without ids, and the next checkpoint ended in an IndexError."""
    lost = ("fault", "write */checkpoint* 2 lost")
    steps = (
        ("add", 1, 11, 2, 0), ("add", 1, 3, 2, 0), lost, ("second",), ("reclaim", 0.7, True),
        ("add", 1, 7, 3, 0), ("evict",), ("stop", ""),
    )  # fmt: skip
    assert failure_of(Story(1, 1500, True, 100_000, False, False, steps)) == ""


def test_flipped_format_number_of_an_empty_checkpoint_does_not_prevent_the_boot():
    """All bytes behind it were zeros, so the checksum also fitted the previous format, which has a longer head. Found by the
    soak."""
    steps = (("checkpoint",), ("flip", 0.238, 0.1525, 0), ("crash", -4, ""))
    assert failure_of(Story(1, 2500, True, 100_000, False, False, steps)) == ""


def test_check_of_small_files_survives_a_dead_disk():
    """The unreadable directory ended the round of the scrub. Found by the soak."""
    steps = (("add", 1, 6, 2, 0), ("commit",), ("fault", "* * 6.. io-error"), ("scrub",))
    assert failure_of(Story(1, 1500, True, 100_000, False, False, steps)) == ""


def test_log_number_of_an_existing_file_is_not_reused():
    """A boot on a full disk left an unused log in place and gave its number to a rewritten log. The next boot mixed up the two,
    and the entries were lost. Found by the soak."""
    later = ("stop", ""), ("reclaim", 0.7, True)
    before = (
        ("add", 0, 9, 2, 0),
        ("stop", ""),
        ("add", 1, 5, 3, 0),
        ("reclaim", 0.7, True),
        ("full", 200),
        ("add", 1, 4, 2, 0),
    )
    full = ("commit",), ("add", 2, 9, 1, 0), ("heal",), ("full", 0), ("crash", -3, "")
    steps = (*before, *full, ("room",), ("reclaim", 0.7, True), ("add", 0, 2, 3, 0), *later)
    assert failure_of(Story(2, 2500, True, 100_000, False, False, steps)) == ""


def test_control_record_without_its_first_sector_counts_as_torn():
    """Its length read as 0, and the rest of its checksum differed in a single bit from the checksum of no content: an
    unfinished write kept a bookie with one directory down. Found by the soak."""
    steps = (("confirm", 2, 7), ("add", 1, 10, 2, 0), ("commit",), ("crash", 71, ""))
    assert failure_of(Story(1, 2500, True, 100_000, False, False, (FAILING_CONTROL, *steps))) == ""


def test_control_record_without_room_does_not_corrupt_the_next_record():
    """It was cut off without a sync: after a power cut the disk held the start of the next record and the rest of this one.
    That is damage, and the boot fenced all open ledgers. Found by the soak."""
    for left in range(60, 260, 20):
        steps = (("full", left), ("checkpoint",), ("confirm", 0, 9), ("delete", 0))
        for loss in range(-8, 0):
            assert failure_of(Story(2, 1500, True, 100_000, False, False, (*steps, ("crash", loss, "")))) == ""


def test_control_log_with_a_failed_sync_is_written_again_even_without_room():
    """The boot found the records in the page cache, synced them without effect, and noted them as durable: after a power cut
    the bookie stayed down. Found by the soak."""
    steps = (("add", 2, 10, 1, 0), ("fault", "sync * 3.. write-back:95"), ("checkpoint",), ("full", 0), ("stop", ""))
    for loss in (*range(-8, 0), 139):
        assert failure_of(Story(1, 1500, True, 100_000, False, False, (*steps, ("crash", loss, "")))) == ""


def test_control_log_with_an_unsynced_name_is_written_again():
    """The sync of the directory failed, and the next boot found the new log in the page cache, in agreement with its note.
    After a power cut the old log was back under the name, without records that the note promised, and the bookie stayed down.
    Found by the soak."""
    adds = (("add", 0, 10, 1, 0), ("add", 0, 0, 4, 0), ("add", 1, 7, 3, 0), ("add", 0, 6, 2, 0), ("seal",))
    steps = (*adds, ("fault", "sync_directory * 1.. write-back:67"), ("checkpoint",), ("stop", "size * 13 io-error"))
    for loss in range(-8, 0):
        after = (("add", 2, 1, 1, 0), ("checkpoint",), ("crash", loss, ""))
        assert failure_of(Story(1, 1500, True, 100_000, False, False, (*steps, *after))) == ""


@pytest.mark.parametrize(("which", "step"), [("1 write-back:329", "idle"), ("2.. write-back:686", "checkpoint")])
def test_marker_with_an_unsynced_name_is_created_again(which, step):
    """The sync of the directory failed, the process was killed, and the next process, which trusts the boot id, took the marker
    in the page cache for durable: after a power cut it was gone, and early acknowledged entries were denied."""
    steps = (("add", 1, 12, 2, 0), ("fault", f"sync_directory * {which}"), (step,), ("kill", ""))
    for loss in range(-8, 0):
        after = (("add", 0, 0, 2, 0), ("idle",), ("crash", loss, ""))
        assert failure_of(Story(1, 1500, False, 100_000, False, True, (*steps, *after))) == ""


def test_finished_story_is_freed():
    """Each thread with a completion callback was kept until the last story: the soak grew by a megabyte every four stories."""
    # A logged error keeps the frames it passed through, and pytest keeps logged records.
    logging.disable()
    try:
        history = History(drawn_story("all", 3))
        history.run()
    finally:
        logging.disable(logging.NOTSET)
    kept = weakref.ref(history.storage)
    del history
    gc.collect()
    assert kept() is None


def test_directory_failed_within_the_second_has_no_durable_notes():
    """The model took the notes for durable when the second was over, although the failed directory was no longer synced. So it
    reported entries as denied that a lying disk had lost (``LOST_WITHIN_A_SECOND``)."""
    steps = (
        *(("add", 0, 10, 1, 0), ("second",), ("add", 0, 4, 2, 0), ("fault", "write */disk0/* 1 lost")),
        *(("fault", "sync *.synced 1 write-back:64"), ("commit",), ("seal",), ("second",), ("crash", 289, "")),
    )
    assert failure_of(Story(2, 2500, True, 100_000, False, False, steps)) == ""
    # Entries held by the other directory are noted.
    story = History(Story(2, 2500, True, 100_000, False, False, ()))
    for step in (("add", 1, 4, 1, 0), *steps[:-1]):
        story.take(step)
    assert story.noted[0] == {story.slots[0]: {10}, story.slots[1]: {4}}

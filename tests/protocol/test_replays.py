"""Replays of a batch against Spark checkpoints that were set back."""

from __future__ import annotations

import pytest

from bookspark.protocol.logs.commits import FILES, TXN, Commit, CommitHeader, EntryRange, Fingerprint
from bookspark.protocol.logs.replays import Batch, CheckpointRewoundError, is_committed

KEPT = Fingerprint(10, "sum", "plan", "offsets")


def header(fingerprint: Fingerprint | None = KEPT) -> CommitHeader:
    """The header after batch 5 of query q."""
    return CommitHeader().followed_by(
        Commit("q", 5, "run", 1, (EntryRange(7, 0, 9, 10, 100),), fingerprint=fingerprint)
    )


def batch(number: int, fingerprint: Fingerprint | None) -> Batch:
    return Batch("orders", "q", number, fingerprint, "/the/checkpoint")


SAME = {
    "the same in all": KEPT,
    "the same plan, whatever its rows are by now": Fingerprint(11, "other", "plan", "offsets"),
    "planned anew, with the same offsets and rows": Fingerprint(10, "sum", "later", "offsets"),
    "the same rows, and the checkpoint can't be read": Fingerprint(10, "sum"),
}
OTHER = {
    "more rows": Fingerprint(11, "other", "later", "offsets"),
    "other rows, as many": Fingerprint(10, "other", "later", "offsets"),
    "the same rows from other offsets": Fingerprint(10, "sum", "later", "further"),
    "other rows, and the checkpoint can't be read": Fingerprint(10, "other"),
    "no rows": Fingerprint(0, "", "later", "offsets"),
}


@pytest.mark.parametrize("case", SAME)
def test_replay_of_the_committed_batch_is_recognized(case: str) -> None:
    assert is_committed(header(), batch(5, SAME[case]))
    assert is_committed(header().entering(9), batch(5, SAME[case])), "also from a header"


@pytest.mark.parametrize("case", OTHER)
def test_different_batch_under_the_last_number_is_refused_with_the_remedy(case: str) -> None:
    for known in (header(), header().entering(9)):
        with pytest.raises(CheckpointRewoundError) as raised:
            is_committed(known, batch(5, OTHER[case]))
        text = str(raised.value)
        for part in (
            "log 'orders'",
            "batch 5 of query q",
            "/the/checkpoint",
            "newest checkpoint",
            "follows set to 'q'",
        ):
            assert part in text
        assert "acceptReplay to 5" in text


def test_batch_without_fingerprint_is_a_replay_unless_older() -> None:
    assert is_committed(header(), batch(5, None))
    with pytest.raises(CheckpointRewoundError, match="the log has batch 5"):
        is_committed(header(), batch(4, None))


def test_commit_of_an_earlier_version_is_compared_by_rows_or_batch_number() -> None:
    assert is_committed(header(None), batch(5, KEPT))
    with pytest.raises(CheckpointRewoundError):
        is_committed(header(None), batch(5, KEPT._replace(rows=11)))
    written_before = CommitHeader(1, last_batches={"q": 5})
    assert is_committed(written_before, batch(5, KEPT._replace(rows=11)))
    with pytest.raises(CheckpointRewoundError):
        is_committed(written_before, batch(4, KEPT))


def new_batch(before: dict[int, Fingerprint] | None) -> Batch:
    """``before``: the plans in its Spark checkpoint. None: plans are not compared."""
    plan = None if before is None else lambda number: before.get(number, Fingerprint(0))
    return Batch("orders", "q", 7, Fingerprint(1), "/the/checkpoint", plan)


@pytest.mark.parametrize(
    "own",
    [
        Fingerprint(0, "", "plan", "offsets"),
        Fingerprint(0, "", "later", "offsets"),
        Fingerprint(0),
    ],
    ids=["the same plan", "planned anew up to the same offsets", "not known"],
)
def test_new_batch_is_accepted_if_its_checkpoint_has_the_last_batch(own: Fingerprint) -> None:
    assert not is_committed(header(), new_batch({5: own, 6: Fingerprint(0, "", "another", "further")}))
    assert not is_committed(header(Fingerprint(10)), new_batch({5: Fingerprint(0, "", "later", "further")}))
    assert not is_committed(header(), new_batch(None)), "the run has written to the log before"
    assert not is_committed(CommitHeader(), new_batch({}))


def test_new_batch_whose_checkpoint_has_another_last_batch_is_refused() -> None:
    with pytest.raises(
        CheckpointRewoundError, match=r"batch 7 may have rows that are in the log.*two queries have copies"
    ):
        is_committed(header(), new_batch({5: Fingerprint(0, "", "later", "further")}))


def test_last_batch_seen_only_by_recovery_is_compared_too() -> None:
    """The earlier view of a log reader does not count: a run was refused that had written that batch itself."""
    assert not is_committed(header(), new_batch({4: KEPT, 5: KEPT}))


def test_digest_without_files_differs_from_a_digest_of_files() -> None:
    """The copy of a checkpoint may have planned the batch before any file came: its next batch has rows that are in the log."""
    files = KEPT._replace(plan="later", offsets=f"{FILES}offsets")
    for kept, now in ((KEPT, files), (files, KEPT)):
        with pytest.raises(CheckpointRewoundError):
            is_committed(header(kept), batch(5, now))
        with pytest.raises(CheckpointRewoundError):
            is_committed(header(kept), new_batch({5: now}))


PLANNED = Fingerprint(0, "", "plan", "offsets")


@pytest.mark.parametrize(
    ("other", "may_be"),
    [
        (Fingerprint(0), True),
        (Fingerprint(0, "", "plan", "further"), True),
        (Fingerprint(0, "", "later", "offsets"), True),
        (Fingerprint(0, "", "later", "further"), False),
        (Fingerprint(0, "", "later"), False),
    ],
    ids=["no plan", "the same plan", "the same offsets", "other offsets", "offsets not known"],
)
def test_plans_match_if_plan_or_offsets_agree(other: Fingerprint, may_be: bool) -> None:
    assert PLANNED.may_be_planned_as(other) is other.may_be_planned_as(PLANNED) is may_be


def test_next_commit_has_its_start_and_no_earlier_time() -> None:
    first = Commit("q", 1, "run", 1, (EntryRange(7, 0, 9, 10, 100),), time_ms=50)
    assert CommitHeader().placed(first) == first
    after = CommitHeader().followed_by(first)
    second = after.placed(Commit("q", 2, "run", 1, (EntryRange(7, 10, 12, 3, 30),), time_ms=40))
    assert (second.first_row, second.first_byte, second.time_ms) == (10, 100, 50)
    assert after.placed(Commit("q", 2, "run", 1, (), time_ms=60)).time_ms == 60


def test_last_query_ignores_batch_writes() -> None:
    assert CommitHeader().last_query == ""
    assert CommitHeader(last_batches={"q1": 5, "q2": 3, f"{TXN}app": 1}).last_query == "q2"

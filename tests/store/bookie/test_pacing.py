"""Pacing of compaction: when, how many and how fast logs are rewritten; one test simulates 45 minutes of steady load."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.store.bookie.disk.rewritten_log import RewrittenLog
from bookspark.store.bookie.serving.maintenance import Rounds, rate
from bookspark.store.bookie.space.reclaiming import LogUse, choose
from tests.store.bookie.kit import config
from tests.store.bookie.steady_load import SteadyLoad
from tests.store.bookie.stepped import without_threads

_MIB, _GIB = 1 << 20, 1 << 30


def test_compaction_rate_is_limited_only_while_the_rest_fits_into_the_time():
    assert rate(64, 320, 10.0, nearly_full=False) == 64
    assert rate(64, 321, 10.0, nearly_full=False) == 0, "behind: no limit"
    assert rate(64, 1, -1.0, nearly_full=False) == 0
    assert rate(64, 1, 10.0, nearly_full=True) == 0
    assert rate(0, 0, 10.0, nearly_full=False) == 0


def test_next_round_keeps_the_compaction_threshold_of_an_unfinished_round():
    rounds = Rounds(config(Path("/disk"), gc_wait_time_seconds=100.0), 0.0)
    first = rounds.begin(3600.0, 7, forced=False)
    assert (first.threshold, first.below, first.until) == (0.2, 7, 3650.0)
    second = rounds.begin(3700.0, 9, forced=False)
    assert second.threshold == 0.0
    assert first.followed_by(second) == second._replace(threshold=0.2)
    full = rounds.begin(3701.0, 9, forced=True)
    assert full.threshold == 0.8
    assert full.followed_by(second).forced
    assert rounds.begin(3702.0 + 86400.0, 9, forced=False).threshold == 0.8


class _Place:
    def __init__(self, path: str) -> None:
        self.path = path


_ONE, _OTHER = _Place("/a"), _Place("/b")


def _use(number: int, live: int, directory: _Place = _ONE) -> LogUse:
    return LogUse(directory, RewrittenLog(directory.path, number, 64 * _MIB), live)


def test_pass_is_bounded_and_reports_the_bytes_left():
    uses = [_use(number, 10 * _MIB) for number in range(1000)]
    chosen = choose(uses, 0.5, 64 * _MIB, entry_logs=False)
    assert sum(use.live_bytes for job in chosen.jobs for use in job) <= 2 * _GIB + 64 * _MIB
    assert len(chosen.jobs) == 29
    assert chosen.left_bytes == (1000 - 29 * 7) * 10 * _MIB
    assert choose(uses[:7], 0.5, 64 * _MIB, entry_logs=False).left_bytes == 0


def test_pass_over_nearly_empty_logs_has_at_most_32_jobs():
    assert len(choose([_use(number, 1) for number in range(1000)], 0.5, 64 * _MIB, entry_logs=False).jobs) == 32


def test_pass_takes_its_first_job_of_any_size():
    chosen = choose([_use(1, 3 * _GIB)], 1000.0, 4 * _GIB, entry_logs=False)
    assert (len(chosen.jobs), chosen.left_bytes) == (1, 0)


def test_jobs_alternate_between_directories():
    uses = [_use(number, 60 * _MIB) for number in range(100)]
    uses += [_use(100 + number, 62 * _MIB, _OTHER) for number in range(100)]
    jobs = choose(uses, 1.0, 64 * _MIB, entry_logs=False).jobs
    assert {job[0].directory for job in jobs[:2]} == {_ONE, _OTHER}
    assert abs(sum(job[0].directory is _ONE for job in jobs) - len(jobs) / 2) <= 1


def test_logs_begun_after_the_collection_wait_for_the_next_round():
    chosen = choose([_use(1, 5), _use(2, 5), _use(3, 0)], 0.5, 64 * _MIB, entry_logs=False, below=2)
    assert [[use.log.number for use in job] for job in chosen.jobs] == [[1]]
    assert [use.log.number for use in chosen.dead] == [3], "what is dead goes at once"
    assert chosen.left_bytes == 0


@pytest.fixture
def stepped():
    with without_threads():
        yield


@pytest.mark.acceptance
def test_garbage_stays_flat_at_96_mb_per_second_half_deleted_after_a_minute(stepped):
    """Unbounded passes grew geometrically (6, 20, 47 s … at half of the compaction rate), and no collection ran meanwhile."""
    load = SteadyLoad(96 * _MIB, 16 * _MIB, 160 * _MIB, seconds_of_the_rest=1e9)
    load.run(2700)
    assert [round(end / 900) for end in load.collections] == [1, 2], "beside the passes, and not after them"
    assert max(load.passes) <= 2 * 2.1 * _GIB / (64 * _MIB)
    garbage = [used - live for used, live in zip(load.used, load.live, strict=True)]
    peaks = [max(garbage[start : start + 900]) / _GIB for start in range(0, 2700, 900)]
    # Entries deleted just after a collection are copied once. Without the higher rate garbage is 81 GiB at the end.
    assert max(peaks) <= 1.25 * peaks[0], peaks

"""Stories of what is decided by figures, of single files, and of options."""

# ruff: noqa: B023  (each function is called before its loop goes on)
from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise, product
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from bookspark.bookie.bookie_config import advertised_address, bookie_config, is_loopback, is_name
from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.disk.file_system import replace_file, uncached, with_descriptor, write_all
from bookspark.bookie.holdings.disk_marks import Takes, Thresholds, takes, used_part
from bookspark.bookie.space.choosing import LogUse, choose
from bookspark.bookie.space.pacing import Rounds, rate
from bookspark.errors import ConfigurationError
from tests.bookie.told.telling import Telling, attempt, told_files


def story_of_choices(telling: Telling) -> None:
    draw = Random(5)
    for number in range(60):
        directories = [SimpleNamespace(path=path) for path in ("/b", "/a")]
        uses = []
        for log_number in range(draw.randrange(1, 30)):
            end = draw.choice([0, 100, 500, 1000])
            log: Any = (
                EntryLog(None, "/a", log_number) if draw.random() < 0.3 else SimpleNamespace(number=log_number, end=end)
            )
            if isinstance(log, EntryLog):
                log.end = end
            uses.append(LogUse(draw.choice(directories), log, min(end, draw.choice([0, 10, 50, 250, 500, 1000]))))
        draw.shuffle(uses)
        failed = {use.log.number: n for n, use in enumerate(draw.sample(uses, min(3, len(uses))))} if number % 2 else {}
        with ExitStack() as stack:
            for name, value in (("_SOURCES_MAX", 3), ("_JOBS_MAX", 4), ("_PASS_BYTES", 1200), ("_SMALL_LOGS_MIN", 3)):
                if number % 3:
                    stack.enter_context(patch(f"bookspark.bookie.space.choosing.{name}", value))
            below = draw.choice([None, 12])
            threshold, job_bytes, entry_logs = (
                draw.choice([0.0, 0.5, 1.0]),
                draw.choice([300, 900, 8000]),
                draw.random() < 0.5,
            )
            choice = choose(uses, threshold, job_bytes, entry_logs=entry_logs, below=below, failed=failed)
        jobs = [[use.log.number for use in job] for job in choice.jobs]
        telling.line(
            f"{len(uses)} {threshold} {job_bytes} {entry_logs} {below} {failed}: "
            f"dead {[use.log.number for use in choice.dead]} jobs {jobs} left {choice.left_bytes}"
        )
    config = bookie_config(
        directories=("/a",),
        zookeeper="-",
        gc_wait_time_seconds=100,
        minor_compaction_interval_seconds=50,
        major_compaction_interval_seconds=200,
    )
    rounds = Rounds(config, 1000.0)
    made = [
        rounds.begin(now, 7, forced=forced)
        for now, forced in (
            (1049.0, False),
            (1050.0, False),
            (1099.0, False),
            (1100.0, True),
            (1149.9, False),
            (1150.0, False),
            (1299.0, False),
            (1300.0, False),
        )
    ]
    for one in made:
        telling.line(str(tuple(one)))
    telling.line(f"{[tuple(one.followed_by(other)) for one, other in pairwise(made)]}")
    for speed, left, seconds, full in product((0, 100), (0, 49, 50, 51), (-1.0, 0.0, 1.0), (False, True)):
        telling.note(f"rate {speed} {left} {seconds} {full}: {rate(speed, left, seconds, nearly_full=full)}")
    marks = Thresholds(0.5, 0.6, 0.7, 0.9)
    for before, used in product(Takes, (0.59, 0.6, 0.69, 0.7, 0.89, 0.9)):
        telling.note(f"{before.name} {used} {takes(before, used, marks).name}")
    for figures in ((0, 0, 0, 0), (5, 1, 4, 10), (9, 3, 4, 10), (1, 4, 4, 0)):
        telling.note(f"used {figures} {used_part(*figures)}")


def story_of_files(telling: Telling) -> None:
    for rule in (
        "",
        "write *.new 1 no-space",
        "write *.new 1 io-error",
        "sync *.new 1 no-space",
        "sync *.new 1 io-error",
        "open *.new 1 too-many-files",
        "rename * 1 io-error",
        "sync_directory * 1 io-error",
        "sync_directory * 1 too-many-files",
        "sync_directory * 1..2 too-many-files",
        "sync_directory * 1..3 too-many-files",
    ):
        disk, faults, files = told_files(telling)
        for content in (b"old", b"new"):
            attempt(telling, f"replace {rule}", lambda: replace_file(files, "/a/x", [content, b"!"]))
            if rule:
                faults.add(rule)
        disk.open("/a/x.new", create=True)
        attempt(telling, "replace", lambda: replace_file(files, "/a/x", [b"third"]))
        telling.line(f"  = {disk.files()}")
    tries = iter([OSError(24, "x"), OSError(23, "x"), OSError(24, "x"), OSError(5, "x"), None, OSError(24, "x"), None])

    def call() -> str:
        telling.note("tried")
        if (error := next(tries)) is not None:
            raise error
        return "done"

    for _ in range(4):
        attempt(telling, "with a descriptor", lambda: with_descriptor(call))
    disk, faults, files = told_files(telling)
    attempt(telling, "uncached", lambda: uncached(files, "/a/none"))
    disk.open("/a/y", create=True)
    attempt(telling, "uncached", lambda: uncached(files, "/a/y"))
    faults.add("drop_cached * 1 io-error")
    attempt(telling, "uncached", lambda: uncached(files, "/a/y"))
    for rule in (
        "write * 1 short:1",
        "write * 1..9 short:2",
        "write * 2 no-space",
        "write * 1 short:0",
        "write * 1 io-error",
        "write * 1 too-many-files",
    ):
        faults.clear()
        faults.add(rule)
        attempt(telling, f"write all {rule}", lambda: write_all(files.open("/a/y"), [b"ab", b"", b"cde"], 3))
        attempt(telling, "write all", lambda: write_all(files.open("/a/y"), [], 3))


def story_of_options(telling: Telling) -> None:
    plain = {"directories": ("/a",), "zookeeper": "-"}
    for options in (
        {},
        {"directories": ()},
        {"directories": ("/a", "/a")},
        {"directories": ("/a", "/a/")},
        {"directories": ("/a", "a")},
        {"directories": ("/a", "/a/b")},
        {"directories": tuple(f"/{n}" for n in range(64))},
        {"directories": tuple(f"/{n}" for n in range(65))},
        {"directories": "/a"},
        {"directories": ("",)},
        {"zookeeper": ""},
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": ""},
        {"host": "[::]"},
        {"host": "0.0.0.0", "advertised_address": "h:1"},
        {"host": "b1"},
        {"host": "::1"},
        {"advertised_address": "h"},
        {"advertised_address": "h:"},
        {"advertised_address": ":1"},
        {"advertised_address": "h:x"},
        {"advertised_address": "h:0"},
        {"advertised_address": "h:65536"},
        {"advertised_address": "{host}:{port}"},
        {"advertised_address": "{hostname}.org:{port}"},
        {"advertised_address": "{name}:1"},
        {"advertised_address": "{host}"},
        {"port": 65535},
        {"port": 65536},
        {"port": -1},
        {"bookkeeper_port": -1},
        {"bookkeeper_port": -2},
        {"disk_usage_threshold": 0.5},
        {"disk_usage_low_water_mark_threshold": 0.96},
        {"disk_usage_recovery_threshold": 0.9},
        {"disk_usage_warn_threshold": 0.99},
        {"disk_usage_threshold": 0.9, "disk_usage_low_water_mark_threshold": 0.9},
        {"disk_usage_recovery_threshold": 0.95},
        {"disk_usage_warn_threshold": 0.0},
        {"trust_boot_id": True},
        {"trust_boot_id": True, "journal_write_data": False},
        {"tls_key": "k"},
        {"tls_ca": "c"},
        {"tls_client_ca": "c"},
        {"tls_certificate": "c"},
        {"bookie_id": "a b"},
        {"bookie_id": "b1"},
        {"bookie_id": "/"},
        {"labels": {"a": "b"}},
        {"labels": {"rack": "b"}},
        {"labels": {"": "b"}},
        {"rack": "/a/b"},
        {"entry_log_bytes_max": 0},
        {"entry_log_bytes_max": 1 << 31},
        {"entry_log_bytes_max": (1 << 31) + 1},
        {"scrub_interval_hours": 0},
        {"none": 1},
    ):
        try:
            bookie_config(**{**plain, **options})
            telling.line(f"{options}: taken")
        except ConfigurationError as error:
            telling.line(f"{options}: {str(error).splitlines()[0]}")
    for host in ("b1", "127.0.0.1", "127.3.4.5", "::1", "[::1]", "10.0.0.1", "localhost", "", "0.0.0.0"):
        telling.note(f"{host!r} {is_name(host)} {is_loopback(host)}")
    for pattern in ("{host}:{port}", "{hostname}.x:{port}-{bookie_id}", "{other}", "plain", "{host"):
        attempt(telling, pattern, lambda: advertised_address(pattern, "h", "n", "7", "b"))

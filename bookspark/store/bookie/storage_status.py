"""What a storage tells of itself: what status, metrics and registrations are made of."""

from __future__ import annotations

from typing import NamedTuple


class StorageStatus(NamedTuple):
    """How much a storage holds, and how much room is left. Sizes in bytes."""

    ledgers: int
    log_bytes: int
    free_bytes: int
    read_only: bool
    failed_directories: dict[str, str]
    """The directories that are not in use, and why."""
    read_errors: dict[str, int]
    """How many batches the disk of a directory could not read since the start, for those that had any."""
    lost_copies: int
    """How many copies of batches were found unreadable since the start."""
    lacking_ledgers: int
    """Ledgers of which entries were lost here that were not all back at the last checkpoint."""
    reasons: list[str]
    """Why it does not take every add in every directory, and what to do about it."""
    sync_seconds: dict[str, float]
    """How long a sync that adds wait for takes lately, for the directories of which enough is known."""

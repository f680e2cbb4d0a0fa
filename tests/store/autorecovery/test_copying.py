"""The room for bytes under way, shared by the copies of a process."""

from __future__ import annotations

import threading

from bookspark.protocol.repair.entry_copying import RUN_BYTES
from bookspark.store.autorecovery.copying import UNDER_WAY_BYTES_MAX, Copying


def test_concurrent_copies_share_their_room_and_each_can_progress() -> None:
    shared = Copying(0, threading.Event())
    with shared.room(1) as one, shared.room(2) as other:
        assert one.fits(0, RUN_BYTES) and one.fits(UNDER_WAY_BYTES_MAX - RUN_BYTES, RUN_BYTES)
        assert not one.fits(UNDER_WAY_BYTES_MAX, RUN_BYTES)
        assert other.fits(0, RUN_BYTES), "who has nothing under way waits for nobody"
        assert not other.fits(RUN_BYTES, RUN_BYTES)
    with shared.room(2) as other:
        assert other.fits(RUN_BYTES, RUN_BYTES), "what has ended takes no room"

"""The read-only switch of a bookie.

Law: as in ``protocol.bookie.read_only_switch``. A new setting counts once it is durable in every directory that is in use.
"""

from __future__ import annotations

from bookspark.protocol.bookie.read_only_switch import switched
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.holdings.disks import Disks
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.wire.header import Status


class ReadOnlySwitch:
    """The switch of one bookie. Owned by the loop."""

    def __init__(self, state: ControlState, records: ControlRecords, disks: Disks) -> None:
        self._state = state
        self._records = records
        self._disks = disks
        self._last_number = 0

    def opened(self) -> None:
        """The control logs are read: set the switch as it was before the boot."""
        self._last_number = self._state.switch.number
        self._disks.switched = self._state.switch.read_only

    def switch(self, read_only: bool, done: Done) -> None:
        """Set the switch. ``done``: OK once that is durable, or IO_ERROR, which changes nothing."""
        record = switched(self._last_number, read_only)
        self._last_number = record.number

        def noted(status: int) -> None:
            if status == Status.OK:
                self._state.replay([record])
                self._disks.switch(self._state.switch.read_only)
            done(status)

        self._records.write([record], noted)

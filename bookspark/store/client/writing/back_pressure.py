"""Back-pressure: what an append waits for before it gets an id.

Law: an append waits while the ledger, or all ledgers of the client together, keep too much (``runtime.room``), and for the turn
that the client's rate limit gives (``runtime.rate_limit``). Each wait has a deadline, twice ``add_timeout_seconds``. Its error
says what was waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from bookspark.errors import AddTimeoutError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.rate_limit import Turns
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from bookspark.support.threads import check_may_wait


class BackPressure:
    """The back-pressure on one ledger's appends. Thread-safe."""

    def __init__(self, metadata: LedgerMetadata, context: ClientContext, driver: LedgerDriver) -> None:
        self._ledger_id, self._write_quorum = metadata.ledger_id, metadata.write_quorum
        self._config = context.config
        self._seconds = 2 * context.config.add_timeout_seconds
        self._room, self._cursors = driver.room, driver.cursors
        self._rate_limit, self._turns = context.runtime.rate_limit, Turns()
        self.limits = self._rate_limit.limits
        """Is there a limit of appends a second?"""

    @property
    def is_off(self) -> bool:
        """Would an append not wait now?"""
        return self._room.ask() and not self._rate_limit.would_wait()

    def wait_behind_gap(self, last_add_pushed: int, byte_length: int, behind_gap: Callable[[], bool]) -> None:
        """``wait`` for one entry that may have to wait for an earlier one; ``behind_gap`` tells whether it still has to."""
        if not self._room.ask(behind_gap()):
            self._wait_for_room(last_add_pushed, behind_gap)
        if self.limits:
            self._wait_for_turn(1, byte_length)

    def wait(self, last_add_pushed: int, count: int, byte_length: int) -> None:
        """Wait until ``count`` entries may be appended, which have so many bytes. ``last_add_pushed``: the last id that an append
        was given. Raises AddTimeoutError, and BookKeeperError in a thread of the client's own that would have to wait."""
        room = self._room
        if room.appended >= room.granted and not room.ask():
            self._wait_for_room(last_add_pushed)
        if self.limits:
            self._wait_for_turn(count, byte_length)

    def _wait_for_room(self, last_add_pushed: int, behind_gap: Callable[[], bool] = lambda: False) -> None:
        check_may_wait()
        if not self._room.wait(self._seconds, behind_gap):
            config = self._config
            limit, kept = config.bytes_in_flight_max, self._room.appended - self._room.released
            others = (
                ""
                if kept > limit
                else f"; all ledgers of this client keep {config.client_bytes_in_flight_max} bytes at most"
            )
            raise AddTimeoutError(
                f"ledger {self._ledger_id}: {min(kept, limit)} bytes wait for {self._what_is_missing(last_add_pushed)}{others}"
            )

    def _wait_for_turn(self, count: int, byte_length: int) -> None:
        config, limit = self._config, self._rate_limit
        if limit.would_wait():
            check_may_wait()
        if not limit.wait(self._turns, count, byte_length, self._seconds):
            raise AddTimeoutError(
                f"ledger {self._ledger_id}: this append did not get its turn in {self._seconds:g} s: the client's limits are "
                f"{config.appends_per_second_max} entries and {config.append_bytes_per_second_max} bytes a second (0: none)"
            )

    def _what_is_missing(self, last_add_pushed: int) -> str:
        cursors = self._cursors
        if cursors.last_add_acknowledged < last_add_pushed:
            return "an acknowledgement; no bookie makes progress"
        if cursors.last_add_confirmed < cursors.last_add_pushed:
            return "a sync; too few bookies make progress"
        return f"their {self._write_quorum} copies; bring back the bookies of the ensemble, or start more"

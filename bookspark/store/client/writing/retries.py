"""When a writer asks a bookie again that was reached, but refused.

Law: a bookie that can't take an add now (it has too much to do, or its disk is full or failed) is asked again, less and less
often until it takes one: it may be full for long, and a ledger may keep much for it. After a refusal for one of ``FINAL_REASONS``
the bookie is not asked again: that would be useless, or a new connection tells when it is useful. All of it runs in the I/O loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookspark.protocol.ledger.responses import FINAL_REASONS, Response, Unknown
from bookspark.protocol.writing.ensemble_change import NOBODY

_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 3.2


class Retries:
    """The retries of one ledger. ``again(bookie)`` asks the bookie again."""

    def __init__(self, again: Callable[[str], None]) -> None:
        self._again = again
        self._waiting = NOBODY
        self.pauses: dict[str, float] = {}
        """The next pause, in seconds, of each bookie that refused what it was asked last."""

    def refused(self, bookie: str, response: Response) -> None:
        """The bookie answered with ``response``. A positive one changes nothing."""
        if isinstance(response, Unknown) and response.reason not in FINAL_REASONS and bookie not in self._waiting:
            self._waiting |= {bookie}
            pause = self.pauses.get(bookie, _PAUSE_SECONDS)
            self.pauses[bookie] = min(2 * pause, _PAUSE_SECONDS_MAX)
            asyncio.get_running_loop().call_later(pause, self._retry, bookie)

    def took(self, bookie: str) -> None:
        """The bookie took something, or has just been connected to."""
        if self.pauses:
            self.pauses.pop(bookie, None)

    def _retry(self, bookie: str) -> None:
        self._waiting -= {bookie}
        self._again(bookie)

"""The log message about refused requests, with their count: at most one every few seconds, as peers can cause any number."""

from __future__ import annotations

import logging
import time

TOLD_SECONDS = 5.0

log = logging.getLogger(__name__)


class Refusals:
    """Refusals of one bookie. Owned by the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._untold = 0
        self._told_at = float("-inf")

    def tell(self, peer: str, why: object) -> None:
        """Count a refused request or connection of ``peer``, and log it if the last message is old enough."""
        self.count += 1
        self._untold += 1
        if (now := time.monotonic()) - self._told_at >= TOLD_SECONDS:
            log.warning("%d requests or connections were refused; the last of %s: %s", self._untold, peer, why)
            self._untold, self._told_at = 0, now

"""The warning that something was refused. Peers can cause it as often as they like, so it is given at most every few seconds,
with how often it was."""

from __future__ import annotations

import logging
import time

TOLD_SECONDS = 5.0

log = logging.getLogger(__name__)


class Refusals:
    """What one bookie refused. Owned by the loop."""

    def __init__(self) -> None:
        self.count = 0
        """How often something was refused since the start."""
        self._untold = 0
        self._told_at = float("-inf")

    def tell(self, peer: str, why: object) -> None:
        """A request or a connection of ``peer`` is refused."""
        self.count += 1
        self._untold += 1
        if (now := time.monotonic()) - self._told_at >= TOLD_SECONDS:
            log.warning("%d requests or connections were refused; the last of %s: %s", self._untold, peer, why)
            self._untold, self._told_at = 0, now

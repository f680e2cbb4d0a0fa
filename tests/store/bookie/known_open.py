"""Known violations of the law of ``histories``, by name.

Law: a violation is excused only where it may be the cause, and only for the loss it may cause. A fixed violation leaves
``KNOWN_OPEN``; then the histories check for it again.
"""

from __future__ import annotations

LOST_WITHIN_A_SECOND = "a disk loses a write that it reported and synced, and the power goes before the note is durable"
"""It looks like a write cut short, which was never acknowledged. Only a durable note could show the difference, at a second
sync each time."""
MARKER_VANISHED = "the unclean marker vanishes before a crash"
"""The marker is the only evidence of entries acknowledged before their sync."""

KNOWN_OPEN = {LOST_WITHIN_A_SECOND, MARKER_VANISHED}

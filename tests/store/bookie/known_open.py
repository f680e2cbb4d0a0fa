"""What still breaks the law of ``histories``, each with its name.

Law: it is excused only where it may have been the cause, and only for what it may have cost. What is mended is taken out of
``KNOWN_OPEN``; then the histories look for it.
"""

from __future__ import annotations

LOST_WITHIN_A_SECOND = "a disk loses a write that it reported and synced, and the power goes before the note is durable"
"""It looks like a write that was cut short, which nobody acknowledged. Only a durable note could tell, and would cost a second
sync each time."""
MARKER_VANISHED = "the unclean marker vanishes before a crash"
"""The marker is the only witness of entries that were acknowledged before their sync."""

KNOWN_OPEN = {LOST_WITHIN_A_SECOND, MARKER_VANISHED}

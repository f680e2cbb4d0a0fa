"""BookKeeper's keys from a ledger's password, and a bookie's hash of them.

Law: BookKeeper's *master key* is SHA-1("ledger" ‖ password), 20 bytes, and the key of its HMAC is SHA-1("mac" ‖ password). Our
bookies keep 16 bytes for each ledger: a hash of BookKeeper's master key. The password, or BookKeeper's master key, gives the same
16 bytes.

Source: BookKeeper's ``MacDigestManager``.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

_KEY_BYTES = 16


def bookkeeper_master_key(password: bytes) -> bytes:
    """The master key that a client of BookKeeper sends to bookies: 20 bytes."""
    return hashlib.sha1(b"ledger" + password).digest()


def bookkeeper_mac_key(password: bytes) -> bytes:
    """The key of each entry's HMAC-SHA-1."""
    return hashlib.sha1(b"mac" + password).digest()


@lru_cache(maxsize=1024)
def kept_key(bookkeeper_key: bytes) -> bytes:
    """The 16 bytes that a bookie keeps of it."""
    return hashlib.sha256(b"bookkeeper ledger\0" + bookkeeper_key).digest()[:_KEY_BYTES]

"""Files with shared secrets, as a bookie and its clients take them: random lines, readable by their owner alone."""

from __future__ import annotations

import secrets
from pathlib import Path


def new_secret() -> str:
    """A line of 16 random bytes."""
    return secrets.token_hex(16)


def write_secrets(path: Path, *lines: str) -> str:
    """Write these secrets, or a new one, over the file; returns its path."""
    path.touch(mode=0o600)
    path.write_text("".join(f"{line}\n" for line in lines or (new_secret(),)))
    return str(path)

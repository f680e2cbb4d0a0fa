"""What a mutant of ``write_set`` makes stand, and one that stands without a mutant too, once it was measured."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bookspark.protocol.ledger.quorum import write_set


@pytest.mark.timeout(4)
def test_stands_if_it_is_wrong() -> None:
    if write_set(0, 3, 2) != (0, 1):
        threading.Event().wait()


@pytest.mark.timeout(4)
def test_stands_from_the_second_time() -> None:
    write_set(0, 3, 2)
    measured = Path(os.environ["MUTANTS_MEASURED"])
    if measured.exists():
        threading.Event().wait()
    measured.touch()

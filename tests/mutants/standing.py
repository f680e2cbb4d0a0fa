"""What a mutant of ``write_set`` makes stand, and what stands or fails without a mutant too, once it was measured."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import pytest

from bookspark.protocol.ledger.quorum import write_set


def _stand() -> NoReturn:
    while True:
        signal.pause()


@pytest.mark.timeout(4)
def test_stands_if_it_is_wrong() -> None:
    if write_set(0, 3, 2) != (0, 1):
        _stand()


@pytest.mark.timeout(4)
def test_stands_from_the_second_time() -> None:
    write_set(0, 3, 2)
    measured = Path(os.environ["MUTANTS_MEASURED"])
    if measured.exists():
        _stand()
    measured.touch()


def test_fails_from_the_second_time() -> None:
    write_set(0, 3, 2)
    measured = Path(os.environ["MUTANTS_MEASURED"])
    assert not measured.exists()
    measured.touch()

"""One schedule of a kind: ``run(seed, kind)`` raises ``Broken``, or a machine's error."""

from __future__ import annotations

from enum import Enum
from random import Random

from tests.histories.read_schedules.lacs import Poll, read_lac
from tests.histories.read_schedules.reads import Read
from tests.histories.read_schedules.records import Cursor, change_record
from tests.histories.read_schedules.recoveries import Recovery


class Kind(Enum):
    RECOVER = "recover"
    READ = "read"
    LAC = "lac"
    POLL = "poll"
    RECORD = "record"
    CURSOR = "cursor"


def run(seed: int, kind: Kind) -> None:
    random = Random(seed)
    match kind:
        case Kind.RECOVER:
            Recovery(random).run()
        case Kind.READ:
            Read(random).run()
        case Kind.LAC:
            read_lac(random)
        case Kind.POLL:
            Poll(random).run()
        case Kind.RECORD:
            change_record(random)
        case Kind.CURSOR:
            Cursor(random).run()

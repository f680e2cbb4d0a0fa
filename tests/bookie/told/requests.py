"""Stories of what is asked of a storage: adds, fences, LACs, syncs, reads."""

from __future__ import annotations

from bookspark.bookie.disk.index import location
from bookspark.protocol.bookie.bookie_ledger import (
    IN_LIMBO,
)
from bookspark.protocol.ledger.responses import FENCED, Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.testing.power_cuts import nothing_kept
from bookspark.wire.header import NO_KEY, Flag
from bookspark.wire.messages import Ranges
from tests.bookie.kit import KEY, OTHER_KEY
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def story_adds_and_fences_of_one_directory(telling: Telling) -> None:
    run = ToldStorage(telling, "/a")
    run.boot()
    run.state()
    run.add(5, 0)
    run.state()
    run.commit()
    run.add(5, 1, 3, last_add_confirmed=0, last_add_fully_replicated=0)
    run.add(5, 2, 5)
    run.add(6, 0)
    run.read(5, 0, 9)
    run.commit()
    run.state()
    for again in ((5, 1, 3), (5, 0), (5, 5)):
        run.add(*again)
    run.add(5, 3, payload=b"another")
    run.add(5, 9, master_key=OTHER_KEY)
    run.commit()
    run.add(7, 3, 4, flags=RECOVERY)
    run.fence(5)
    run.fence(5)
    run.fence(5, OTHER_KEY)
    run.fence(9)
    run.add(5, 6)
    run.add(5, 6, flags=RECOVERY, last_add_confirmed=5)
    run.commit()
    run.fence(5)
    run.lac(6, 3, 2)
    run.lac(6, 2)
    run.lac(6, 3)
    run.lac(6, 4, key=OTHER_KEY)
    run.lac(5, 9)
    run.lac(11, 2, 1)
    run.commit()
    run.state()
    run.add(6, 7, 9, last_add_confirmed=6)
    run.add(6, 5, 11)
    run.commit()
    run.add(6, 20)
    for first, last in ((0, 4), (0, 0), (1, 2), (5, 30), (8, 8), (12, 19), (20, 20), (21, 21)):
        run.read(6, first, last)
        run.read(6, first, last, sparse=True)
    run.read(6, 5, 11, 1)
    run.read(6, 5, 11, 700)
    run.read(6, 5, 11, cached=True)
    run.read(8, 0, 0)
    run.read(8, 0, 0, sparse=True)
    run.commit()
    run.read(6, 20, 20, cached=True)
    for ledger_id in (5, 6, 8):
        for key in (KEY, OTHER_KEY, NO_KEY):
            run.say(f"may read {ledger_id} with {key[:1]!r}", run.storage.may_read(ledger_id, key))
    run.state()
    run.close()
    run.add(6, 21)
    run.fence(6)
    run.lac(6, 30)
    run.ask("settle")
    run.ask("switch_read_only", True)
    run.close()
    run.boot()
    run.state()
    run.read(6, 0, 30, sparse=True)
    run.add(5, 7)
    run.kill()
    run.boot()
    run.add(6, 21)
    run.commit()
    run.kill(nothing_kept)
    run.boot()
    run.state()
    run.close()


def story_lists_of_what_is_held(telling: Telling) -> None:
    run = ToldStorage(telling, "/a", "/b")
    run.boot()
    for ledger_id in range(4, 9):
        run.add(ledger_id, 0, 1)
        run.add(ledger_id, 2)
        run.add(ledger_id, 5)
    run.commit()
    run.add(4, 6)
    for at, first, limit, only in (
        (99, 0, 1, True),
        (4, 5, 2, True),
        (4, 6, 1, True),
        (7, 0, 2, False),
        (0, 0, 0, False),
        (4, 2, 3, True),
        (4, 3, 2, False),
        (5, 0, 1, True),
        (9, 0, 0, False),
        (3, 0, 0, True),
    ):
        ranges, following, entry = run.storage.ranges(at, first, limit, only=only)
        run.say(f"ranges {at} {first} {limit} {only}", (list(zip(*ranges, strict=True)), following, entry))
        run.storage.when_durable(ranges, run.done("durable"))
    for ledger_id in (4, 5, 99):
        run.storage.held_ranges(ledger_id, lambda held: telling.line(f"  = held {held}"))
    run.storage.when_durable(Ranges.empty(), run.done("durable"))
    run.ask("settle")
    run.commit()
    run.say("logs", {number: (stored.path, stored.end, stored.synced) for number, stored in run.storage.logs.items()})
    run.say("directories", (run.storage.directories, [one.path for one in run.storage.live]))
    for ledger_id in (4, 99):
        run.say(f"last of {ledger_id}", run.storage.last_entry_id(ledger_id))
        run.say(f"ledger {ledger_id}", run.storage.ledger(ledger_id))
        run.say(f"absent {ledger_id}", run.storage.absent(ledger_id))
    plan = run.storage.plan_read(4, 0, 9, 0, sparse=True)
    run.say("directories of logs", [one and one.path for one in map(run.storage.holdings.directory_of, (64, 65, 66))])
    run.say("moved", [run.storage.has_moved(piece) for piece in plan.pieces])
    run.storage.garbage_collection.forget([4])
    run.storage.when_below(0, lambda: telling.line("  = relieved"))
    run.add(6, 6)
    run.storage.when_below(10, lambda: telling.line("  = relieved of 6"))
    run.add(7, 6)
    run.commit()
    run.state()
    run.close()
    run.boot("exists /b/control.log 1 io-error")
    run.state()
    run.read(4, 0, 9)
    run.read(5, 0, 9)
    run.read(99, 0, 9)
    run.close()
    run.boot("open /*/control.log 1.. io-error")
    run.asked["without"] = ["/a"]
    run.boot()
    run.state()
    run.asked["without"] = []
    run.kill()
    run.boot()
    run.state()


def story_long_polls(telling: Telling) -> None:
    run = ToldStorage(telling, "/a")
    run.boot()
    for target in (0, 1, 2, 2, 9):
        run.poll(5, target)
    run.poll(6, 0)
    removed = run.storage.long_polls.add(5, 1, lambda: telling.line("  = removed poll"))
    run.storage.long_polls.remove(5, removed)
    run.storage.long_polls.remove(5, removed)
    run.storage.long_polls.remove(77, 1)
    run.add(5, 0)
    run.add(5, 1, last_add_confirmed=0)
    run.commit()
    run.lac(5, 1)
    run.lac(5, 1)
    run.add(5, 2, 3, last_add_confirmed=2)
    run.commit()
    run.lac(6, 0)
    run.commit()
    run.lac(5, 20)
    run.commit()


def story_volatile_ledgers(telling: Telling) -> None:
    run = ToldStorage(telling, "/a", background_sync_bytes=2000, background_sync_interval_ms=50)
    run.boot()
    other = Assignment(4, 2, 0b10)

    def synced(ledger_id: int = 5) -> None:
        for assignment in (Assignment(0), other):
            run.say(f"synced {ledger_id}", run.storage.volatile.last_add_synced(ledger_id, assignment))

    run.sync(5)
    run.add(5, 0, flags=VOLATILE)
    synced()
    run.commit()
    synced()
    run.add(5, 1, 2, flags=VOLATILE)
    run.sync(5)
    synced()
    run.commit()
    synced()
    run.commit(0.06)
    run.add(5, 3, flags=VOLATILE)
    run.commit(0.06)
    synced()
    run.idle(0.06)
    run.commit()
    run.add(5, 3, flags=VOLATILE)
    run.add(5, 1, 2, flags=VOLATILE)
    run.add(5, 2, 4, flags=VOLATILE)
    run.commit()
    run.add(5, 5, 8, payload=bytes(2500), flags=VOLATILE)
    run.commit()
    synced()
    run.state()
    run.sync(5, other)
    run.commit()
    synced()
    run.add(5, 5, 8, payload=bytes(2500), flags=VOLATILE, value=4, limit=2 << 20 | 2 << 10 | 1)
    run.commit()
    synced()
    third = Assignment(5, 1, 1)
    run.add(5, 5, 8, payload=bytes(2500), flags=VOLATILE, value=5, limit=1 << 20 | 1 << 10)
    run.commit()
    run.say("synced of the third", run.storage.volatile._ledgers[5].cursor.last_add_synced_for(third))
    run.add(5, 9, flags=VOLATILE, value=4, limit=2 << 20 | 2 << 10 | 1)
    run.sync(5, key=OTHER_KEY)
    run.add(5, 10, flags=VOLATILE | RECOVERY)
    run.commit()
    run.add(6, 0, flags=VOLATILE)
    run.commit()
    run.checkpoint()
    run.checkpoint()
    run.checkpoint()
    run.say("cursors", len(run.storage.volatile))
    run.add(8, 0, flags=VOLATILE)
    run.add(9, 0, flags=VOLATILE)
    run.commit()
    run.checkpoint()
    run.sync(8)
    run.commit()
    run.checkpoint()
    run.say("cursors", len(run.storage.volatile))
    run.checkpoint()
    run.say("cursors", len(run.storage.volatile))
    volatile = run.storage.volatile
    run.say("asked", (volatile.asked(77, Assignment(0)), volatile.asked(8, other), volatile.asked(8, Assignment(0))))
    volatile.forget(77)
    volatile.forget(78)
    volatile.when_begun(79, other, lambda: telling.line("  = begun"))
    volatile.added(80, Assignment(3), 3, 4, location(1, 400))
    volatile.added(80, Assignment(3), 5, 5, location(1 << 20, 400))
    volatile.added(80, other, 5, 5, location(1, 1000))
    run.say("synced", [(one, volatile.last_add_synced(one, Assignment(3))) for one in (77, 79, 80, 81)])
    run.add(6, 1, flags=VOLATILE)
    run.fence(6)
    run.sync(6)
    run.commit()
    synced(6)
    run.state()
    run.kill()
    run.boot()
    synced()
    run.sync(5)
    run.commit()
    synced()
    run.close()


def story_unsure_fences(telling: Telling) -> None:
    answers: dict[int, object] = {}
    run = ToldStorage(telling, "/a")

    def check(ledger_id: int, key: bytes = b"") -> Positive | Unknown:
        telling.note(f"metadata of {ledger_id} asked {key[:1]!r}")
        answer = answers.get(ledger_id, Positive())
        if isinstance(answer, Exception):
            raise answer
        return answer

    run.asked |= {"check_fence": check, "check_first": check}
    run.boot()
    for ledger_id in range(4, 9):
        run.add(ledger_id, 0)
    run.commit()
    run.storage.holdings.control.lose_fences()
    run.state()
    answers |= {
        5: Unknown(UnknownReason.LIMBO),
        6: FENCED,
        7: KeyError("no answer"),
        24: IN_LIMBO,
        25: OSError("none"),
        26: FENCED,
    }
    for ledger_id in range(4, 8):
        run.sync(ledger_id)
        run.add(ledger_id, 1)
        run.add(ledger_id, 2)
        run.add(ledger_id, 3, flags=RECOVERY)
    run.commit()
    run.fence(8)
    run.add(8, 1)
    run.commit()
    for ledger_id in (4, 20, 24, 25, 26):
        run.fence(ledger_id)
        run.lac(ledger_id + 100, 3)
        run.lac(ledger_id, 3)
    run.add(30, 0)
    run.commit()
    run.state()
    run.close()
    run.boot(starts=False)
    run.add(30, 1)
    run.fence(40)
    run.state()

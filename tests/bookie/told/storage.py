"""A bookie's storage whose calls are told. ``state`` tells all that it knows, as far as it is not as it was told last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from bookspark.bookie.commit.commit_items import SealLog
from bookspark.bookie.disk.index import log_of, position_of
from bookspark.bookie.steps import Finished, Outcome, Steps, Wait, advance
from bookspark.bookie.storage import Storage
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import Flag, Status, decode
from tests.bookie.kit import KEY, add_frame, config
from tests.bookie.told.telling import Telling, ToldFiles, digest, short

ALONE = Assignment(0)


def status(value: int) -> str:
    return Status(value).name


class ToldStorage:
    """One bookie, from its first boot on. Each method is a call that is told. ``loop``: what is posted waits for ``turn``."""

    def __init__(self, telling: Telling, *directories: str, loop: Any = False, **options: Any) -> None:
        self.telling = telling
        self.loop = loop
        """True: what is posted waits for ``turn``. A loop of asyncio: it is posted there."""
        self.disk = MemoryFileSystem(*directories)
        self.settings = config(*map(Path, directories), **options)
        self.asked: dict[str, Any] = {}
        """Further arguments of ``Storage``."""
        self._state: set[str] = set()
        """What ``state`` told last."""
        self._posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    # -- life

    def boot(self, *rules: str, noted: Any = None, starts: bool = True) -> bool:
        """Open the storage, and start it; False if it does not open."""
        self.telling.line(f"boot {' '.join(rules)}".rstrip())
        self.faults = FaultyFileSystem(self.disk, *rules)
        self.files = ToldFiles(self.telling, self.faults)
        storage = Storage(self.settings, self.files, **self.asked)
        try:
            storage.open(noted or {})
        except Exception as error:
            self.telling.line(f"  = {type(error).__name__}: {error}")
            return False
        self.storage = storage
        storage.when_none_is_left(lambda why: self.telling.line(f"  = no directory is left: {why}"))
        storage.disks.read_only_changed = lambda value: self.telling.line(f"  = read only: {value}")
        storage.broken = lambda why: self.telling.line(f"  = broken: {why}")
        if starts:
            self.start()
        return True

    def start(self) -> None:
        if isinstance(self.loop, asyncio.AbstractEventLoop):
            self.storage.start(self.loop.call_soon_threadsafe, self.loop.call_soon)
        elif self.loop:
            self.storage.start(self._post, lambda function: self._post(function))
        else:
            self.storage.start(lambda function, *arguments: function(*arguments))

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        self._posted.append((function, arguments))

    def turn(self, count: int = 1) -> None:
        """Turns of the loop."""
        for _ in range(count):
            posted, self._posted = self._posted, []
            self.telling.line(f"turn ({len(posted)})")
            for function, arguments in posted:
                function(*arguments)

    def commit(self, seconds: float = 0.0) -> None:
        """The commit threads write what is queued."""
        self.telling.now += seconds
        self.telling.line(f"commit{f' after {seconds} s' if seconds else ''}")
        for directory in self.storage.holdings.directories:
            directory.commit.step()

    def idle(self, seconds: float) -> None:
        """Nothing comes for a while."""
        self.telling.now += seconds
        self.telling.line(f"idle for {seconds} s")
        for directory in self.storage.holdings.directories:
            self.telling.note(f"patience {directory.commit._writer.patience}")
            directory.commit._writer.note_idle()

    def close(self) -> None:
        self.telling.line("close")
        self.storage.close()

    def kill(self, loss: Any = None) -> None:
        """The process dies; with ``loss`` the host loses its power."""
        self.telling.line("killed" if loss is None else f"power lost: {loss.__name__}")
        if loss is not None:
            self.disk = self.disk.crashed(loss)

    def fail(self, *rules: str) -> None:
        """From now on files fail by these rules only."""
        self.telling.line(f"fail {', '.join(rules)}")
        self.faults.clear()
        for rule in rules:
            self.faults.add(rule)

    def hurt(self, path: str, byte: int, bit: int = 0) -> None:
        self.telling.line(f"flip {path} {byte}.{bit}")
        self.disk.flip(path, byte, bit, cached=False)
        self.disk.evict()

    def lose(self, path: str) -> None:
        self.telling.line(f"lose {path}")
        self.disk.lose(path)

    # -- requests

    def done(self, what: str) -> Callable[[int], None]:
        return lambda value: self.telling.line(f"  = {what}: {status(value)}")

    def add(self, ledger_id: int, first: int, last: int | None = None, **options: Any) -> None:
        what = f"add {ledger_id} {first}..{first if last is None else last}"
        words = [f"{name}={value!r}" if name != "payload" else f"{len(value)} bytes" for name, value in options.items()]
        self.telling.line(" ".join([what, *words]))
        if options.get("flags", 0) & Flag.VOLATILE:
            options = {"value": 0, "limit": 1 << 20 | 1 << 10, **options}
        frame = add_frame(ledger_id, first, last, **options)
        header, crc = decode(frame, 88)
        self.storage.add(header, EntryBatch.checked(frame, header, crc), self.done(what))

    def ask(self, name: str, *arguments: Any) -> None:
        """A request of the storage whose last argument is ``done``."""
        what = f"{name} {' '.join(map(str, arguments))}"
        self.telling.line(what)
        getattr(self.storage, name)(*arguments, self.done(what))

    def fence(self, ledger_id: int, key: bytes = KEY) -> None:
        self.ask("fence", ledger_id, key)

    def lac(self, ledger_id: int, lac: int, lafr: int = -1, key: bytes = KEY) -> None:
        what = f"explicit LAC {ledger_id} {lac} {lafr}"
        self.telling.line(what)
        self.storage.write_last_add_confirmed(ledger_id, key, lac, self.done(what), lafr)

    def sync(self, ledger_id: int, assignment: Assignment = ALONE, key: bytes = KEY) -> None:
        what = f"sync {ledger_id}"
        self.telling.line(what)
        self.storage.sync(ledger_id, key, assignment, self.done(what))

    def poll(self, ledger_id: int, target: int) -> None:
        self.telling.line(f"poll {ledger_id} {target}")
        self.storage.long_polls.add(ledger_id, target, lambda: self.telling.line(f"  = poll {ledger_id} {target}"))

    def read(
        self, ledger_id: int, first: int, last: int, limit: int = 0, *, sparse: bool = False, cached: bool = False
    ) -> None:
        """Plan, and fetch what was planned."""
        self.telling.line(
            f"read {ledger_id} {first}..{last} {limit or ''}{' sparse' * sparse}{' cached' * cached}".rstrip()
        )
        plan = self.storage.plan_read(ledger_id, first, last, limit, sparse=sparse)
        fetched = self.storage.files.fetch(plan.pieces, cached_only=cached)
        for piece in plan.pieces:
            self.telling.note(_row(*piece[1:5]))
        if fetched is not None:
            for piece, frame in zip(plan.pieces, fetched.frames, strict=False):
                found = [entry.payload for entry in EntryBatch(bytes(frame)).entries(piece.first, piece.last)]
                self.telling.note(f"{len(found)} of {digest(b''.join(found))}")
            if fetched.stop is not None:
                left = plan.pieces[len(fetched.frames) :]
                lost = self.storage.holdings.lose_unreadable(left, fetched.stop)
                self.telling.note(f"stop {fetched.stop.name} lost {lost} moved {self.storage.has_moved(left[0])}")
        else:
            self.telling.note("not cached")
        refusal = plan.refusal
        why = "" if refusal is None else f" {type(refusal).__name__} {refusal.reason.name}"
        self.telling.line(f"  = to {plan.end}{why}")

    def say(self, what: str, value: object) -> None:
        self.telling.line(f"{what}: {value}")

    # -- background work

    def steps(self, what: str, steps: Steps[Any]) -> Any:
        """Carry steps through, and tell how many turns and waits they took."""
        self.telling.line(what)
        outcome, kinds = Outcome(), []
        try:
            while not isinstance(need := advance(steps, outcome), Finished):
                outcome = Outcome()
                kinds.append("wait" if isinstance(need, Wait) else "turn" if need is None else "thread")
                if isinstance(need, Wait):
                    for directory in self.storage.holdings.directories:
                        directory.commit.step()
                elif need is not None:
                    try:
                        outcome = Outcome(need())
                    except Exception as error:
                        outcome = Outcome(error=error)
        except Exception as error:
            self.telling.line(f"  = {type(error).__name__}: {error}")
            return None
        took = ", ".join(f"{len(list(same))} {kind}" for kind, same in groupby(kinds))
        self.telling.line(f"  = steps: {took or 'none'}")
        return need.result

    def checkpoint(self) -> None:
        prepared = self.steps("checkpoint", self.storage.checkpoint())
        self.storage.write_checkpoints(prepared)
        self.commit()

    def seal(self) -> None:
        self.telling.line("seal")
        for directory in self.storage.live:
            directory.commit.submit(SealLog(directory.current, self.done(f"seal {directory.path}")))
            directory.current = None
        self.commit()

    def scrub(self, now_ms: int = 5000) -> None:
        """A whole round, and a look at the other files."""
        scrubbing = self.storage.scrubbing
        scrubbing.begin(now_ms)
        while scrubbing.under_way:
            logs, following = self.steps("scrub a group", scrubbing.group())
            for number, pieces in logs.items():
                for looked in scrubbing.look(number, pieces):
                    self.telling.note(f"log {number}: {looked.size} bytes, {looked.dead_bytes} dead")
                    self.steps(f"looked at {number}", scrubbing.looked(number, looked))
            scrubbing.end_group(following, now_ms + 1000)
            self.say("scrubbed", f"{scrubbing.progress} {scrubbing.part} {scrubbing.left_bytes} {scrubbing.dead_bytes}")
        scrubbing.save()
        self.steps("look at the other files", self.storage.kept_files.look())
        self.say("renewed", self.storage.kept_files.renewed)
        self.commit()

    # -- all that it knows

    def state(self) -> None:
        """Everything, as far as it is not as it was told last."""
        self.telling.end_section()
        whole = Telling()
        self._tell_all(whole)
        lines = whole.text().splitlines()
        self.telling.line("state")
        for line in lines:
            if line not in self._state:
                self.telling.line(line)
        self._state = set(lines)

    def _tell_all(self, whole: Telling) -> None:
        storage, tell = self.storage, whole.line
        holdings, control = storage.holdings, storage.holdings.control
        values = {**storage.status()._asdict(), "damaged": storage.damaged, "bytes in flight": storage.bytes_in_flight}
        for name, value in values.items():
            whole.note(f"{name} {value}")
        for name in (
            "mark",
            "healed",
            "collected",
            "switch",
            "fences_lost",
            "write_number",
            "ledgers_not_back",
            "suspects",
        ):
            whole.note(f"{name} {getattr(control, name)}")
        for ledger_id in sorted({*control.ledgers.ids.ascending(), *holdings.index.ids()}):
            known = _fields(control.ledgers.look(ledger_id))
            tell(f"  {ledger_id}: {known} last {storage.last_entry_id(ledger_id)} lacks {holdings.lacking(ledger_id)}")
            if (rows := holdings.index.get(ledger_id)) is not None:
                for i in range(len(rows)):
                    whole.note(_row(*rows.row(i)))
        values = {
            "limbo": control.limbo(0, 100),
            "lost copies": {ledger_id: sorted(copies) for ledger_id, copies in control.lost_copies.items()},
            "lacking": holdings.ledgers_lacking,
            "suspected": holdings.suspected,
            "gone": holdings.gone,
            "recent": list(holdings.recent),
            "volatile": len(holdings.volatile),
            "losses": storage.lossy_boots.losses,
            "unclean": storage.lossy_boots.unclean,
            "next log": holdings.next_log,
            "unreadable": list(holdings.unreadable),
            "in use": (control.ledgers.in_use_count, holdings.index._rows.in_use_count),
            "losses durable": holdings.losses_durable.is_set(),
            "due": storage.checkpoints.due,
            "garbage": dict(storage.reclaiming.garbage),
            "removed": storage.reclaiming.removed_bytes,
            "rewritten": storage.reclaiming.rewritten_bytes,
            "traffic": (storage.traffic.entries_in, storage.traffic.bytes_in, storage.traffic.fences),
        }
        whole.flush()
        for name, value in values.items():
            whole.note(f"{name} {value}")
        for directory in holdings.directories:
            facts = directory.takes.name, directory.covered(), tuple(directory.reach()), directory.bytes
            logs = [f"{one.number}:{one.synced}/{one.end}" for one in directory.stored]
            tell(f"  {directory.path} {' '.join(map(str, facts))} logs {' '.join(logs)}")
            for name in ("retired", "control_behind", "refusals", "read_errors", "damaged", "gone", "highest_log"):
                whole.note(f"{name} {getattr(directory, name)}")
            whole.note(f"parts {len(directory.parts or ())}")
            whole.note(f"sealed {[one.number for one in directory.sealed]}")
        whole.flush()
        for path, content in self.disk.files().items():
            whole.note(f"{short(path)} {len(content)} {digest(content)}")


def _row(first: int, last: int, where: int, size: int) -> str:
    return f"{first}..{last} at {log_of(where)}:{position_of(where)}+{size}"


def _fields(ledger: Any) -> str:
    if ledger is None:
        return "unknown"
    names = (
        sorted(name for name in ledger.__slots__ if name != "ledger_id")
        if hasattr(ledger, "__slots__")
        else sorted(vars(ledger))
    )
    found = []
    for name in names:
        value = getattr(ledger, name, None)
        if value not in (None, False, (), "", {}, -1):
            found.append(f"{name} {value!r}")
    return ", ".join(found)

"""A slot: a bookie with every message from and to it, the part of the world that a bookie's move changes.

Law: a change in a slot depends on the slot alone, and on the metadata if the bookie reads it. So each change is made once
and then looked up. Messages are sorted by their contents, so equal slots have the same number.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import NamedTuple

from bookspark.lab.simulation.bookie import Found, SimulatedBookie
from bookspark.lab.simulation.messages import NOBODY, Clear, Held, Message, Reachable, is_request, matters
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.values import Table, clone, freeze_fields, itself
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.bookie_healing import HeldListed, LimboIsCleared


class Slot(NamedTuple):
    """Numbers of a bookie's state and of messages."""

    bookie: int
    messages: tuple[int, ...]


SAME = -1
"""Symbolic slot for any slot, unchanged. A put, take, purge or leave on it gives another symbolic slot, which stands for
any slot with this change (``Slots.resolved``). Symbolic slots have negative numbers."""


class BookieTraits(NamedTuple):
    """Properties of a bookie's state that decide the possible moves in its slot."""

    serves: bool
    moves: tuple[str, ...]
    """Some of "boot", "sync", "ask" and "told" (``Slots.change``, ``Slots.ask``)."""
    gone: bool
    """Whether the bookie is gone for good."""
    limbo_boot: int
    collectable: bool
    """Whether the bookie has any data of the ledger to collect after its deletion."""


class MessageTraits(NamedTuple):
    request: bool
    fallible: bool
    """Whether the network may lose or duplicate it."""
    reachable: bool


_LOCAL = (Held, HeldListed, Clear, LimboIsCleared, Reachable)
_Done = tuple[tuple[str, int], ...]
_slot: Callable[[tuple[int, tuple[int, ...]]], Slot] = partial(tuple.__new__, Slot)
"""About 10,000 slots a second are made, and NamedTuple's own constructor takes twice as long."""


class Slots:
    def __init__(self, options: SimulationOptions, bookie: type[SimulatedBookie] = SimulatedBookie) -> None:
        self._options = options
        self.bookies: Table[SimulatedBookie] = Table()
        self.messages: Table[Message] = Table(_message_key)
        self.table: Table[Slot] = Table(itself)
        self.message_traits: list[MessageTraits] = []
        self._order: list[str] = []
        self._bookie_traits: list[BookieTraits] = []
        self._changes: dict[tuple[object, ...], int] = {}
        self._steps: dict[tuple[int, tuple[object, ...]], tuple[int, list[int]]] = {}
        """By the number of a bookie and its step: the bookie after it, and its answers."""
        self._symbols: dict[int, _Done] = {SAME: ()}
        self._symbol_numbers: dict[_Done, int] = {(): SAME}
        self._put: dict[tuple[int, int], int] = {}
        self._taken: dict[tuple[int, int], int] = {}
        self._purged: dict[tuple[int, int], int] = {}
        self._left: dict[tuple[int, int], int] = {}
        self.empty = self.table.number(Slot(self._numbered(bookie()), ()))

    def bookie(self, slot: int) -> SimulatedBookie:
        """The bookie's state. Callers must not change it."""
        return self.bookies[self.table[slot].bookie]

    def message(self, message: Message) -> int:
        number = self.messages.number(message)
        if number == len(self._order):
            self._order.append(repr(message))
            reachable = isinstance(message.body, Reachable)
            self.message_traits.append(MessageTraits(is_request(message.body), _fallible(message), reachable))
        return number

    def traits(self, slot: int) -> BookieTraits:
        return self._bookie_traits[self.table.values[slot][0]]

    def _numbered(self, bookie: SimulatedBookie) -> int:
        number = self.bookies.number(bookie)
        if number == len(self._bookie_traits):
            self._bookie_traits.append(_traits(bookie))
        return number

    # -- messages

    def _number(self, bookie: int, messages: list[int]) -> int:
        messages.sort(key=self._order.__getitem__)
        return self.table.number(_slot((bookie, tuple(messages))))

    def put(self, slot: int, message: int) -> int:
        key = (slot, message)
        found = self._put.get(key)
        if found is None:
            if slot < 0:
                found = self._symbol((*self._symbols[slot], ("put", message)))
            else:
                bookie, messages = self.table[slot]
                more = list(messages)
                insort(more, message, key=self._order.__getitem__)
                found = self.table.number(_slot((bookie, tuple(more))))
            self._put[key] = found
        return found

    def take(self, slot: int, message: int) -> int:
        """Remove a message: it arrived at its client, or was lost."""
        key = (slot, message)
        found = self._taken.get(key)
        if found is None:
            if slot < 0:
                found = self._symbol((*self._symbols[slot], ("take", message)))
            else:
                bookie, messages = self.table[slot]
                at = messages.index(message)
                found = self.table.number(_slot((bookie, messages[:at] + messages[at + 1 :])))
            self._taken[key] = found
        return found

    def arrive(self, slot: int, message: int) -> int:
        """Let an answer reach its client. A new connection ends the previous one."""
        left = self.take(slot, message)
        found = self.messages[message]
        return self.purge(left, found.client) if isinstance(found.body, Reachable) else left

    def purge(self, slot: int, client: int) -> int:
        """Drop the messages of a client that no longer waits, except those that still change the bookie."""
        key = (slot, client)
        found = self._purged.get(key)
        if found is None:
            if slot < 0:
                found = self._symbol((*self._symbols[slot], ("purge", client)))
            else:
                bookie, messages = self.table[slot]
                left = [kept for number in messages if (kept := self._without(number, client)) is not None]
                found = self._number(bookie, left)
            self._purged[key] = found
        return found

    def leave(self, slot: int, client: int) -> int:
        """Like ``purge``, and drop the client's answers that wait for the bookie's next sync."""
        key = (slot, client)
        found = self._left.get(key)
        if found is None:
            if slot < 0:
                found = self._symbol((*self._symbols[slot], ("leave", client)))
            else:
                bookie, messages = self.table[self.purge(slot, client)]
                if any(message.client == client for message in self.bookies[bookie].waiting):
                    copy = clone(self.bookies[bookie])
                    copy.forget(client)
                    bookie = self._numbered(copy)
                found = self._number(bookie, list(messages))
            self._left[key] = found
        return found

    def unheard(self, slot: int, answer: Message) -> int:
        """Drop an answer that waits for the bookie's next sync."""
        bookie, messages = self.table[slot]
        copy = clone(self.bookies[bookie])
        copy.waiting.remove(answer)
        return self.table.number(_slot((self._numbered(copy), messages)))

    def time_out(self, slot: int, message: int) -> int:
        """End the client's wait for a message. A request may still arrive."""
        found = self.messages[message]
        after = self.take(slot, message)
        orphan = self._without(message, found.client)
        return after if orphan is None else self.put(after, orphan)

    def _without(self, message: int, client: int) -> int | None:
        found = self.messages[message]
        if found.client != client:
            return message
        return self.message(Message(NOBODY, found.body)) if matters(found.body) else None

    def _symbol(self, done: _Done) -> int:
        number = self._symbol_numbers.setdefault(done, -1 - len(self._symbol_numbers))
        self._symbols[number] = done
        return number

    def resolved(self, symbolic: int, slot: int) -> int:
        """Apply the changes of a symbolic slot to ``slot``."""
        for what, argument in self._symbols[symbolic]:
            match what:
                case "put":
                    slot = self.put(slot, argument)
                case "take":
                    slot = self.take(slot, argument)
                case "leave":
                    slot = self.leave(slot, argument)
                case _:
                    slot = self.purge(slot, argument)
        return slot

    # -- the bookie

    def deliver(self, slot: int, message: int, *, sync_at_once: bool, kept: bool = False) -> int:
        """Let a request arrive. ``kept``: a copy stays under way, and the answer to this delivery is lost."""
        key = ("deliver", slot, message, sync_at_once, kept)
        found = self._changes.get(key)
        if found is None:
            number, messages = self.table[slot]
            left = list(messages)
            if not kept:
                left.remove(message)
            request = message if not kept else self.message(Message(NOBODY, self.messages[message].body))
            found = self._changes[key] = self._changed(
                number,
                left,
                ("deliver", request, sync_at_once),
                lambda bookie: bookie.deliver(self.messages[request], self._options, sync_at_once),
            )
        return found

    def change(self, slot: int, kind: str, *, sync_at_once: bool) -> int:
        """End phase one ("boot"), sync the disk ("sync"), deliver the metadata that was read ("told"), or remove the bookie
        for good ("depart")."""
        key = (kind, slot, sync_at_once)
        found = self._changes.get(key)
        if found is None:

            def step(bookie: SimulatedBookie) -> list[Message]:
                match kind:
                    case "boot":
                        bookie.booted(self._options)
                        return []
                    case "sync":
                        return bookie.sync()
                    case "told":
                        return bookie.metadata_told(self._options, sync_at_once)
                    case "depart":
                        bookie.depart()
                        return []
                raise AssertionError(f"no such change: {kind}")

            number, messages = self.table[slot]
            found = self._changes[key] = self._changed(number, list(messages), (kind, sync_at_once), step)
        return found

    def ask(self, slot: int, name: str, metadata: LedgerMetadata | None, version: int) -> int:
        """Read the present metadata for an add whose ledger has an unsure fence. None: the ledger is deleted. ``version``
        stands for the metadata in the lookup."""

        def step(bookie: SimulatedBookie) -> list[Message]:
            bookie.metadata_read(metadata, name)
            return []

        return self._told(slot, ("ask", name, version), step)

    def crash(self, slot: int, name: str, found: Found) -> int:
        """Crash and boot the bookie."""

        def step(bookie: SimulatedBookie) -> list[Message]:
            bookie.crash(found, name, self._options)
            return []

        return self._told(slot, ("crash", name, found), step)

    def collect(self, slot: int, ledger_ids: tuple[int, ...]) -> int:

        def step(bookie: SimulatedBookie) -> list[Message]:
            bookie.collect(self._options, ledger_ids)
            return []

        return self._told(slot, ("collect", ledger_ids), step)

    def _told(self, slot: int, what: tuple[object, ...], step: Callable[[SimulatedBookie], list[Message]]) -> int:
        key = (slot, what)
        found = self._changes.get(key)
        if found is None:
            number, messages = self.table[slot]
            found = self._changes[key] = self._changed(number, list(messages), what, step)
        return found

    def _changed(
        self,
        bookie: int,
        messages: list[int],
        what: tuple[object, ...],
        step: Callable[[SimulatedBookie], list[Message]],
    ) -> int:
        """The slot after ``step``. ``what`` identifies the step, so that it is made once for a bookie, whatever its messages."""
        key = (bookie, what)
        found = self._steps.get(key)
        if found is None:
            copy = clone(self.bookies[bookie])
            try:
                answers = step(copy)
            except Exception as error:
                copy, answers = clone(self.bookies[bookie]), []
                copy.defect = f"{type(error).__name__}: {error}"
            found = self._steps[key] = self._numbered(copy), [self.message(answer) for answer in answers]
        after, sent = found
        return self._number(after, messages + sent)


def _message_key(message: Message) -> Hashable:
    return message.client, freeze_fields(message.body)


def _traits(bookie: SimulatedBookie) -> BookieTraits:
    serves, ledger = bookie.booting is None and not bookie.gone, bookie.ledger
    limbo_boot = ledger.limbo_boot if serves and ledger is not None and ledger.limbo else 0
    return BookieTraits(serves, tuple(_own_moves(bookie)), bookie.gone, limbo_boot, serves and ledger is not None)


def _own_moves(bookie: SimulatedBookie) -> Iterator[str]:
    if bookie.booting is not None:
        yield "boot"
    if bookie.unsynced or bookie.waiting:
        yield "sync"
    if any(unsure.answer is None for unsure in bookie.unsure):
        yield "ask"
    if any(unsure.answer is not None for unsure in bookie.unsure):
        yield "told"


def _fallible(message: Message) -> bool:
    """Whether a network fault may hit it: a bookie's own healing needs no network, and an orphan has no waiting client."""
    return message.client != NOBODY and not isinstance(message.body, _LOCAL)

"""What may happen to messages between clients and bookies, as rules that a test sets and removes at any moment.

Law: a message to which no rule applies passes at once and unchanged; of those that apply the one set last decides. Messages
that a rule holds back may be overtaken by others, as if they had come by another connection. When a rule is removed, what it
still holds is sent on. A response is matched by its request: ``park(Kind.ADD, response=True)`` holds the acks of adds.

Nothing is sent here: ``wire_proxy`` hands each message to ``Rules.apply`` together with how to send it on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Self, TypeVar

from bookspark.wire.header import Flag, Header, Kind

WAIT_SECONDS = 30.0

FaultKind = TypeVar("FaultKind", bound="Fault")


class Message(NamedTuple):
    """A request or a whole response on its way. ``request`` is the header of the request, also for a response, of which
    ``header`` is the last one."""

    client: str
    bookie: str
    response: bool
    request: Header
    header: Header
    byte_length: int

    def __str__(self) -> str:
        way = f"{self.bookie} → {self.client}" if self.response else f"{self.client} → {self.bookie}"
        request = self.request
        flags = f" {Flag(request.flags)!r}" if request.flags else ""
        entries = f" entries {request.first_entry_id}..{request.last_entry_id}" if request.first_entry_id >= 0 else ""
        kind = Kind(request.kind).name if request.kind in set(Kind) else f"kind {request.kind}"
        return f"{kind}{flags} of ledger {request.ledger_id}{entries}, {way}"


class Pattern(NamedTuple):
    """Which messages a rule is about; what is None does not matter. ``bookie`` is a bookie id, ``client`` a ``client_name``."""

    kind: Kind | None = None
    bookie: str | None = None
    client: str | None = None
    response: bool = False
    ledger_id: int | None = None
    entry_id: int | None = None
    flags: Flag = Flag.NONE
    """All of these are set in the request."""
    without: Flag = Flag.NONE
    """None of these is."""
    where: Callable[[Message], bool] | None = None

    def checked(self) -> Self:
        """This pattern, unless it is one that no message can match: a test with it would inject nothing. Raises TypeError."""
        if not isinstance(self.kind, Kind | None):
            raise TypeError(f"kind is {self.kind!r}, and has to be a bookspark.testing.Kind, such as Kind.ADD")
        for name, value in (("bookie", self.bookie), ("client", self.client)):
            if not isinstance(value, str | None):
                raise TypeError(
                    f"{name} is {value!r}, and has to be its id: a bookie_id, or the client_name of a client"
                )
        return self

    def matches(self, message: Message) -> bool:
        request = message.request
        return (
            self.response == message.response
            and self.kind in (None, request.kind)
            and self.bookie in (None, message.bookie)
            and self.client in (None, message.client)
            and self.ledger_id in (None, request.ledger_id)
            and (self.entry_id is None or request.first_entry_id <= self.entry_id <= request.last_entry_id)
            and request.flags & self.flags == self.flags
            and not request.flags & self.without
            and (self.where is None or self.where(message))
        )


class Delivery(NamedTuple):
    """A message and how to send it on: ``send(delay_seconds)``, from any thread; ``abandon()`` if it never will be."""

    message: Message
    send: Callable[[float], None]
    abandon: Callable[[], None]


class Fault:
    """One rule: messages are lost. ``seen`` are those that it was applied to (``count`` at most, if that is not None). Use it
    in a with statement, or ``remove()`` it."""

    def __init__(self, pattern: Pattern, count: int | None = None) -> None:
        self.pattern = pattern.checked()
        self.seen: list[Message] = []
        self._left = count
        self._changed = threading.Condition()
        self._removed = False

    def wait(self, count: int = 1, timeout: float = WAIT_SECONDS) -> list[Message]:
        """Wait until it was applied to ``count`` messages; returns them. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.seen) >= count, timeout):
                seen = ", ".join(map(str, self.seen)) or "none"
                raise TimeoutError(f"{len(self.seen)} of {count} messages after {timeout:g} s: {seen}")
            return list(self.seen)

    def remove(self) -> None:
        """From now on messages pass."""
        with self._changed:
            self._removed = True

    @property
    def removed(self) -> bool:
        return self._removed

    def take(self, delivery: Delivery) -> bool:
        """Apply the rule to this message if it is one of those that it is about; False if not."""
        if not self.pattern.matches(delivery.message):
            return False
        with self._changed:
            if self._removed or self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            self.seen.append(delivery.message)
            self._apply(delivery)
            self._changed.notify_all()
            return True

    def _apply(self, delivery: Delivery) -> None:
        delivery.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


class Delay(Fault):
    """Messages come later by ``seconds``, or by a time drawn from 0 to ``seconds`` with a ``random``."""

    def __init__(
        self, pattern: Pattern, seconds: float, count: int | None = None, random: Random | None = None
    ) -> None:
        super().__init__(pattern, count)
        self._seconds = seconds
        self._random = random

    def _apply(self, delivery: Delivery) -> None:
        delivery.send(self._seconds if self._random is None else self._random.uniform(0.0, self._seconds))


class Duplicate(Fault):
    """Messages come twice, the second time later by ``seconds``."""

    def __init__(self, pattern: Pattern, seconds: float, count: int | None = None) -> None:
        super().__init__(pattern, count)
        self._seconds = seconds

    def _apply(self, delivery: Delivery) -> None:
        delivery.send(0.0)
        delivery.send(self._seconds)


class Park(Fault):
    """Messages wait until they are released or lost, in the order that they came in."""

    def __init__(self, pattern: Pattern, count: int | None = None) -> None:
        super().__init__(pattern, count)
        self._parked: list[Delivery] = []

    @property
    def parked(self) -> list[Message]:
        """What waits now."""
        with self._changed:
            return [delivery.message for delivery in self._parked]

    def release(self, count: int | None = None) -> None:
        """Send the first ``count`` parked messages on; without ``count`` all, and stop parking."""
        if count is None:
            self.remove()
        for delivery in self._take_out(count):
            delivery.send(0.0)

    def lose(self, count: int | None = None) -> None:
        """Lose the first ``count`` parked messages, or all of them; it goes on parking others."""
        for delivery in self._take_out(count):
            delivery.abandon()

    def remove(self) -> None:
        super().remove()
        for delivery in self._take_out(None):
            delivery.send(0.0)

    def _apply(self, delivery: Delivery) -> None:
        self._parked.append(delivery)

    def _take_out(self, count: int | None) -> list[Delivery]:
        with self._changed:
            taken = self._parked[:count]
            del self._parked[: len(taken)]
            return taken


class Rules:
    """The rules of one wire, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: tuple[Fault, ...] = ()

    def add(self, fault: FaultKind) -> FaultKind:
        """Set a rule; it comes before those that stand."""
        with self._lock:
            self._faults = (fault, *(other for other in self._faults if not other.removed))
        return fault

    def clear(self) -> None:
        """Remove every rule."""
        with self._lock:
            faults, self._faults = self._faults, ()
        for fault in faults:
            fault.remove()

    def apply(self, delivery: Delivery) -> None:
        """Do to the message what the rules say."""
        if not any(fault.take(delivery) for fault in self._faults):
            delivery.send(0.0)

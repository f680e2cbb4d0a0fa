"""Faults of messages between clients and bookies, as rules that a test sets and removes at any moment.

Law: a message without a matching rule passes at once and unchanged. Among several matching rules, the newest decides. Held
messages may be overtaken by others, as on separate connections. Removal of a rule sends its held messages on. A response is
matched by its request: ``park(Kind.ADD, response=True)`` holds the acknowledgements of adds.

``wire_proxy`` calls ``Rules.apply`` with each message and the function that sends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Self, TypeVar

from bookspark.store.wire.header import Flag, Header, Kind
from bookspark.support.arguments import BytesOrNone, WaitSeconds, checks_arguments, judged_tuple

WAIT_SECONDS = 300.0
"""Default timeout of ``Fault.wait``."""

FaultKind = TypeVar("FaultKind", bound="Fault")


class Message(NamedTuple):
    """A request, or a whole response, in transit."""

    client: str
    bookie: str
    response: bool
    request: Header
    """Header of the request, also in a response."""
    header: Header
    """Header of the message; for a response of several frames, that of the last frame."""
    byte_length: int
    """Size on the wire."""

    def __str__(self) -> str:
        way = f"{self.bookie} → {self.client}" if self.response else f"{self.client} → {self.bookie}"
        request = self.request
        flags = f" {Flag(request.flags)!r}" if request.flags else ""
        entries = f" entries {request.first_entry_id}..{request.last_entry_id}" if request.first_entry_id >= 0 else ""
        kind = Kind(request.kind).name if request.kind in set(Kind) else f"kind {request.kind}"
        return f"{kind}{flags} of ledger {request.ledger_id}{entries}, {way}"


class Pattern(NamedTuple):
    """Selection of messages for a rule. A message matches if it matches every field that is not None."""

    kind: Kind | None = None
    bookie: str | None = None
    client: str | None = None
    response: bool = False
    """True: responses. False: requests."""
    ledger_id: int | None = None
    entry_id: int | None = None
    """An entry within the request's range."""
    flags: Flag = Flag.NONE
    """Flags that must all be set in the request."""
    without: Flag = Flag.NONE
    """Flags that must all be clear in the request."""
    where: Callable[[Message], bool] | None = None
    """Any other condition, called in the wire's thread."""

    def checked(self) -> Self:
        """This pattern. Raises InvalidArgumentError if no message can match it: a test with it would inject nothing."""
        return judged_tuple("pattern", self)

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
    """A message with its two outcomes: ``send(delay_seconds)`` sends it on, ``abandon()`` gives it up. Both are callable
    from any thread."""

    message: Message
    send: Callable[[float], None]
    abandon: Callable[[], None]


@checks_arguments
class Fault:
    """A rule that loses messages; subclasses treat them in other ways.

    It applies until ``remove()`` or the end of its ``with`` statement. ``seen`` lists its messages.
    """

    def __init__(self, pattern: Pattern, count: BytesOrNone | None = None) -> None:
        """``count``: maximum number of messages; None: all. Raises InvalidArgumentError for a pattern that matches nothing."""
        self.pattern = pattern.checked()
        self.seen: list[Message] = []
        self._left = count
        self._changed = threading.Condition()
        self._removed = False

    def wait(self, count: BytesOrNone = 1, timeout: WaitSeconds = WAIT_SECONDS) -> list[Message]:
        """Wait until the rule has met ``count`` messages, and return all its messages so far. Raises TimeoutError after
        ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.seen) >= count, timeout):
                seen = ", ".join(map(str, self.seen)) or "none"
                raise TimeoutError(f"{len(self.seen)} of {count} messages after {timeout:g} s: {seen}")
            return list(self.seen)

    def remove(self) -> None:
        """Remove the rule. Later messages pass."""
        with self._changed:
            self._removed = True

    @property
    def removed(self) -> bool:
        return self._removed

    def take(self, delivery: Delivery) -> bool:
        """Apply the rule to this message. Returns False if the rule does not match or is used up."""
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


@checks_arguments
class Delay(Fault):
    """Delays messages by ``seconds`` or, with a ``random``, by a random time from 0 to ``seconds``."""

    def __init__(
        self, pattern: Pattern, seconds: WaitSeconds, count: BytesOrNone | None = None, random: Random | None = None
    ) -> None:
        super().__init__(pattern, count)
        self._seconds = seconds
        self._random = random

    def _apply(self, delivery: Delivery) -> None:
        delivery.send(self._seconds if self._random is None else self._random.uniform(0.0, self._seconds))


@checks_arguments
class Duplicate(Fault):
    """Sends messages twice, the second time ``seconds`` later."""

    def __init__(self, pattern: Pattern, seconds: WaitSeconds, count: BytesOrNone | None = None) -> None:
        super().__init__(pattern, count)
        self._seconds = seconds

    def _apply(self, delivery: Delivery) -> None:
        delivery.send(0.0)
        delivery.send(self._seconds)


@checks_arguments
class Park(Fault):
    """Holds messages, in order of arrival, until release or loss."""

    def __init__(self, pattern: Pattern, count: BytesOrNone | None = None) -> None:
        super().__init__(pattern, count)
        self._parked: list[Delivery] = []

    @property
    def parked(self) -> list[Message]:
        """The messages held now."""
        with self._changed:
            return [delivery.message for delivery in self._parked]

    def release(self, count: BytesOrNone | None = None) -> None:
        """Send on the first ``count`` parked messages. Without ``count``: send all and remove the rule."""
        if count is None:
            self.remove()
        for delivery in self._take_out(count):
            delivery.send(0.0)

    def lose(self, count: BytesOrNone | None = None) -> None:
        """Lose the first ``count`` parked messages; without ``count``, all. The rule continues to park others."""
        for delivery in self._take_out(count):
            delivery.abandon()

    def remove(self) -> None:
        """Remove the rule, and send on its parked messages."""
        super().remove()
        for delivery in self._take_out(None):
            delivery.send(0.0)

    def _apply(self, delivery: Delivery) -> None:
        self._parked.append(delivery)

    def _take_out(self, count: BytesOrNone | None) -> list[Delivery]:
        with self._changed:
            taken = self._parked[:count]
            del self._parked[: len(taken)]
            return taken


class Rules:
    """The rules of one wire. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: tuple[Fault, ...] = ()

    def add(self, fault: FaultKind) -> FaultKind:
        """Set a rule, and return it. It takes precedence over older rules."""
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
        """Apply the newest matching rule to the message; without a match, send it at once."""
        if not any(fault.take(delivery) for fault in self._faults):
            delivery.send(0.0)

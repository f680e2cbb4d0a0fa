"""Scheduling: actors are threads of which one runs at a time; at each call to the cluster the seed draws the next actor.

Law: the same seed gives the same schedule. So actors see no clock and no thread outside the schedule. A crashed actor never
continues: ``Crashed`` is raised in it at its current call, and again at each later call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

_SECONDS_MAX = 60.0
"""An actor that computes longer hangs."""
_STANDS = 30, 300, 1000
"""Steps for which a process may pause."""


class Crashed(BaseException):
    """The actor's process is gone. Neither a BookKeeperError nor an Exception, so that no code handles it."""


class HangsError(AssertionError):
    """An actor runs for ever, or waits for an event that never comes."""


class Actor:
    """A thread of the schedule."""

    def __init__(self, turns: Turns, name: str, process: object, lasts: bool, does: Callable[[], object]) -> None:
        self.name, self.process, self.lasts, self._turns, self._does = name, process, lasts, turns, does
        self.may_go_on = threading.Lock()
        self.may_go_on.acquire()
        self.ended = self.crashed = False
        self.stands_until = 0
        """The step before which its process pauses."""
        self.delay = 0
        """Turns that it lets pass before it begins."""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self.may_go_on.acquire()
        error: BaseException | None = None
        try:
            if not self.crashed:
                self._does()
        except Crashed:
            pass
        except BaseException as raised:
            error = raised
        self._turns.ends(self, error)


class Turns:
    """The actors of a schedule."""

    def __init__(self, random: Random, steps_max: int) -> None:
        self.random, self.steps_max = random, steps_max
        self._over = threading.Event()
        self._error: Exception | None = None
        self.steps = 0
        self.crash_chance = self.pause_chance = 0.0
        self.calm_from, self.calm = steps_max, lambda: None
        """The step from which no fault occurs, and the function called there."""
        self.told: list[str] = []
        """The steps so far, in order."""
        self._living: list[Actor] = []
        self._of_thread: dict[int, Actor] = {}

    def begin(
        self, name: str, does: Callable[[], object], process: object = None, *, lasts: bool = False, delay: int = 0
    ) -> Actor:
        """Begin an actor. ``process``: its actors crash together; None: its own process. ``lasts``: it never crashes.
        ``delay``: turns that it lets pass first."""
        actor = Actor(self, name, process or object(), lasts, does)
        actor.delay = delay
        self._living.append(actor)
        actor.thread.start()
        assert actor.thread.ident is not None
        self._of_thread[actor.thread.ident] = actor
        return actor

    @property
    def current(self) -> Actor | None:
        """The calling actor, or None outside of actors."""
        return self._of_thread.get(threading.get_ident())

    def step(self, what: str) -> None:
        """Called before each use of the cluster: other actors may run first. Raises Crashed."""
        actor = self.current
        if actor is None:
            # The schedule itself, before or after its actors.
            return
        if not actor.crashed and self._hand_on() is not actor:
            actor.may_go_on.acquire()
        if actor.crashed:
            raise Crashed
        self.told.append(f"{actor.name}: {what}")

    def stand_still(self, chance: float, steps: Sequence[int] = _STANDS) -> None:
        """The calling actor's process may pause for some steps at its next step."""
        actor = self.current
        if actor is not None and self.random.random() < chance:
            actor.stands_until = self.steps + self.random.choice(steps)

    def crash_current(self) -> None:
        """The calling actor's process dies. Raises Crashed."""
        actor = self.current
        assert actor is not None
        self.crash(actor)
        raise Crashed

    def crash(self, actor: Actor) -> None:
        """End the actor's process."""
        for other in self._living:
            if other.process is actor.process:
                other.crashed = True
        self.told.append(f"{actor.name} crashes")

    def ends(self, actor: Actor, error: BaseException | None) -> None:
        """The actor has ended, with an error or without; the next one goes on."""
        actor.ended = True
        self._living.remove(actor)
        # A later thread may get its identifier.
        del self._of_thread[threading.get_ident()]
        if error is None:
            self._hand_on()
            return
        self._error = AssertionError(f"{actor.name}: {error!r}")
        self._error.__cause__ = error
        self._over.set()

    def run(self) -> None:
        """Run until all actors have ended. Raises the first error of an actor, and HangsError."""
        self._over.clear()
        self._hand_on()
        seen = -1
        while not self._over.wait(_SECONDS_MAX):
            if self.steps == seen:
                raise HangsError(f"no step within {_SECONDS_MAX} s; the last one: {self.told[-1:]}")
            seen = self.steps
        if self._error is not None:
            raise self._error

    def _hand_on(self) -> Actor | None:
        """Draw the actor of the next step. Another one than the calling actor is let go on. None: there is none."""
        actor = self._draw() if self._living else None
        if actor is None:
            self._over.set()
        elif actor is not self.current:
            actor.may_go_on.release()
        return actor

    def _draw(self) -> Actor | None:
        """The actor of the next step. None: there were too many."""
        living = self._living
        while self.steps < self.steps_max:
            actor = self.random.choice([one for one in living if one.stands_until <= self.steps] or living)
            if not actor.lasts and self.random.random() < self.crash_chance:
                self.crash(actor)
            if self.random.random() < self.pause_chance:
                actor.stands_until = self.steps + self.random.choice(_STANDS)
            self.steps += 1
            if self.steps == self.calm_from:
                self.crash_chance = self.pause_chance = 0.0
                self.calm()
            if actor.crashed or not actor.delay:
                return actor
            actor.delay -= 1
        self._error = HangsError(f"{self.steps_max} steps, and these go on: {[one.name for one in living]}")
        return None

    def join(self, actor: Actor) -> None:
        """Wait for the end of an actor while others run."""
        while not actor.ended:
            self.step(f"waits for {actor.name}")

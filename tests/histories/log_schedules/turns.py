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
        self.may_go_on = threading.Semaphore(0)
        self.ended = self.crashed = False
        self.stands_until = 0
        """The step before which its process pauses."""
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self.may_go_on.acquire()
        try:
            if not self.crashed:
                self._does()
        except Crashed:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self._turns.back.release()


class Turns:
    """The actors of a schedule."""

    def __init__(self, random: Random, steps_max: int) -> None:
        self.random, self.steps_max = random, steps_max
        self.back = threading.Semaphore(0)
        self.steps = 0
        self.crash_chance = self.pause_chance = 0.0
        self.calm_from, self.calm = steps_max, lambda: None
        """The step from which no fault occurs, and the function called there."""
        self.told: list[str] = []
        """The steps so far, in order."""
        self._actors: list[Actor] = []

    def begin(self, name: str, does: Callable[[], object], process: object = None, *, lasts: bool = False) -> Actor:
        """Begin an actor. ``process``: its actors crash together; None: its own process. ``lasts``: it never crashes."""
        actor = Actor(self, name, process or object(), lasts, does)
        self._actors.append(actor)
        actor.thread.start()
        return actor

    @property
    def current(self) -> Actor | None:
        """The calling actor, or None outside of actors."""
        thread = threading.current_thread()
        return next((actor for actor in self._actors if actor.thread is thread), None)

    def step(self, what: str) -> None:
        """Called before each use of the cluster: other actors may run first. Raises Crashed."""
        actor = self.current
        if actor is None:
            # The schedule itself, before or after its actors.
            return
        if not actor.crashed:
            self.back.release()
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
        for other in self._actors:
            if other.process is actor.process:
                other.crashed = True
        self.told.append(f"{actor.name} crashes")

    def run(self) -> None:
        """Run until all actors have ended. Raises the first error of an actor, and HangsError."""
        while living := [actor for actor in self._actors if not actor.ended]:
            actor = self.random.choice([one for one in living if one.stands_until <= self.steps] or living)
            if not actor.lasts and self.random.random() < self.crash_chance:
                self.crash(actor)
            if self.random.random() < self.pause_chance:
                actor.stands_until = self.steps + self.random.choice(_STANDS)
            self.steps += 1
            if self.steps == self.calm_from:
                self.crash_chance = self.pause_chance = 0.0
                self.calm()
            if self.steps > self.steps_max:
                raise HangsError(f"{self.steps_max} steps, and these go on: {[one.name for one in living]}")
            actor.may_go_on.release()
            if not self.back.acquire(timeout=_SECONDS_MAX):
                raise HangsError(f"{actor.name} does not come back")
            if actor.error is not None:
                raise AssertionError(f"{actor.name}: {actor.error!r}") from actor.error
        self._actors = []

    def join(self, actor: Actor) -> None:
        """Wait for the end of an actor while others run."""
        while not actor.ended:
            self.step(f"waits for {actor.name}")

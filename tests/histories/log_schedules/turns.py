"""Who goes on: actors are threads of which one runs at a time, and at each call to the cluster the seed draws the next one.

Law: the same seed gives the same schedule. So nothing that an actor sees comes from a clock, or from a thread that is not an
actor. An actor that crashes never goes on: ``Crashed`` is raised in it where it is, and again at each later call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

_SECONDS_MAX = 60.0
"""An actor that computes for so long hangs."""
_STANDS = 30, 300, 1000
"""For how many steps a process stands still that does."""


class Crashed(BaseException):
    """The process of this actor is gone. No BookKeeperError, and no Exception, so that nothing handles it."""


class HangsError(AssertionError):
    """An actor goes on for ever, or waits for something that nobody does."""


class Actor:
    """One thread."""

    def __init__(self, turns: Turns, name: str, process: object, lasts: bool, does: Callable[[], object]) -> None:
        self.name, self.process, self.lasts, self._turns, self._does = name, process, lasts, turns, does
        self.may_go_on = threading.Semaphore(0)
        self.ended = self.crashed = False
        self.stands_until = 0
        """The step before which it does not go on: its process stands still."""
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
    """The actors of one schedule."""

    def __init__(self, random: Random, steps_max: int) -> None:
        self.random, self.steps_max = random, steps_max
        self.back = threading.Semaphore(0)
        self.steps = 0
        self.crash_chance = self.pause_chance = 0.0
        self.calm_from, self.calm = steps_max, lambda: None
        """From which step on nothing goes wrong any more, and what is called then."""
        self.told: list[str] = []
        """What was done, in order."""
        self._actors: list[Actor] = []

    def begin(self, name: str, does: Callable[[], object], process: object = None, *, lasts: bool = False) -> Actor:
        """A new actor. ``process``: whose actors all crash at once; None: a process of its own. ``lasts``: it never crashes."""
        actor = Actor(self, name, process or object(), lasts, does)
        self._actors.append(actor)
        actor.thread.start()
        return actor

    @property
    def current(self) -> Actor | None:
        """The actor that calls; None: it is none."""
        thread = threading.current_thread()
        return next((actor for actor in self._actors if actor.thread is thread), None)

    def step(self, what: str) -> None:
        """Called before each thing that an actor does with the cluster: others may come first. Raises Crashed."""
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
        """The process of the actor that calls may stand still for some steps, at its next one."""
        actor = self.current
        if actor is not None and self.random.random() < chance:
            actor.stands_until = self.steps + self.random.choice(steps)

    def crash_current(self) -> None:
        """The process of the actor that calls dies. Raises Crashed."""
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
        """Until all actors have ended. Raises the first error of one, and HangsError."""
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
        """Wait until an actor has ended, as one that goes on meanwhile."""
        while not actor.ended:
            self.step(f"waits for {actor.name}")

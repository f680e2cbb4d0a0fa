"""What a bookie tells who looks after its process: is it healthy, is it ready, and if not, why not.

Law: a bookie is *unhealthy* only if a new start may mend it: its loop of requests gives no answer, or a directory in use has no
commit thread. A boot is healthy, however long it takes, and so is a bookie that has lost ZooKeeper, since no start brings that
back. It is *ready* if clients find it and are served: it is registered under its present incarnation, and does not stop. A
look changes nothing, and answers within ANSWER_SECONDS_MAX.

Each page is one line. ``/health`` and ``/ready`` answer 200, or 503 with the reason; these are the forms of Kubernetes' probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from typing import NamedTuple

from bookspark.errors import MetadataStoreError
from bookspark.servers.daemon.lease_server import SERVING
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.metadata.short_waits import waits_at_most
from bookspark.support.metrics.web import Page

ANSWER_SECONDS_MAX = 4.0


class _Serving(NamedTuple):
    post: Post
    without_thread: Callable[[], Sequence[str]]
    why_not_registered: Callable[[], str]


class Probes:
    """Told by the bookie what it has; asked by anybody, in any thread. Each question returns the reason, or "" if all is well."""

    def __init__(self, phase: Callable[[], str]) -> None:
        """``phase``: that of the lease's status."""
        self._phase = phase
        self._serving: _Serving | None = None

    def serves(
        self, post: Post, without_thread: Callable[[], Sequence[str]], why_not_registered: Callable[[], str]
    ) -> None:
        """The bookie serves from now on. ``post`` has something called on the loop of requests. ``without_thread``: directories
        in use whose commit thread has ended. ``why_not_registered`` asks the metadata store; "": it is."""
        self._serving = _Serving(post, without_thread, why_not_registered)

    def why_unhealthy(self) -> str:
        """Why a new start is called for."""
        serving = self._serving
        if serving is None or self._phase() != SERVING:
            return ""
        dead = serving.without_thread()
        answer: Future[None] = Future()
        problem = ""
        try:
            serving.post(answer.set_result, None)
            answer.result(ANSWER_SECONDS_MAX)
        except NotInTimeError:
            problem = f"the loop of requests gives no answer within {ANSWER_SECONDS_MAX:g} s"
        except RuntimeError as error:
            problem = f"the loop of requests has ended: {error}"
        # A stop that began meanwhile ends both.
        if self._phase() != SERVING:
            return ""
        return f"the commit thread of {', '.join(dead)} has ended" if dead else problem

    def why_not_ready(self) -> str:
        """Why clients are not served."""
        phase = self._phase()
        if self._serving is None or phase != SERVING:
            return f"not serving: {phase}"
        try:
            with waits_at_most(ANSWER_SECONDS_MAX):
                return self._serving.why_not_registered()
        except MetadataStoreError as error:
            return f"nobody knows whether it is registered: {error}"

    def health(self) -> Page:
        """The page ``/health``."""
        return _page(self.why_unhealthy(), f"healthy: {self._phase()}")

    def ready(self) -> Page:
        """The page ``/ready``."""
        return _page(self.why_not_ready(), "ready")


def _page(problem: str, good: str) -> Page:
    return Page(503 if problem else 200, f"{problem or good}\n".encode())

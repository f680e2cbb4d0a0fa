"""State of a cluster's bookies: registrations and cookies from the metadata store, and the bookies' own answers.

Law: a look changes nothing, and a view never changes. The view has every bookie with a registration or a cookie. A bookie with a
cookie and without a registration is down. Silence is a problem with a reason, never an empty status.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError
from bookspark.store.metadata.bookie_homes import BookieHome, read_home
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.messages import BookieStatus

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

_BOOKIES_AT_ONCE = 16
_HOMES_AT_ONCE = 8
_ASKED_FOR_TIME = 3
"""Most bookies that are asked for the time, one after the other."""


@dataclass(frozen=True)
class BookieView:
    bookie_id: str
    registration: BookieRegistration | None = None
    """None: the bookie is down."""
    has_cookie: bool = True
    status: BookieStatus | None = None
    """The bookie's answer. None: not asked, down or silent."""
    problem: str = ""
    """The reason for a missing answer, as a predicate; "" if the bookie was not asked."""
    home: BookieHome | None = None
    """Last known place, read for bookies without an answer."""

    @property
    def host(self) -> str:
        """Host by the registration, else the last known host; "" if unknown."""
        registered = "" if self.registration is None else self.registration.host
        return registered or ("" if self.home is None else self.home.host)

    @property
    def rack(self) -> str:
        """As ``host``."""
        found = self.registration or self.home
        return "" if found is None else found.rack

    @property
    def labels(self) -> Mapping[str, str]:
        """As ``host``."""
        found = self.registration or self.home
        return {} if found is None else found.labels


@dataclass(frozen=True)
class ClusterView:
    bookies: Mapping[str, BookieView] = field(default_factory=dict)
    """By id, ascending."""

    def registered(self) -> dict[str, BookieRegistration]:
        return {name: one.registration for name, one in self.bookies.items() if one.registration is not None}

    def down(self) -> list[str]:
        """Bookies with a cookie and without a registration."""
        return [name for name, one in self.bookies.items() if one.registration is None]

    @cached_property
    def statuses(self) -> Mapping[str, BookieStatus]:
        """The answers."""
        return {name: one.status for name, one in self.bookies.items() if one.status is not None}

    @cached_property
    def problems(self) -> Mapping[str, str]:
        """Reasons for the missing answers of registered bookies."""
        return {name: one.problem for name, one in self.bookies.items() if one.problem}

    def home(self, bookie_id: str) -> BookieHome | None:
        """Last known place of a bookie without an answer."""
        bookie = self.bookies.get(bookie_id)
        return None if bookie is None else bookie.home


def known_bookies(store: MetadataStore) -> ClusterView:
    """Registrations and cookies; no bookie is asked. Raises MetadataStoreError."""
    registered, cookies = store.bookies(), set(store.list_cookies())
    return ClusterView(
        {name: BookieView(name, registered.get(name), name in cookies) for name in sorted({*registered, *cookies})}
    )


def answering_bookies(bookkeeper: BookKeeper) -> ClusterView:
    """Registrations, cookies, and the answers of all registered bookies, asked in parallel. Raises MetadataStoreError."""
    view = known_bookies(bookkeeper.metadata)
    asked = [one for one in view.bookies.values() if one.registration is not None]
    return _changed(view, partial(_answering, bookkeeper), asked, _BOOKIES_AT_ONCE)


def with_homes(view: ClusterView, store: MetadataStore) -> ClusterView:
    """The view with the homes of bookies without an answer. Raises MetadataStoreError."""
    absent = [one for one in view.bookies.values() if one.status is None]
    return _changed(view, lambda one: replace(one, home=read_home(store, one.bookie_id)), absent, _HOMES_AT_ONCE)


def _changed(
    view: ClusterView, change: Callable[[BookieView], BookieView], bookies: Sequence[BookieView], at_once: int
) -> ClusterView:
    if not bookies:
        return view
    with ThreadPoolExecutor(min(at_once, len(bookies)), "look") as pool:
        changed = {one.bookie_id: one for one in pool.map(change, bookies)}
    return ClusterView({**view.bookies, **changed})


def _answering(bookkeeper: BookKeeper, bookie: BookieView) -> BookieView:
    asked_ns = time.monotonic_ns()
    try:
        status = bookkeeper.bookie_status(bookie.bookie_id)
    except BookKeeperError as error:
        return replace(bookie, problem=f"does not answer ({error})")
    if status.store_ms:
        bookkeeper.metadata.clock.heard(status.store_ms, asked_ns)
    return replace(bookie, status=status)


def learn_time(bookkeeper: BookKeeper) -> int:
    """The time now, in ms since 1970, for a caller that changes nothing: by a bookie's answer, unless it is known here already.
    Raises MetadataStoreError."""
    clock = bookkeeper.metadata.clock
    if not clock.store_ms():
        registered = list(known_bookies(bookkeeper.metadata).registered())
        for bookie_id in random.sample(registered, min(_ASKED_FOR_TIME, len(registered))):
            if (found := _answering(bookkeeper, BookieView(bookie_id)).status) is not None and found.store_ms:
                break
    return clock.known_ms()

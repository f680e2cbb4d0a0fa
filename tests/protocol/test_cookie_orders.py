"""Two bookies register in every order while disks are lost, emptied and swapped: neither serves without its data.

Two hosts have two directories each, with the same names, so no path tells two disks apart. A boot may stop between any two
stamps. The metadata store compares versions, like the real stores. All data on the disks was acknowledged; a completed boot
serves and writes.

The law is judged when a bookie begins to serve: each directory that once had its data still has that data or counts as lost. No
directory has data of another bookie, of another cluster, or of a bookie that was given up. An older copy of a bookie's own
directory has the right cookie; another note (``reach``) detects it, and this model assumes that note to be correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import NamedTuple

import pytest

from bookspark.errors import InvalidCookieError
from bookspark.protocol.bookie import cookie as cookies
from bookspark.protocol.bookie.cookie import Cookie, CookieCopies, CookiePermissions, Stamps

PATHS = ("/1", "/2")
PLACES = [(host, at) for host in (0, 1) for at in (0, 1)]
PERMITTED = (CookiePermissions(), CookiePermissions(stamp_missing=True))


class Disk(NamedTuple):
    """``data``: cookie of the bookie that wrote there. ``marked``: a lossy boot is noted."""

    cookie: Cookie | None = None
    data: Cookie | None = None
    marked: bool = False


class Boot(NamedTuple):
    """A boot that passed the check: its outstanding stamps and the version of the record it read."""

    stamps: Stamps
    last: tuple[str, ...]
    """Directories to be stamped again once the store has the cookie."""
    version: int | None
    older: tuple[str, ...] = ()
    """The bookie's own directories that reach less far than before."""


class World(NamedTuple):
    hosts: tuple[tuple[Disk, Disk], tuple[Disk, Disk]] = ((Disk(), Disk()), (Disk(), Disk()))
    boots: tuple[Boot | None, Boot | None] = (None, None)
    store: tuple[tuple[Cookie, int], ...] = ()
    """Each cookie with its version, by bookie id."""
    instance: int = 0
    written: frozenset[tuple[Cookie, str]] = frozenset()
    """Cookies and directories with acknowledged data that was not given up."""
    starts: int = 0
    troubles: int = 0


class Bounds(NamedTuple):
    starts: int
    troubles: int
    name: str = ""
    """The bookie id that both hosts' configurations name."""
    divides: bool = False
    """Whether a disk may move to the other host before its bookie ever served."""


def with_disk(world: World, place: tuple[int, int], disk: Disk) -> World:
    hosts = [list(disks) for disks in world.hosts]
    hosts[place[0]][place[1]] = disk
    return world._replace(hosts=tuple(map(tuple, hosts)))


def with_boot(world: World, host: int, boot: Boot | None) -> World:
    return world._replace(boots=(boot, world.boots[1]) if host == 0 else (world.boots[0], boot))


def recorded(world: World, bookie_id: str) -> tuple[Cookie | None, int | None]:
    return next(((kept, version) for kept, version in world.store if kept.bookie_id == bookie_id), (None, None))


def write(world: World, cookie: Cookie, version: int | None) -> World | None:
    """The store with the cookie, or None if its record has another version (version None: no record)."""
    now = recorded(world, cookie.bookie_id)[1]
    if now != version:
        return None
    others = [kept for kept in world.store if kept[0].bookie_id != cookie.bookie_id]
    return world._replace(store=tuple(sorted([*others, (cookie, (now or 0) + 1)], key=str)))


def start(world: World, host: int, permitted: CookiePermissions, bounds: Bounds) -> World | None:
    """A boot up to its check, or None if the bookie stays down."""
    disks = dict(zip(PATHS, world.hosts[host], strict=True))
    named = permitted if not bounds.name else replace(permitted, named=bounds.name)
    ids = {disk.cookie.bookie_id for disk in disks.values() if disk.cookie} | {named.named} - {""}
    number = world.starts
    fresh = Cookie(f"bookie-{number}", PATHS, f"instance-{world.instance}", f"nonce-{number}")
    copies = CookieCopies(
        {path: disk.cookie for path, disk in disks.items()},
        {bookie_id: recorded(world, bookie_id)[0] for bookie_id in ids},
        [path for path, disk in disks.items() if disk.data and (disk.cookie or not disk.marked)],
    )
    after = world._replace(starts=number + 1)
    try:
        stamps = cookies.check_cookies(copies, fresh, "zk:2181", named)
    except InvalidCookieError:
        return None
    for at, path in enumerate(PATHS):
        if path in stamps.lost:
            after = with_disk(after, (host, at), disks[path]._replace(marked=True))
    me = stamps.cookie.bookie_id
    mine = {path for path, disk in disks.items() if disk.cookie and disk.cookie.bookie_id == me and disk.data is None}
    once = {path for whose, path in world.written if whose.bookie_id == me}
    older = tuple(path for path in PATHS if path in mine & once)
    last = stamps.directories if stamps.first != stamps.cookie else ()
    return with_boot(after, host, Boot(stamps, last, recorded(world, stamps.cookie.bookie_id)[1], older))


def go_on(world: World, host: int, boot: Boot) -> tuple[World, str | None]:
    """The next stamp, or the bookie serves; then with the violated law, if any."""
    stamps = boot.stamps
    if stamps.directories:
        first, *others = stamps.directories
        at = PATHS.index(first)
        stamped = with_disk(world, (host, at), world.hosts[host][at]._replace(cookie=stamps.first))
        return with_boot(stamped, host, boot._replace(stamps=replace(stamps, directories=tuple(others)))), None
    if stamps.metadata:
        done = write(world, stamps.cookie, boot.version)
        if done is None:
            return with_boot(world, host, None), None
        return with_boot(done, host, boot._replace(stamps=replace(stamps, metadata=False))), None
    if boot.last:
        first, *others = boot.last
        at = PATHS.index(first)
        stamped = with_disk(world, (host, at), world.hosts[host][at]._replace(cookie=stamps.cookie))
        return with_boot(stamped, host, boot._replace(last=tuple(others))), None
    if recorded(world, stamps.cookie.bookie_id)[0] != stamps.cookie:
        return with_boot(world, host, None), None
    wrong = judge(world, host, stamps.cookie, {*stamps.lost, *boot.older})
    for at in (0, 1):
        world = with_disk(world, (host, at), Disk(stamps.cookie, stamps.cookie))
    of_others = {one for one in world.written if one[0].bookie_id != stamps.cookie.bookie_id}
    written = frozenset(of_others | {(stamps.cookie, path) for path in PATHS})
    return with_boot(world._replace(written=written), host, None), wrong


def judge(world: World, host: int, me: Cookie, lost: Set[str]) -> str | None:
    """The violated law of a bookie that serves with these directories counted as lost, or None."""
    for path, disk in zip(PATHS, world.hosts[host], strict=True):
        if disk.data is not None and (disk.data, path) not in world.written:
            return f"{me.bookie_id} serves what was given up, or lies elsewhere"
        if disk.data is not None and disk.data.bookie_id != me.bookie_id:
            return f"{me.bookie_id} serves data of {disk.data.bookie_id}"
    for whose, path in world.written:
        disk = world.hosts[host][PATHS.index(path)]
        if whose.bookie_id == me.bookie_id and disk.data != whose and not (path in lost or disk.marked):
            return f"{me.bookie_id} serves without its data in {path}"
    return None


def is_begun(disk: Disk) -> bool:
    """Whether the disk belongs to a bookie that never served."""
    return disk.cookie is not None and disk.data is None


def troubles(world: World, divides: bool) -> Iterator[World]:
    """Mishaps of disks that no process has locked, and actions of operators."""
    free = [place for place in PLACES if world.boots[place[0]] is None]
    for number, place in enumerate(free):
        disk = world.hosts[place[0]][place[1]]
        if disk != Disk():
            yield with_disk(world, place, Disk())
        for other in free[number + 1 :]:
            exchanged = world.hosts[other[0]][other[1]]
            if divides or other[0] == place[0] or not (is_begun(disk) or is_begun(exchanged)):
                yield with_disk(with_disk(world, place, exchanged), other, disk)
    for host in (0, 1):
        if world.boots[host] is None:
            yield with_disk(with_disk(world, (host, 0), Disk()), (host, 1), Disk())
    for gone, _ in world.store:
        if not any(boot and boot.stamps.cookie.bookie_id == gone.bookie_id for boot in world.boots):
            store = tuple(kept for kept in world.store if kept[0] != gone)
            written = frozenset(one for one in world.written if one[0].bookie_id != gone.bookie_id)
            yield world._replace(store=store, written=written)
    if world.boots == (None, None):
        yield world._replace(store=(), instance=world.instance + 1, written=frozenset())


def following(world: World, bounds: Bounds) -> Iterator[tuple[World, str | None]]:
    for host in (0, 1):
        boot = world.boots[host]
        if boot is not None:
            yield go_on(world, host, boot)
            yield with_boot(world, host, None), None
        elif world.starts < bounds.starts:
            begun = (start(world, host, permitted, bounds) for permitted in PERMITTED)
            yield from ((after, None) for after in begun if after is not None)
    if world.troubles < bounds.troubles:
        for after in troubles(world, bounds.divides):
            yield after._replace(troubles=world.troubles + 1), None


def search(bounds: Bounds) -> tuple[int, str | None]:
    """The number of states, up to the first violation, and that violation."""
    seen, left = {World()}, [World()]
    for world in left:
        for after, wrong in following(world, bounds):
            if wrong is not None:
                return len(seen), wrong
            if after not in seen:
                seen.add(after)
                left.append(after)
    return len(seen), None


BOUNDS = [Bounds(3, 2), Bounds(3, 2, "bookie-x")]


@pytest.mark.parametrize("bounds", BOUNDS, ids=["ids are drawn", "both are named alike"])
def test_bookie_never_serves_without_its_data_in_any_order_of_boots(bounds: Bounds) -> None:
    states, wrong = search(bounds)
    assert wrong is None
    assert states > 1_000


def test_one_of_two_bookies_made_from_an_interrupted_first_boot_serves() -> None:
    """A first boot is interrupted, one of its disks moves to a host with equal paths, and both hosts go on. Both became one
    bookie, each with a part of its data, and nothing told them apart."""
    states, wrong = search(Bounds(4, 1, divides=True))
    assert wrong is None
    assert states > 1_000


Check = Callable[[CookieCopies, Cookie, str, CookiePermissions], Stamps]


_write = write


def no_versions(world: World, cookie: Cookie, version: int | None) -> World | None:
    return _write(world, cookie, recorded(world, cookie.bookie_id)[1])


def believes_the_directories(check: Check) -> Check:
    def wrong(copies: CookieCopies, fresh: Cookie, zookeeper: str, permitted: CookiePermissions) -> Stamps:
        found = [cookie for cookie in copies.in_directories.values() if cookie]
        told = {cookie.bookie_id: cookie for cookie in found if copies.in_metadata[cookie.bookie_id]}
        return check(replace(copies, in_metadata={**copies.in_metadata, **told}), fresh, zookeeper, permitted)

    return wrong


def any_cluster(check: Check) -> Check:
    def wrong(copies: CookieCopies, fresh: Cookie, zookeeper: str, permitted: CookiePermissions) -> Stamps:
        found = [cookie.instance_id for cookie in copies.in_directories.values() if cookie]
        here = replace(fresh, instance_id=found[0]) if found else fresh
        return check(replace(copies, with_data=()), here, zookeeper, permitted)

    return wrong


def forgets_what_is_lost(check: Check) -> Check:
    return lambda *given: replace(check(*given), lost=())


def sees_no_data(check: Check) -> Check:
    return lambda copies, *given: check(replace(copies, with_data=()), *given)


def without_nonces(check: Check) -> Check:
    def wrong(copies: CookieCopies, fresh: Cookie, zookeeper: str, permitted: CookiePermissions) -> Stamps:
        def same(cookie: Cookie | None) -> Cookie | None:
            return cookie and replace(cookie, nonce="")

        bare = replace(
            copies,
            in_directories={path: same(cookie) for path, cookie in copies.in_directories.items()},
            in_metadata={bookie_id: same(cookie) for bookie_id, cookie in copies.in_metadata.items()},
        )
        stamps = check(bare, fresh, zookeeper, permitted)
        found = next((cookie for cookie in copies.in_directories.values() if cookie), None)
        return stamps if stamps.cookie.nonce or found is None else replace(stamps, cookie=found)

    return wrong


def keeps_the_nonce(check: Check) -> Check:
    def wrong(copies: CookieCopies, fresh: Cookie, zookeeper: str, permitted: CookiePermissions) -> Stamps:
        stamps = check(copies, fresh, zookeeper, permitted)
        if stamps.old_nonce is None:
            return stamps
        return Stamps(replace(stamps.cookie, nonce=stamps.old_nonce), stamps.directories, lost=stamps.lost)

    return wrong


@pytest.mark.parametrize(
    ("fault", "bounds"),
    [
        (believes_the_directories, BOUNDS[1]),
        (any_cluster, BOUNDS[0]),
        (forgets_what_is_lost, BOUNDS[0]),
        (sees_no_data, BOUNDS[0]),
        (without_nonces, BOUNDS[1]),
        (keeps_the_nonce, BOUNDS[1]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_search_detects_a_check_that_overlooks_a_condition(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Check], Check], bounds: Bounds
) -> None:
    monkeypatch.setattr(cookies, "check_cookies", fault(cookies.check_cookies))
    assert search(bounds)[1] is not None


def test_search_detects_a_store_that_compares_no_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bookies register under one name at once: the second overwrites the record of the first, and both serve."""
    monkeypatch.setitem(globals(), "write", no_versions)
    assert search(BOUNDS[1])[1] is not None

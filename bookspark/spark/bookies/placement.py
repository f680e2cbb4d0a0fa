"""Assigns bookies to tasks and new homes to hosts, and lists missing bookies: pure functions of knowledge and views.

A *home* is the directories of a bookie on a host: ``<root>/bookie-<number>`` in each root. It belongs to the bookie whose cookie
is in it and in the metadata store, not to a task or an executor. A number is *claimed* in the metadata store before its
directories are made, so a home is in one of these states::

    claimed   a number and a host in the metadata store, nothing on a disk yet, or directories without a cookie
    known     its bookie's cookie is in the metadata store (``Known``)
    found     its directories are on a host that has a task (``Found``); a found home is known, claimed, or a stranger

Law:

1. Exactly one task keeps a found home, on its host. A bookie with directories on two hosts is served on one: the host in the
   metadata store, else the first by name.
2. A home that is known and not found is missing. It counts, it is named (``out_of_reach``), and nothing is made in its place.
3. New homes are made only by order of ``wanted``, until known, claimed, found and new homes together are ``wanted``. Their
   numbers are unused. None is made while a host has a home of another cluster, or of a bookie with other directories: then
   the metadata store or the roots are wrong.
4. An emptied home still belongs to its bookie, on the host where that served last: the bookie gets its id, and refuses to
   begin anew. Any other home without a cookie is served only on the host of its claim, or as a new home.
5. A cookie of this cluster without a record in the metadata store and without a claim is that of a decommissioned bookie: its
   home is left alone, named, and does not count. While the store's knowledge is not ``certain``, no bookie counts as such.
6. The answer does not depend on the order of the views, so all tasks of an attempt agree.

Source: docs/decisions/bookies-outlive-tasks.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Known:
    """A bookie of this service with a cookie in the metadata store."""

    bookie_id: str
    number: int
    host: str = ""
    """Host of the bookie's last service; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A number taken by a task for a home on its host."""

    number: int
    host: str


@dataclass(frozen=True, slots=True)
class Found:
    number: int
    bookie_id: str = ""
    """Bookie id in the home's cookie; empty if no directory has a readable cookie."""
    unreadable: bool = False
    """Whether all cookies of the home are unreadable. The bookie itself reports the remedy."""
    foreign: bool = False
    """Whether the cookie is another cluster's. The bookie itself reports that."""


@dataclass(frozen=True, slots=True)
class Seen:
    partition: int
    host: str
    homes: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The service's knowledge before the tasks look."""

    known: tuple[Known, ...] = ()
    claims: tuple[Claim, ...] = ()
    bookies: int = 0
    """Wanted number if new bookies may be made; 0: make none."""
    forget_begun: bool = False
    """Whether claims on hosts without a task stop counting: the user asked for new homes and knows of those hosts."""
    others: tuple[str, ...] = ()
    """Ids of bookies with a cookie in the metadata store and other directories than homes in these roots."""
    certain: bool = True
    """Whether this is all of the metadata store's knowledge; False: the store is away, and this is earlier knowledge."""


@dataclass
class Share:
    """The homes that a task keeps, by number."""

    homes: list[int] = field(default_factory=list)
    bookie_ids: dict[int, str] = field(default_factory=dict)
    """Ids of the known bookies, by the number of their home."""
    to_claim: list[int] = field(default_factory=list)
    """New homes among ``homes``: their numbers must be claimed first."""
    to_forget: list[int] = field(default_factory=list)
    """Claims to give up. No data is under them, because a cookie comes before data."""


def divide(seen: Sequence[Seen], wanted: Wanted) -> dict[int, Share]:
    tasks = sorted(seen, key=lambda task: task.partition)
    shares = {task.partition: Share() for task in tasks}
    by_host: dict[str, list[int]] = {}
    for task in tasks:
        by_host.setdefault(task.host, []).append(task.partition)
    found = _found_ids(tasks, wanted)
    claimed = {claim.number: claim.host for claim in wanted.claims}
    known_numbers = {home.number for home in wanted.known}
    begun = {(host, number) for number, host in claimed.items() if host in by_host and number not in known_numbers}
    served = _served(found, wanted)
    for host, partitions in by_host.items():
        numbers = sorted(number for place, number in served.keys() | begun if place == host)
        for place, number in enumerate(numbers):
            share = shares[partitions[place % len(partitions)]]
            share.homes.append(number)
            if bookie_id := served.get((host, number)):
                share.bookie_ids[number] = bookie_id
    used = known_numbers | set(claimed) | {number for _, number in found}
    used |= {home.number for task in tasks for home in task.homes if _is_retired(task.host, home, wanted)}
    known_ids = {home.bookie_id for home in wanted.known}
    born = known_numbers | {
        number for (host, number), name in found.items() if name not in known_ids and claimed.get(number) == host
    }
    waiting = {number: host for number, host in claimed.items() if number not in born}
    if wanted.forget_begun:
        shares[tasks[0].partition].to_forget += sorted(n for n, host in waiting.items() if host not in by_host)
        waiting = {number: host for number, host in waiting.items() if host in by_host}
    ids = known_ids | {bookie_id or str(place) for place, bookie_id in found.items()}
    strangers = any(home.foreign or home.bookie_id in wanted.others for task in tasks for home in task.homes)
    for _ in range(0 if strangers else wanted.bookies - len(ids) - len(waiting)):
        host = min(by_host, key=lambda name: (sum(len(shares[p].homes) for p in by_host[name]), by_host[name][0]))
        share = shares[min(by_host[host], key=lambda partition: (len(shares[partition].homes), partition))]
        number = next(n for n in range(len(used) + 1) if n not in used)
        used.add(number)
        share.homes.append(number)
        share.to_claim.append(number)
    return shares


def _found_ids(tasks: Sequence[Seen], wanted: Wanted) -> dict[tuple[str, int], str]:
    """The owned homes on the hosts, by host and number: bookie id, empty if the cookie is unreadable."""
    lived = {(home.host, home.number): home.bookie_id for home in wanted.known}
    found = {}
    for task in tasks:
        for home in task.homes:
            place = task.host, home.number
            if _is_retired(task.host, home, wanted):
                continue
            if bookie_id := home.bookie_id or lived.get(place, ""):
                found[place] = bookie_id
            elif home.unreadable:
                found[place] = ""
    return found


def _is_retired(host: str, home: Found, wanted: Wanted) -> bool:
    return (
        wanted.certain
        and bool(home.bookie_id)
        and not home.foreign
        and home.bookie_id not in wanted.others
        and all(home.bookie_id != known.bookie_id for known in wanted.known)
        and Claim(home.number, host) not in wanted.claims
    )


def retired(task: Seen, wanted: Wanted) -> tuple[str, ...]:
    """The decommissioned bookies with directories on the task's host."""
    return tuple(home.bookie_id for home in task.homes if _is_retired(task.host, home, wanted))


def _served(found: Mapping[tuple[str, int], str], wanted: Wanted) -> dict[tuple[str, int], str]:
    """A home for each bookie, and the homes with unreadable cookies."""
    noted = {home.bookie_id: home.host for home in wanted.known}
    served: dict[str, tuple[str, int]] = {}
    for place, bookie_id in sorted(found.items()):
        if bookie_id not in served or place[0] == noted.get(bookie_id):
            served[bookie_id or str(place)] = place
    return {place: found[place] for place in served.values()}


@dataclass(frozen=True, slots=True)
class Missing:
    name: str
    """The bookie's id, or ``home <number>`` before it has an id."""
    why: str
    host: str = ""
    """The host without an executor to look on; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.name} {self.why}"


def out_of_reach(wanted: Wanted, covered: Collection[str], hosts: Collection[str]) -> tuple[Missing, ...]:
    """The existing homes without a keeper, sorted by name.

    ``covered``: ids of bookies with a keeper; ``hosts``: the hosts with a task.
    """
    missing = []
    for home in wanted.known:
        if home.bookie_id not in covered:
            if not home.host:
                why = "is on no host that has an executor, and where it lives was never noted"
            elif home.host in hosts:
                why = f"lives on {home.host}, which has an executor, but its directories are not there"
            else:
                why = f"lives on {home.host}, where there is no executor"
            missing.append(Missing(home.bookie_id, why, "" if home.host in hosts else home.host))
    known = {home.number for home in wanted.known}
    for claim in wanted.claims:
        if claim.number not in known and claim.host not in hosts:
            why = f"was begun on {claim.host}, where there is no executor; --create makes one elsewhere"
            missing.append(Missing(f"home {claim.number}", why, claim.host))
    return tuple(sorted(missing, key=lambda one: one.name))


def too_close(hosts: Sequence[str]) -> str:
    """Warning for bookies just made on these hosts, a host for each; empty if they are on several."""
    if len(hosts) < 2 or len(set(hosts)) > 1:
        return ""
    return (
        f"warning: all {len(hosts)} bookies were made on {hosts[0]}, because all executors were there: the loss of that host "
        "would take every copy of every entry. A later start leaves bookies where they are, whatever executors it has"
    )


def tasks_wanted(homes: int, executors: int, room: int, one_for_each_bookie: bool) -> int:
    """Number of tasks of an attempt: one on each executor, to find every home; beyond that one for each home, if there is room.
    0: no room yet.

    Spark deals out the tasks of a barrier stage in rounds, one to each executor with a free slot.
    """
    return min(room, max(executors, homes if one_for_each_bookie else 0))


def worth_another_attempt(
    executors: Mapping[str, str], with_task: Collection[str], missing: Sequence[Missing], looked_at: Collection[str]
) -> frozenset[str]:
    """The executors for which the job is submitted again: bookies are missing, and these executors' hosts have no task.

    ``executors``: host by executor id; ``with_task`` and ``looked_at``: executor ids. No executor is looked at twice.
    """
    seen = {host for executor, host in executors.items() if executor in with_task}
    new = frozenset(one for one, host in executors.items() if host not in seen and one not in looked_at)
    return new if missing else frozenset()


def wasted_executors(executors: Mapping[str, str], with_task: Collection[str], wanted: int) -> tuple[str, ...]:
    """Executors beyond ``wanted`` without a task, on hosts with another executor. The newest first."""
    idle = [one for one, host in executors.items() if one not in with_task and _crowded(host, executors)]
    return tuple(sorted(idle, key=_age, reverse=True)[: max(len(executors) - wanted, 0)])


def surplus_executor(executors: Mapping[str, str]) -> str | None:
    """An executor whose host has another; the newest of those.

    A cluster manager replaces a lost executor on the remaining hosts. A host that is back gets none, because the application has
    all its requested executors.
    """
    return max((one for one, host in executors.items() if _crowded(host, executors)), key=_age, default=None)


def _crowded(host: str, executors: Mapping[str, str]) -> bool:
    return list(executors.values()).count(host) > 1


def _age(executor: str) -> tuple[int, str]:
    """Spark numbers executors in order of arrival."""
    return len(executor), executor

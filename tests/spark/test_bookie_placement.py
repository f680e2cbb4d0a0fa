"""Placement of bookies: which task serves which home, which homes are made, and which are out of reach."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.protocol.bookie.cookie import Cookie
from bookspark.servers.daemon.directories import write_cookie
from bookspark.spark.bookies.homes import find_homes, home_directories, home_number, look
from bookspark.spark.bookies.placement import (
    Claim,
    Found,
    Known,
    Missing,
    Seen,
    Share,
    Wanted,
    divide,
    out_of_reach,
    retired,
    surplus_executor,
    tasks_wanted,
    too_close,
    wasted_executors,
    worth_another_attempt,
)

THREE = (Known("bookie-a", 0, "h1"), Known("bookie-b", 1, "h1"), Known("bookie-c", 2, "h2"))


def homes(shares: dict[int, Share]) -> dict[int, list[int]]:
    return {partition: share.homes for partition, share in shares.items()}


def on(host: str, known: tuple[Known, ...] = THREE) -> tuple[Found, ...]:
    return tuple(Found(home.number, home.bookie_id) for home in known if home.host == host)


def test_first_start_makes_the_wanted_bookies_and_spreads_them_over_hosts() -> None:
    seen = [Seen(0, "h1"), Seen(1, "h1"), Seen(2, "h2")]
    shares = divide(seen, Wanted(bookies=3))
    assert homes(shares) == {0: [0], 1: [2], 2: [1]}
    assert all(share.homes == share.to_claim for share in shares.values())


def test_no_bookie_is_made_in_place_of_a_bookie_out_of_reach() -> None:
    """A restart on other hosts silently made new empty bookies under the same numbers."""
    shares = divide([Seen(0, "h1", on("h1")), Seen(1, "h3")], Wanted(THREE, bookies=3))
    assert homes(shares) == {0: [0, 1], 1: []}
    shares = divide([Seen(0, "h3"), Seen(1, "h4")], Wanted(THREE, bookies=4))
    assert homes(shares) == {0: [3], 1: []}, "one more, under a number of its own"


def test_single_task_of_a_host_serves_all_its_bookies() -> None:
    assert homes(divide([Seen(0, "h1", on("h1"))], Wanted(THREE))) == {0: [0, 1]}


def test_hosts_in_another_order_keep_their_bookies() -> None:
    one = divide([Seen(0, "h1", on("h1")), Seen(1, "h2", on("h2"))], Wanted(THREE))
    other = divide([Seen(0, "h2", on("h2")), Seen(1, "h1", on("h1"))], Wanted(THREE))
    assert (homes(one), homes(other)) == ({0: [0, 1], 1: [2]}, {0: [2], 1: [0, 1]})


def test_bookie_with_an_emptied_disk_is_started_under_its_old_id() -> None:
    emptied = (Found(0), Found(1, "bookie-b"))
    [share] = divide([Seen(0, "h1", emptied)], Wanted(THREE)).values()
    assert share.homes == [0, 1] and share.bookie_ids == {0: "bookie-a", 1: "bookie-b"}


def test_home_without_a_cookie_is_ignored_on_another_host() -> None:
    [share] = divide([Seen(0, "h9", (Found(0), Found(7)))], Wanted(THREE)).values()
    assert share.homes == []


def test_claim_is_carried_out_on_its_host_and_counts_everywhere() -> None:
    wanted = Wanted(claims=(Claim(0, "h1"), Claim(1, "h2")), bookies=3)
    shares = divide([Seen(0, "h1"), Seen(1, "h3")], wanted)
    assert homes(shares) == {0: [0], 1: [2]} and shares[1].to_claim == [2] and shares[0].to_claim == []
    shares = divide([Seen(0, "h1"), Seen(1, "h3")], replace(wanted, forget_begun=True))
    assert homes(shares) == {0: [0, 3], 1: [2]} and shares[0].to_forget == [1]


def test_decommissioned_bookie_is_reported_but_not_served() -> None:
    task = Seen(0, "h1", (Found(0, "bookie-a"), Found(5, "bookie-old")))
    assert homes(divide([task], Wanted(THREE))) == {0: [0]}
    assert retired(task, Wanted(THREE)) == ("bookie-old",)
    [share] = divide([task], Wanted(THREE, bookies=4)).values()
    assert share.homes == [0, 3], "it does not count"


def test_bookie_of_other_directories_is_not_taken_for_decommissioned() -> None:
    """A start with other names of the same directories reported its bookies as decommissioned and their directories as
    removable."""
    task, wanted = Seen(0, "h1", (Found(0, "bookie-a"),)), Wanted(bookies=3, others=("bookie-a",))
    [share] = divide([task], wanted).values()
    assert (share.homes, share.to_claim, share.bookie_ids) == ([0], [], {0: "bookie-a"}), "it says what is wrong"
    assert retired(task, wanted) == ()


def test_every_bookie_present_is_served_while_zookeeper_is_away() -> None:
    """Bookies made by the run itself were released and reported as decommissioned."""
    task, wanted = Seen(0, "h1", (Found(0, "bookie-a"), Found(1))), Wanted(certain=False)
    [share] = divide([task], wanted).values()
    assert (share.homes, share.bookie_ids, retired(task, wanted)) == ([0], {0: "bookie-a"}, ())


def test_no_bookie_is_made_beside_a_home_of_another_cluster() -> None:
    [share] = divide([Seen(0, "h1", (Found(0, "bookie-x", foreign=True),))], Wanted(bookies=3)).values()
    assert (share.homes, share.to_claim) == ([0], []), "the bookie itself says what is wrong"


def test_home_with_an_unreadable_cookie_is_served_without_a_bookie_id() -> None:
    [share] = divide([Seen(0, "h1", (Found(4, unreadable=True),))], Wanted(THREE)).values()
    assert (share.homes, share.bookie_ids) == ([4], {})


def test_bookie_on_two_hosts_is_served_on_its_recorded_host() -> None:
    shared = (Found(2, "bookie-c"),)
    assert homes(divide([Seen(0, "h1", shared), Seen(1, "h2", shared)], Wanted(THREE))) == {0: [], 1: [2]}
    assert homes(divide([Seen(0, "h5", shared), Seen(1, "h4", shared)], Wanted(THREE))) == {0: [], 1: [2]}


def test_missing_bookies_are_named_with_their_hosts() -> None:
    unnoted = Known("bookie-d", 3)
    lines = [str(one) for one in out_of_reach(Wanted((*THREE, unnoted), (Claim(4, "h7"),)), {"bookie-a"}, {"h1"})]
    assert lines == [
        "bookie-b lives on h1, which has an executor, but its directories are not there",
        "bookie-c lives on h2, where there is no executor",
        "bookie-d is on no host that has an executor, and where it lives was never noted",
        "home 4 was begun on h7, where there is no executor; --create makes one elsewhere",
    ]


def test_every_executor_gets_a_task_and_every_bookie_too_if_slots_allow() -> None:
    assert tasks_wanted(homes=3, executors=2, room=8, one_for_each_bookie=True) == 3
    assert tasks_wanted(homes=3, executors=2, room=2, one_for_each_bookie=True) == 2
    assert tasks_wanted(homes=3, executors=5, room=8, one_for_each_bookie=True) == 5
    assert tasks_wanted(homes=3, executors=2, room=8, one_for_each_bookie=False) == 2


def test_executor_without_a_task_is_tried_once_and_only_if_a_bookie_is_missing() -> None:
    missing, executors = (Missing("bookie-c", ""),), {"1": "h1", "2": "h1", "4": "h2"}
    assert worth_another_attempt(executors, {"1"}, missing, set()) == {"4"}
    assert not worth_another_attempt(executors, {"1"}, (), set())
    assert not worth_another_attempt(executors, {"1", "4"}, missing, set())
    assert not worth_another_attempt(executors, {"1"}, missing, {"4"})


def test_requested_executor_on_the_wrong_host_is_sent_back() -> None:
    executors = {"1": "h1", "2": "h2", "9": "h1", "10": "h1"}
    assert wasted_executors(executors, {"1", "2"}, wanted=2) == ("10", "9")
    assert wasted_executors(executors, {"1", "2"}, wanted=3) == ("10",)
    assert wasted_executors(executors, {"1", "2", "9", "10"}, wanted=2) == (), "they have tasks"
    assert wasted_executors({"1": "h1", "2": "h2"}, {"1"}, wanted=1) == (), "the only one of its host"


def test_newest_surplus_executor_is_replaced() -> None:
    assert surplus_executor({"2": "h1", "9": "h1", "10": "h1", "11": "h3"}) == "10"
    assert surplus_executor({"1": "h1", "2": "h2"}) is None


HOSTS = ("h1", "h2", "h3")


def check(seen: list[Seen], wanted: Wanted) -> None:
    """Check the law of placement."""
    shares = divide(seen, wanted)
    assert shares == divide(list(reversed(seen)), wanted), "tasks would disagree"
    host_of = {task.partition: task.host for task in seen}
    served = [(host_of[partition], number) for partition, share in shares.items() for number in share.homes]
    assert len(served) == len(set(served)), "looked after twice"
    ids = [name for share in shares.values() for name in share.bookie_ids.values()]
    assert len(ids) == len(set(ids)), "one bookie, two places"
    new = [number for share in shares.values() for number in share.to_claim]
    assert len(new) == len(set(new)), "two new homes under one number"
    known = {home.number for home in wanted.known}
    assert not set(new) & (known | {claim.number for claim in wanted.claims}), "a number that somebody has"
    existing = {home.bookie_id for home in wanted.known}
    begun = {claim.number for claim in wanted.claims} - known
    if new:
        assert len(new) <= wanted.bookies - len(existing)
        assert wanted.forget_begun or len(new) <= wanted.bookies - len(existing) - len(begun)
    found = {home.bookie_id for task in seen for home in task.homes if home.bookie_id in existing}
    assert found <= set(ids), "a bookie whose home is on a host with a task is looked after"
    hosts = {task.host for task in seen}
    missing = {one.name for one in out_of_reach(wanted, set(ids), hosts)}
    assert existing - set(ids) == missing & existing, "it is looked after, or it is named"


def test_placement_law_holds_in_every_cluster_of_three_bookies_and_hosts() -> None:
    for places in product(HOSTS, repeat=3):
        known = tuple(Known(f"bookie-{n}", n, host) for n, host in enumerate(places))
        for count in range(1, 4):
            for hosts in combinations(HOSTS, count):
                for tasks in product(hosts, repeat=count):
                    for moved in (False, True):
                        disks = {host: on(HOSTS[(HOSTS.index(host) + moved) % 3], known) for host in HOSTS}
                        seen = [Seen(partition, host, disks[host]) for partition, host in enumerate(tasks)]
                        for bookies in (0, 3, 5):
                            check(seen, Wanted(known, (), bookies))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Seen], Wanted]:
    hosts = draw(st.lists(st.sampled_from(HOSTS), min_size=1, max_size=6))
    numbers = st.integers(0, 5)
    ids = draw(st.lists(numbers, unique=True, max_size=5))
    known = tuple(Known(f"bookie-{n}", draw(numbers), draw(st.sampled_from(("", *HOSTS)))) for n in ids)
    names = st.sampled_from(["", *(home.bookie_id for home in known), "bookie-old"])
    found = st.builds(Found, numbers, names, st.booleans())
    disks = {
        host: tuple(draw(st.lists(found, max_size=4, unique_by=lambda home: home.number)))
        for host in sorted(set(hosts))
    }
    claims = draw(st.lists(st.builds(Claim, numbers, st.sampled_from(HOSTS)), max_size=3, unique_by=lambda c: c.number))
    wanted = Wanted(known, tuple(claims), draw(st.integers(0, 6)), draw(st.booleans()))
    return [Seen(partition, host, disks[host]) for partition, host in enumerate(hosts)], wanted


@given(clusters())
def test_placement_law_holds_in_random_clusters(cluster: tuple[list[Seen], Wanted]) -> None:
    check(*cluster)


def test_homes_are_listed_from_all_roots_with_their_owners(tmp_path: Path) -> None:
    roots = [str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "missing")]
    for path in ("one/bookie-3", "two/bookie-3", "two/bookie-11", "two/zookeeper", "one/bookie-x", "one/bookie-4"):
        (tmp_path / path).mkdir(parents=True)
    assert find_homes(roots) == (3, 4, 11)
    assert home_directories(roots[:2], 11) == [f"{roots[0]}/bookie-11", f"{roots[1]}/bookie-11"]
    write_cookie(roots[1] + "/bookie-3", Cookie("bookie-c", tuple(home_directories(roots, 3)), "here", "nonce"))
    (tmp_path / "one/bookie-4/COOKIE").write_text("damaged")
    assert look(roots, "here") == (Found(3, "bookie-c"), Found(4, unreadable=True), Found(11))
    assert look(roots, "elsewhere")[0] == Found(3, "bookie-c", foreign=True)


def test_home_number_follows_from_the_directories_of_a_cookie() -> None:
    assert home_number(("/d1/bookie-7", "/d2/bookie-7"), ["/d1", "/d2"]) == 7
    assert home_number(("/d1/bookie-7",), ["/d1", "/d2"]) == 7, "a root was added since"
    assert home_number(("/d1/bookie-7", "/d3/bookie-7"), ["/d1", "/d2"]) == 7, "a root was left out: the bookie says so"
    assert home_number(("/d3/bookie-7",), ["/d1", "/d2"]) is None
    assert home_number(("/tmp/x",), ["/d1"]) is None


@pytest.mark.parametrize(
    ("hosts", "told"), [((), False), (("h1",), False), (("h1", "h2", "h1"), False), (("h1", "h1", "h1"), True)]
)
def test_warning_is_given_if_all_bookies_were_made_on_the_same_host(hosts: tuple[str, ...], told: bool) -> None:
    assert too_close(hosts).startswith("warning: all 3 bookies were made on h1") is told
    assert bool(too_close(hosts)) is told

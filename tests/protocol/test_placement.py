"""Placement: the choice of an ensemble's bookies, and the error if there are too few."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.errors import ConfigurationError, NotEnoughBookiesError
from bookspark.protocol.ledger.placement import NOTHING, Placement, PlacementRule, Topology
from bookspark.protocol.ledger.quorum import write_sets
from bookspark.store.metadata.records.bookie_registration import BookieRegistration

SEEDS = range(50)
RANDOM = Placement(PlacementRule("random"))


def registered(*names, read_only=()):
    return Topology({name: BookieRegistration(name, "host:1", 1, read_only=name in read_only) for name in names})


def placed(**places):
    """A topology of bookies by name, each with a rack or a dict of fields."""
    return Topology(
        {
            name: BookieRegistration(name, "host:1", 1, **({"rack": place} if isinstance(place, str) else place))
            for name, place in places.items()
        }
    )


def quarantine(topology, *names):
    return Topology(
        topology.bookies, dict.fromkeys(names, "in quarantine for 7.3 s more: not reachable"), topology.free_bytes
    )


def test_topology_without_some_bookies_offers_none_of_them_and_keeps_all_else():
    topology = replace(quarantine(registered("b1", "b2", "b3", "b4"), "b2"), free_bytes={"b1": 1, "b3": 3})
    left = topology.without(["b1", "unknown"])
    assert list(left.bookies) == ["b2", "b3", "b4"] and left.quarantined and left.free_bytes["b3"] == 3
    assert topology.without([]) == topology and "b1" in topology.bookies
    for seed in SEEDS:
        assert set(RANDOM.choose_ensemble(left, 2, 2, Random(seed))) <= {"b2", "b3", "b4"}
    with pytest.raises(NotEnoughBookiesError):
        RANDOM.choose_ensemble(left, 4, 4, Random(1))


# -- random


@pytest.mark.parametrize("seed", SEEDS)
def test_an_ensemble_has_distinct_writable_bookies(seed):
    candidates = registered("b1", "b2", "b3", "b4", "b5", read_only=("b2",))
    chosen = RANDOM.choose_ensemble(candidates, 3, 3, Random(seed))
    assert len(set(chosen)) == 3
    assert "b2" not in chosen


def test_random_placement_chooses_every_bookie_equally_often():
    candidates = registered("b1", "b2", "b3", "b4")
    chosen = [name for seed in SEEDS for name in RANDOM.choose_ensemble(candidates, 2, 2, Random(seed))]
    assert all(chosen.count(name) > 10 for name in candidates.bookies)


def test_a_bookie_with_more_space_is_chosen_more_often():
    free = {"b1": 1 << 30, "b2": 9 << 30, "b3": 0}
    candidates = Topology(registered("b1", "b2", "b3", "b4").bookies, free_bytes=free)
    chosen = [RANDOM.choose_ensemble(candidates, 1, 1, Random(seed))[0] for seed in range(1000)]
    # Weights 1, 9 and 0; b4's free space is unknown and counts as their average, 3.3.
    assert [round(chosen.count(name) / 100) for name in ("b1", "b2", "b3", "b4")] == [1, 7, 0, 2]
    full = Topology(candidates.bookies, free_bytes=dict.fromkeys(candidates.bookies, 0))
    assert len(set(RANDOM.choose_ensemble(full, 4, 4, Random(0)))) == 4, (
        "what is full by its own account is asked all the same"
    )


def test_error_about_too_few_bookies_names_each_with_its_reason():
    with pytest.raises(NotEnoughBookiesError, match=r"there are 1 .*b1; b2 is read-only"):
        RANDOM.choose_ensemble(registered("b1", "b2", read_only=("b2",)), 2, 2, Random(0))
    with pytest.raises(NotEnoughBookiesError, match="none is registered"):
        RANDOM.choose_ensemble(registered(), 1, 1, Random(0))


@pytest.mark.parametrize("seed", SEEDS)
def test_replacement_is_outside_the_ensemble_and_from_quarantine_only_if_needed(seed):
    candidates = quarantine(registered("b1", "b2", "b3", "b4", "b5", "b6"), "b4", "b6")
    ensemble = ("b1", "b2", "b3")

    def choose(*replaced):
        return RANDOM.choose_replacements(candidates, ensemble, replaced, 3, Random(seed))

    assert choose("b2") == ("b5",)
    assert "b5" in choose("b1", "b2")
    assert set(choose("b1", "b2", "b3")) == {"b4", "b5", "b6"}


@pytest.mark.parametrize("seed", SEEDS)
def test_new_ledger_avoids_quarantined_bookies_if_others_suffice(seed):
    candidates = quarantine(registered("b1", "b2", "b3", "b4"), "b2")
    assert set(RANDOM.choose_ensemble(candidates, 3, 3, Random(seed))) == {"b1", "b3", "b4"}
    assert "b2" in RANDOM.choose_ensemble(candidates, 4, 4, Random(seed))


def test_error_about_a_missing_replacement_names_each_candidate():
    candidates = quarantine(registered("b1", "b2", "b3", "b4", "b5", read_only=("b4",)), "b2", "b5")
    with pytest.raises(NotEnoughBookiesError) as caught:
        RANDOM.choose_replacements(candidates, ("b1", "b2", "b3"), ["b2", "b3"], 3, Random(0))
    assert str(caught.value) == (
        "b2 (in quarantine for 7.3 s more: not reachable), b3 failed and 2 other writable bookies are needed, there are 1 "
        "(b5 (in quarantine for 7.3 s more: not reachable); b1 is in the ensemble already; b2 is in the ensemble already; "
        "b3 is in the ensemble already; b4 is read-only); start more bookies"
    )


def test_opportunistic_striping_takes_fewer_bookies_but_at_least_a_write_quorum():
    def choose(*names):
        return len(RANDOM.choose_ensemble(registered(*names), 5, 3, Random(0), size_min=3))

    assert [choose(*"abcdef"), choose(*"abcde"), choose(*"abcd"), choose(*"abc")] == [5, 5, 4, 3]
    with pytest.raises(NotEnoughBookiesError, match="an ensemble of 3 needs 3 writable bookies, there are 2"):
        choose(*"ab")


# -- rack-aware


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_are_spread_over_as_many_racks_as_possible(seed):
    policy = Placement(PlacementRule("rack_aware"))
    three = placed(a1="A", a2="A", a3="A", b1="B", c1="C")
    ensemble = policy.choose_ensemble(three, 3, 3, Random(seed))
    assert {three.bookies[b].rack for b in ensemble} == {"A", "B", "C"}
    two = placed(a1="A", a2="A", a3="A", b1="B")
    assert "b1" in policy.choose_ensemble(two, 3, 3, Random(seed))
    one = placed(a1="A", a2="A", a3="A")
    assert len(set(policy.choose_ensemble(one, 3, 3, Random(seed)))) == 3, (
        "fewer racks than copies are better than no ledger"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_each_write_set_of_a_striped_ensemble_is_spread_over_racks(seed):
    topology = placed(**{f"{rack}{n}": rack for rack, n in product("ABC", range(4))})
    ensemble = Placement(PlacementRule("rack_aware", 2)).choose_ensemble(topology, 6, 2, Random(seed))
    for places in write_sets(6, 2):
        assert len({topology.bookies[ensemble[i]].rack for i in places}) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_replacement_comes_from_a_new_rack_or_the_lost_rack(seed):
    topology = placed(a1="A", a2="A", b1="B", b2="B", c1="C")
    policy = Placement(PlacementRule("rack_aware"))
    assert policy.choose_replacements(topology, ("a1", "b1", "gone"), ["gone"], 3, Random(seed)) == ("c1",)
    assert policy.choose_replacements(topology, ("a1", "b1", "c1"), ["b1"], 3, Random(seed)) == ("b2",)


@pytest.mark.parametrize("seed", SEEDS)
def test_quarantined_bookie_is_chosen_if_its_rack_is_required(seed):
    topology = quarantine(placed(a1="A", a2="A", a3="A", b1="B"), "b1")
    assert "b1" not in Placement(PlacementRule("rack_aware")).choose_ensemble(topology, 3, 3, Random(seed))
    assert "b1" in Placement(PlacementRule("rack_aware", 2)).choose_ensemble(topology, 3, 3, Random(seed))


def test_error_about_too_few_racks_names_each_bookies_rack():
    with pytest.raises(
        NotEnoughBookiesError, match=r"there are 3 \(a1 on rack 'A', a2 on .*\), not enough on at least 2 racks"
    ):
        Placement(PlacementRule("rack_aware", 2)).choose_ensemble(placed(a1="A", a2="A", a3="A"), 2, 2, Random(0))


# -- one per host, one per executor


@pytest.mark.parametrize("seed", SEEDS)
def test_one_per_host_places_each_copy_on_another_host(seed):
    topology = placed(**{f"b{n}": {"host": f"h{n // 2}"} for n in range(8)})
    ensemble = Placement(PlacementRule("one_per_host")).choose_ensemble(topology, 4, 2, Random(seed))
    assert {topology.bookies[b].host for b in ensemble} == {"h0", "h1", "h2", "h3"}
    (new,) = Placement(PlacementRule("one_per_host")).choose_replacements(
        topology, ("b0", "b2", "b4"), ["b2"], 3, Random(seed)
    )
    assert new in ("b3", "b6", "b7")


def test_error_names_bookies_that_share_a_host():
    topology = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h2"}, b4={})
    with pytest.raises(NotEnoughBookiesError) as caught:
        Placement(PlacementRule("one_per_host")).choose_ensemble(topology, 3, 3, Random(0))
    assert "there are 2 (b1, b3; b4 does not tell its host; b2 shares host h1 with b1)" in str(caught.value)


def test_one_per_executor_places_by_that_label():
    topology = placed(
        b1={"labels": {"executor": "1"}}, b2={"labels": {"executor": "1"}}, b3={"labels": {"executor": "2"}}
    )
    assert "b3" in Placement(PlacementRule("one_per_executor")).choose_ensemble(topology, 2, 2, Random(0))
    with pytest.raises(NotEnoughBookiesError, match="b2 shares executor 1 with b1"):
        Placement(PlacementRule("one_per_executor")).choose_ensemble(topology, 3, 3, Random(0))


def test_unknown_placement_policy_is_refused():
    with pytest.raises(ConfigurationError, match="rack_aware"):
        Placement(PlacementRule("rackaware"))


# -- random topologies


@given(
    st.lists(st.tuples(st.sampled_from("ABC"), st.booleans(), st.booleans()), min_size=1, max_size=9),
    st.sampled_from(["random", "rack_aware", "one_per_host"]),
    st.integers(1, 5),
    st.data(),
)
def test_ensemble_keeps_the_policy_or_the_error_names_every_bookie(places, name, size, data):
    topology = Topology(
        {
            f"b{n}": BookieRegistration(f"b{n}", "a:1", 1, host=place, rack=place, read_only=read_only)
            for n, (place, read_only, _) in enumerate(places)
        },
        {f"b{n}": "for a while" for n, (_, _, doubtful) in enumerate(places) if doubtful},
    )
    write_quorum = data.draw(st.integers(1, size))
    writable = [b for b in topology.bookies.values() if not b.read_only]
    possible = len({b.host for b in writable}) if name == "one_per_host" else len(writable)
    if possible < size:
        with pytest.raises(NotEnoughBookiesError) as caught:
            Placement(PlacementRule(name)).choose_ensemble(topology, size, write_quorum, Random(0))
        assert all(bookie_id in str(caught.value) for bookie_id in topology.bookies)
        return
    ensemble = Placement(PlacementRule(name)).choose_ensemble(topology, size, write_quorum, Random(0))
    assert len(set(ensemble)) == size
    assert not any(topology.bookies[b].read_only for b in ensemble)
    if name == "one_per_host":
        assert len({topology.bookies[b].host for b in ensemble}) == size
    if name == "random" and sum(b.bookie_id not in topology.quarantined for b in writable) >= size:
        assert not set(ensemble) & set(topology.quarantined)


# -- misplaced bookies


def test_ensemble_that_keeps_the_policy_has_no_misplaced_bookie():
    racks = placed(b1="r1", b2="r2", b3="r1", b4="r3")
    assert Placement(PlacementRule("rack_aware", 2)).misplaced(racks, ("b1", "b2", "b3"), 3, Random(0)) == ()
    assert (
        Placement(PlacementRule("one_per_host")).misplaced(
            placed(b1={"host": "h1"}, b2={"host": "h2"}), ("b1", "b2"), 2, Random(0)
        )
        == ()
    )
    assert RANDOM.misplaced(racks, ("b1", "b3"), 2, Random(0)) == ()


def test_second_bookie_of_a_host_is_misplaced():
    hosts = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h2"}, b4={"host": "h3"})
    assert Placement(PlacementRule("one_per_host")).misplaced(hosts, ("b1", "b2", "b3"), 2, Random(0)) == ("b1",)


def test_ensemble_on_too_few_racks_has_a_misplaced_bookie():
    racks = placed(b1="r1", b2="r1", b3="r1", b4="r2")
    assert Placement(PlacementRule("rack_aware", 2)).misplaced(racks, ("b1", "b2", "b3"), 3, Random(0)) == ("b1",)


def test_no_bookie_is_misplaced_if_no_better_one_exists():
    hosts = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h1"})
    assert Placement(PlacementRule("one_per_host")).misplaced(hosts, ("b1", "b2"), 2, Random(0)) == ()
    racks = placed(b1="r1", b2="r1", b3="r1")
    assert Placement(PlacementRule("rack_aware", 2)).misplaced(racks, ("b1", "b2"), 2, Random(0)) == ()


RACKS = Placement(PlacementRule("rack_aware"))
TWO_RACKS = Placement(PlacementRule("rack_aware", 2))
THREE_RACKS = Placement(PlacementRule("rack_aware", 3))


def away(topology, **places):
    return replace(topology, away=placed(**places).bookies)


def test_unknown_place_of_a_bookie_that_is_away_leaves_the_ensemble_alone():
    hosts = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h2"}, b4={"host": "h3"})
    one_per_host = Placement(PlacementRule("one_per_host"))
    assert one_per_host.misplaced(hosts, ("b1", "b2", "away"), 2, Random(0)) == ()
    assert one_per_host.misplaced(away(hosts, gone={"host": "h2"}), ("b1", "b2", "gone"), 2, Random(0)) == ("b1",)


@pytest.mark.parametrize("seed", SEEDS)
def test_last_known_rack_of_a_bookie_that_is_away_counts(seed):
    """BookKeeper took such a bookie for one of the default rack."""
    racks = away(placed(a1="A", a2="A", a3="A", b1="B"), b2="B", a4="A")
    assert RACKS.choose_replacements(racks, ("a1", "b2"), ["b2"], 2, Random(seed)) == ("b1",)
    assert RACKS.choose_replacements(racks, ("a4", "a1"), ["a1"], 2, Random(seed)) == ("b1",)
    assert RACKS.misplaced(racks, ("a1", "b2"), 2, Random(seed)) == ()
    assert RACKS.misplaced(racks, ("a4", "a1"), 2, Random(seed)) == ("a1",), "the one that is away stays"


@pytest.mark.parametrize("seed", SEEDS)
def test_replacement_never_breaks_the_rule_more_than_before(seed):
    racks = away(placed(a1="A", a2="A", a3="A"), b1="B", a4="A")
    with pytest.raises(NotEnoughBookiesError, match="not enough on at least 2 racks"):
        TWO_RACKS.choose_replacements(racks, ("a1", "a2", "b1"), ["b1"], 3, Random(seed))
    with pytest.raises(NotEnoughBookiesError):
        TWO_RACKS.choose_replacements(racks, ("a1", "a4", "b1"), ["b1"], 3, Random(seed))
    assert TWO_RACKS.choose_replacements(racks, ("a1", "a4"), ["a4"], 2, Random(seed))[0] in ("a2", "a3"), (
        "both were on one rack before"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_ensemble_that_needs_several_moves_gets_them_together(seed):
    racks = placed(a1="A", a2="A", a3="A", a4="A", b1="B", b2="B", c1="C", c2="C")
    for placement, ensemble, write_quorum, count in (
        (THREE_RACKS, ("a1", "a2", "a3"), 3, 2),
        (TWO_RACKS, ("a1", "a2", "a3", "a4"), 2, 2),
        (RACKS, ("a1", "a2", "b1", "b2"), 2, 2),
        (RACKS, ("a1", "a2", "a3"), 3, 1),
    ):
        members = placement.misplaced(racks, ensemble, write_quorum, Random(seed))
        assert len(members) == count
        chosen = placement.choose_replacements(racks, ensemble, members, write_quorum, Random(seed))
        new = dict(zip(members, chosen, strict=True))
        after = [new.get(bookie, bookie) for bookie in ensemble]
        assert placement.lack(racks, after, write_quorum) == NOTHING


def test_all_moves_are_tried_where_the_greatest_gains_lead_to_a_dead_end():
    """Two members moved to rack A gained most, and no later move could mend the rest."""
    topology = placed(b0="C", b1="B", b2="C", b3="B", b4="C", b5="C", a0="A", a1="A", b6="B", b7="B", c0="C", c1="C")
    placement, ensemble = Placement(PlacementRule("rack_aware", 3)), ("b0", "b1", "b2", "b3", "b4", "b5")
    members = placement.misplaced(topology, ensemble, 3, Random(1))
    assert members == ("b0", "b3", "b4")
    new = dict(zip(members, placement.choose_replacements(topology, ensemble, members, 3, Random(1)), strict=True))
    assert placement.lack(topology, [new.get(bookie, bookie) for bookie in ensemble], 3) == NOTHING


@pytest.mark.parametrize("racks", ["AAABAA", "AAABAB", "AAABBB"])
def test_replacements_keep_the_rule_whatever_the_draws_are(racks):
    """The ten random orders could all end short of it."""
    topology = placed(**{f"b{number}": rack for number, rack in enumerate(racks + "AABBCC")})
    placement, ensemble = Placement(PlacementRule("rack_aware", 3)), tuple(f"b{number}" for number in range(6))
    draws = SimpleNamespace(random=lambda: 0.0)
    members = placement.misplaced(topology, ensemble, 3, draws)
    new = dict(zip(members, placement.choose_replacements(topology, ensemble, members, 3, draws), strict=True))
    assert placement.lack(topology, [new.get(bookie, bookie) for bookie in ensemble], 3) == NOTHING


@given(
    st.lists(st.sampled_from("ABC"), min_size=4, max_size=8),
    st.integers(2, 6),
    st.integers(2, 3),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_moves_end_with_as_good_an_ensemble_as_a_new_one(racks, size, write_quorum, racks_min, draws):
    """Two free bookies are on each rack."""
    size, places = min(size, len(racks)), [*racks, *"AABBCC"]
    write_quorum = min(size, write_quorum)
    topology = placed(**{f"b{number}": rack for number, rack in enumerate(places)})
    placement = Placement(PlacementRule("rack_aware", min(racks_min, write_quorum)))
    ensemble = tuple(f"b{number}" for number in range(size))
    for _ in range(10):
        members = placement.misplaced(topology, ensemble, write_quorum, draws)
        if not members:
            break
        chosen = placement.choose_replacements(topology, ensemble, members, write_quorum, draws)
        new = dict(zip(members, chosen, strict=True))
        after = tuple(new.get(bookie, bookie) for bookie in ensemble)
        assert placement.lack(topology, after, write_quorum) < placement.lack(topology, ensemble, write_quorum)
        ensemble = after
    with suppress(NotEnoughBookiesError):  # four places of a ring can't be on three racks for each three in a row
        fresh = placement.choose_ensemble(topology, size, write_quorum, draws)
        assert placement.lack(topology, ensemble, write_quorum) <= placement.lack(topology, fresh, write_quorum)


def test_ensemble_with_one_spare_bookie_is_moved_in_two_steps():
    topology = placed(a1="A", a2="A", a3="A", b1="B", b2="B")
    ensemble, steps = ("a1", "a2", "b1", "b2"), 0
    while members := RACKS.misplaced(topology, ensemble, 2, Random(steps)):
        (new,) = RACKS.choose_replacements(topology, ensemble, members, 2, Random(steps))
        ensemble = tuple(new if bookie == members[0] else bookie for bookie in ensemble)
        steps += 1
    assert steps == 2 and RACKS.lack(topology, ensemble, 2) == NOTHING

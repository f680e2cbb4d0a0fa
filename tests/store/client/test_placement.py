"""Placement: the choice of an ensemble's bookies, and the error if there are too few."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.errors import ConfigurationError, NotEnoughBookiesError
from bookspark.protocol.ledger.quorum import write_sets
from bookspark.store.client.placement.placement import Placement, Topology
from bookspark.store.metadata.records.bookie_registration import BookieRegistration

SEEDS = range(50)


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


# -- random


@pytest.mark.parametrize("seed", SEEDS)
def test_an_ensemble_has_distinct_writable_bookies(seed):
    candidates = registered("b1", "b2", "b3", "b4", "b5", read_only=("b2",))
    chosen = Placement().choose_ensemble(candidates, 3, 3, Random(seed))
    assert len(set(chosen)) == 3
    assert "b2" not in chosen


def test_random_placement_chooses_every_bookie_equally_often():
    candidates = registered("b1", "b2", "b3", "b4")
    chosen = [name for seed in SEEDS for name in Placement().choose_ensemble(candidates, 2, 2, Random(seed))]
    assert all(chosen.count(name) > 10 for name in candidates.bookies)


def test_a_bookie_with_more_space_is_chosen_more_often():
    free = {"b1": 1 << 30, "b2": 9 << 30, "b3": 0}
    candidates = Topology(registered("b1", "b2", "b3", "b4").bookies, free_bytes=free)
    chosen = [Placement().choose_ensemble(candidates, 1, 1, Random(seed))[0] for seed in range(1000)]
    # Weights 1, 9 and 0; b4's free space is unknown and counts as their average, 3.3.
    assert [round(chosen.count(name) / 100) for name in ("b1", "b2", "b3", "b4")] == [1, 7, 0, 2]
    full = Topology(candidates.bookies, free_bytes=dict.fromkeys(candidates.bookies, 0))
    assert len(set(Placement().choose_ensemble(full, 4, 4, Random(0)))) == 4, (
        "what is full by its own account is asked all the same"
    )


def test_error_about_too_few_bookies_names_each_with_its_reason():
    with pytest.raises(NotEnoughBookiesError, match=r"there are 1 .*b1; b2 is read-only"):
        Placement().choose_ensemble(registered("b1", "b2", read_only=("b2",)), 2, 2, Random(0))
    with pytest.raises(NotEnoughBookiesError, match="none is registered"):
        Placement().choose_ensemble(registered(), 1, 1, Random(0))


@pytest.mark.parametrize("seed", SEEDS)
def test_replacement_is_outside_the_ensemble_and_from_quarantine_only_if_needed(seed):
    candidates = quarantine(registered("b1", "b2", "b3", "b4", "b5", "b6"), "b4", "b6")
    ensemble = ("b1", "b2", "b3")

    def choose(*replaced):
        return Placement().choose_replacements(candidates, ensemble, replaced, 3, Random(seed))

    assert choose("b2") == ("b5",)
    assert "b5" in choose("b1", "b2")
    assert set(choose("b1", "b2", "b3")) == {"b4", "b5", "b6"}


@pytest.mark.parametrize("seed", SEEDS)
def test_new_ledger_avoids_quarantined_bookies_if_others_suffice(seed):
    candidates = quarantine(registered("b1", "b2", "b3", "b4"), "b2")
    assert set(Placement().choose_ensemble(candidates, 3, 3, Random(seed))) == {"b1", "b3", "b4"}
    assert "b2" in Placement().choose_ensemble(candidates, 4, 4, Random(seed))


def test_error_about_a_missing_replacement_names_each_candidate():
    candidates = quarantine(registered("b1", "b2", "b3", "b4", "b5", read_only=("b4",)), "b2", "b5")
    with pytest.raises(NotEnoughBookiesError) as caught:
        Placement().choose_replacements(candidates, ("b1", "b2", "b3"), ["b2", "b3"], 3, Random(0))
    assert str(caught.value) == (
        "b2 (in quarantine for 7.3 s more: not reachable), b3 failed and 2 other writable bookies are needed, there are 1 "
        "(b5 (in quarantine for 7.3 s more: not reachable); b1 is in the ensemble already; b2 is in the ensemble already; "
        "b3 is in the ensemble already; b4 is read-only); start more bookies"
    )


def test_opportunistic_striping_takes_fewer_bookies_but_at_least_a_write_quorum():
    def choose(*names):
        return len(Placement().choose_ensemble(registered(*names), 5, 3, Random(0), size_min=3))

    assert [choose(*"abcdef"), choose(*"abcde"), choose(*"abcd"), choose(*"abc")] == [5, 5, 4, 3]
    with pytest.raises(NotEnoughBookiesError, match="an ensemble of 3 needs 3 writable bookies, there are 2"):
        choose(*"ab")


# -- rack-aware


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_are_spread_over_as_many_racks_as_possible(seed):
    policy = Placement("rack_aware")
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
    ensemble = Placement("rack_aware", racks_min=2).choose_ensemble(topology, 6, 2, Random(seed))
    for places in write_sets(6, 2):
        assert len({topology.bookies[ensemble[i]].rack for i in places}) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_replacement_comes_from_a_new_rack_or_the_lost_rack(seed):
    topology = placed(a1="A", a2="A", b1="B", b2="B", c1="C")
    policy = Placement("rack_aware")
    assert policy.choose_replacements(topology, ("a1", "b1", "gone"), ["gone"], 3, Random(seed)) == ("c1",)
    assert policy.choose_replacements(topology, ("a1", "b1", "c1"), ["b1"], 3, Random(seed)) == ("b2",)


@pytest.mark.parametrize("seed", SEEDS)
def test_quarantined_bookie_is_chosen_if_its_rack_is_required(seed):
    topology = quarantine(placed(a1="A", a2="A", a3="A", b1="B"), "b1")
    assert "b1" not in Placement("rack_aware").choose_ensemble(topology, 3, 3, Random(seed))
    assert "b1" in Placement("rack_aware", racks_min=2).choose_ensemble(topology, 3, 3, Random(seed))


def test_error_about_too_few_racks_names_each_bookies_rack():
    with pytest.raises(
        NotEnoughBookiesError, match=r"there are 3 \(a1 on rack 'A', a2 on .*\), not enough on at least 2 racks"
    ):
        Placement("rack_aware", racks_min=2).choose_ensemble(placed(a1="A", a2="A", a3="A"), 2, 2, Random(0))


# -- one per host, one per executor


@pytest.mark.parametrize("seed", SEEDS)
def test_one_per_host_places_each_copy_on_another_host(seed):
    topology = placed(**{f"b{n}": {"host": f"h{n // 2}"} for n in range(8)})
    ensemble = Placement("one_per_host").choose_ensemble(topology, 4, 2, Random(seed))
    assert {topology.bookies[b].host for b in ensemble} == {"h0", "h1", "h2", "h3"}
    (new,) = Placement("one_per_host").choose_replacements(topology, ("b0", "b2", "b4"), ["b2"], 3, Random(seed))
    assert new in ("b3", "b6", "b7")


def test_error_names_bookies_that_share_a_host():
    topology = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h2"}, b4={})
    with pytest.raises(NotEnoughBookiesError) as caught:
        Placement("one_per_host").choose_ensemble(topology, 3, 3, Random(0))
    assert "there are 2 (b1, b3; b4 does not tell its host; b2 shares host h1 with b1)" in str(caught.value)


def test_one_per_executor_places_by_that_label():
    topology = placed(
        b1={"labels": {"executor": "1"}}, b2={"labels": {"executor": "1"}}, b3={"labels": {"executor": "2"}}
    )
    assert "b3" in Placement("one_per_executor").choose_ensemble(topology, 2, 2, Random(0))
    with pytest.raises(NotEnoughBookiesError, match="b2 shares executor 1 with b1"):
        Placement("one_per_executor").choose_ensemble(topology, 3, 3, Random(0))


def test_unknown_placement_policy_is_refused():
    with pytest.raises(ConfigurationError, match="rack_aware"):
        Placement("rackaware")


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
            Placement(name).choose_ensemble(topology, size, write_quorum, Random(0))
        assert all(bookie_id in str(caught.value) for bookie_id in topology.bookies)
        return
    ensemble = Placement(name).choose_ensemble(topology, size, write_quorum, Random(0))
    assert len(set(ensemble)) == size
    assert not any(topology.bookies[b].read_only for b in ensemble)
    if name == "one_per_host":
        assert len({topology.bookies[b].host for b in ensemble}) == size
    if name == "random" and sum(b.bookie_id not in topology.quarantined for b in writable) >= size:
        assert not set(ensemble) & set(topology.quarantined)


# -- misplaced bookies


def test_ensemble_that_keeps_the_policy_has_no_misplaced_bookie():
    racks = placed(b1="r1", b2="r2", b3="r1", b4="r3")
    assert Placement("rack_aware", racks_min=2).misplaced(racks, ("b1", "b2", "b3"), 3, Random(0)) == ()
    assert (
        Placement("one_per_host").misplaced(placed(b1={"host": "h1"}, b2={"host": "h2"}), ("b1", "b2"), 2, Random(0))
        == ()
    )
    assert Placement().misplaced(racks, ("b1", "b3"), 2, Random(0)) == ()


def test_second_bookie_of_a_host_is_misplaced():
    hosts = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h2"}, b4={"host": "h3"})
    assert Placement("one_per_host").misplaced(hosts, ("b1", "b2", "b3"), 2, Random(0)) == ("b2",)


def test_ensemble_on_too_few_racks_has_a_misplaced_bookie():
    racks = placed(b1="r1", b2="r1", b3="r1", b4="r2")
    assert Placement("rack_aware", racks_min=2).misplaced(racks, ("b1", "b2", "b3"), 3, Random(0)) == ("b1",)


def test_no_bookie_is_misplaced_if_no_better_one_exists():
    hosts = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h1"})
    assert Placement("one_per_host").misplaced(hosts, ("b1", "b2"), 2, Random(0)) == ()
    racks = placed(b1="r1", b2="r1", b3="r1")
    assert Placement("rack_aware", racks_min=2).misplaced(racks, ("b1", "b2"), 2, Random(0)) == ()


def test_ensemble_with_an_unregistered_bookie_has_no_misplaced_bookie():
    hosts = placed(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h2"}, b4={"host": "h3"})
    assert Placement("one_per_host").misplaced(hosts, ("b1", "b2", "away"), 2, Random(0)) == ()

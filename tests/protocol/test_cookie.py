"""The cookie check at boot: first boots, interrupted first boots, and every wrong combination of cookies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import InvalidCookieError
from bookspark.protocol.bookie.cookie import Cookie, CookieCopies, CookiePermissions, Stamps, check_cookies, with_nonce

ONE, TWO = "/disk1/bookie-0", "/disk2/bookie-0"
MINE = Cookie("bookie-aa", (ONE, TWO), "instance-1", "nonce-1")
FRESH = Cookie("bookie-ff", (ONE, TWO), "instance-1", "nonce-9")


def check(
    one: Cookie | None, two: Cookie | None, metadata: Cookie | None, data: tuple[str, ...] = (), fresh: Cookie = FRESH
) -> Stamps:
    ids = {cookie.bookie_id for cookie in (one, two) if cookie}
    copies = CookieCopies({ONE: one, TWO: two}, dict.fromkeys(ids, metadata), data)
    return check_cookies(copies, fresh, "zk:2181")


def test_first_boot_stamps_the_directories_then_the_metadata_store() -> None:
    assert check(None, None, None) == Stamps(FRESH, (ONE, TWO), metadata=True)


def test_boot_with_equal_copies_stamps_nothing() -> None:
    assert check(MINE, MINE, MINE, data=(ONE, TWO)) == Stamps(MINE)


def test_bookie_boots_after_a_crash_at_any_stamp_of_its_first_boot() -> None:
    again = replace(MINE, nonce=FRESH.nonce)
    for one, two in ((MINE, None), (None, MINE), (MINE, MINE), (again, MINE)):
        assert check(one, two, None) == Stamps(again, (ONE, TWO), metadata=True)
    assert check(again, again, again) == Stamps(again)


def test_twin_of_a_bookie_whose_first_boot_was_interrupted_stays_down() -> None:
    """One of its disks was moved to a host with equal paths before the bookie was known to the metadata store."""
    done = check(MINE, None, None).cookie
    twin = check(None, MINE, None, fresh=replace(FRESH, nonce="nonce-10")).cookie
    for two in (MINE, twin):
        with pytest.raises(InvalidCookieError, match="differ"):
            check(twin, two, done)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (lambda: check(None, None, None, data=(TWO,)), [TWO, "not empty", "another directory"]),
        (
            lambda: check(MINE, replace(MINE, bookie_id="bookie-bb"), MINE),
            ["different bookies", "bookie-aa", "bookie-bb"],
        ),
        (
            lambda: check(MINE, MINE, MINE, fresh=replace(FRESH, instance_id="instance-2")),
            ["another cluster", "expected instance instance-2", "found instance-1"],
        ),
        (
            lambda: check(MINE, MINE, MINE, fresh=replace(FRESH, directories=(TWO, ONE))),
            ["the order counts", f"bookspark cookie update --zookeeper zk:2181 {TWO} {ONE}"],
        ),
        (
            lambda: check(replace(MINE, directories=(ONE,)), None, MINE),
            [f"expected directories {ONE},", "add_empty_directories"],
        ),
        (lambda: check(MINE, MINE, None, data=(ONE,)), ["metadata store has no cookie", "cookie create"]),
        (lambda: check(MINE, None, None, data=(TWO,)), ["metadata store has no cookie", "cookie create"]),
        (lambda: check(MINE, MINE, replace(MINE, nonce="nonce-2")), ["expected", "nonce-2", "found", "nonce-1"]),
        (lambda: check(MINE, None, MINE, data=(ONE,)), [f"directory {TWO}", "missing or was emptied", "cookie fix"]),
        (lambda: check(MINE, None, MINE, data=(TWO,)), [f"directory {TWO}", "found none, but other files, its disk"]),
        (lambda: check(None, MINE, MINE), [f"directory {ONE}", "found none; its disk is missing or was emptied"]),
    ],
)
def test_any_other_combination_keeps_the_bookie_down_with_advice(case, says: list[str]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidCookieError) as caught:
        case()
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("one", "two", "moved"), [(MINE, MINE, True), (MINE, None, False), (replace(MINE, directories=(ONE,)), None, False)]
)
def test_error_suggests_moved_directories_only_if_each_has_its_cookie(
    one: Cookie, two: Cookie | None, moved: bool
) -> None:
    with pytest.raises(InvalidCookieError) as caught:
        check(one, two, MINE, fresh=replace(FRESH, directories=(TWO, ONE)))
    assert ("if they were moved" in str(caught.value)) is moved


# -- permissions of the operator

THREE = "/disk3/bookie-0"
STAMP = CookiePermissions(stamp_missing=True)
NAMED = CookiePermissions(named="bookie-aa", stamp_missing=True)
ADD = CookiePermissions(add_empty=True)
GROWN = replace(MINE, directories=(ONE, TWO, THREE))


def permit(
    permitted: CookiePermissions,
    found: dict[str, Cookie | None],
    metadata: Cookie | None,
    data: tuple[str, ...] = (),
    configured: tuple[str, ...] = (ONE, TWO),
) -> Stamps:
    ids = {cookie.bookie_id for cookie in found.values() if cookie} | {permitted.named}
    copies = CookieCopies(found, dict.fromkeys(ids, metadata), data)
    return check_cookies(copies, replace(FRESH, directories=configured), "zk:2181", permitted)


def test_emptied_directory_is_stamped_again_and_counted_as_lost() -> None:
    stamps = permit(STAMP, {ONE: MINE, TWO: None}, MINE, data=(ONE,))
    assert stamps == with_nonce(MINE, FRESH.nonce, (ONE, TWO), lost=(TWO,))
    assert stamps.first == replace(MINE, next_nonce=FRESH.nonce)


def test_named_bookie_boots_after_losing_every_cookie() -> None:
    stamps = permit(NAMED, {ONE: None, TWO: None}, MINE)
    assert stamps == with_nonce(MINE, FRESH.nonce, (ONE, TWO), lost=(ONE, TWO))


def test_new_nonce_counts_once_the_metadata_store_has_it() -> None:
    begun, done = replace(MINE, next_nonce="nonce-2"), replace(MINE, nonce="nonce-2")
    none = CookiePermissions()
    for one, two in ((begun, begun), (done, begun), (begun, done)):
        assert permit(none, {ONE: one, TWO: two}, done, data=(ONE, TWO)) == Stamps(done, (ONE, TWO), metadata=True)
    for one, two in ((MINE, begun), (begun, begun)):
        assert permit(none, {ONE: one, TWO: two}, MINE, data=(ONE, TWO)) == with_nonce(MINE, FRESH.nonce, (ONE, TWO))
    with pytest.raises(InvalidCookieError, match="other directories have become the bookie"):
        permit(none, {ONE: begun, TWO: begun}, replace(MINE, nonce="nonce-3"), data=(ONE, TWO))


def test_nonce_stays_while_a_directory_cannot_be_read() -> None:
    """It could not follow, and would no longer fit when it can be read again."""
    stamps = permit(STAMP, {TWO: GROWN, THREE: None}, GROWN, data=(TWO,), configured=(ONE, TWO, THREE))
    assert stamps.cookie.nonce == MINE.nonce


def test_named_bookie_has_its_first_boot_under_that_name() -> None:
    named = CookiePermissions(named="bookie-aa")
    assert permit(named, {ONE: None, TWO: None}, None) == Stamps(
        replace(FRESH, bookie_id="bookie-aa"), (ONE, TWO), metadata=True
    )


def test_empty_directories_are_added_only_behind_the_others() -> None:
    found = {ONE: MINE, TWO: MINE, THREE: None}
    assert permit(ADD, found, MINE, data=(ONE,), configured=(ONE, TWO, THREE)) == Stamps(
        GROWN, (ONE, TWO, THREE), metadata=True
    )
    with pytest.raises(InvalidCookieError, match="name them behind the others and set add_empty_directories"):
        permit(ADD, found, MINE, configured=(THREE, ONE, TWO))


@pytest.mark.parametrize(
    ("stamped", "metadata"), [((ONE,), MINE), ((ONE, TWO), MINE), ((THREE,), MINE), ((ONE, TWO, THREE), MINE)]
)
def test_interrupted_adding_of_a_directory_is_completed(stamped: tuple[str, ...], metadata: Cookie) -> None:
    found: dict[str, Cookie | None] = {ONE: MINE, TWO: MINE, THREE: None}
    found |= dict.fromkeys(stamped, GROWN)
    stamps = permit(ADD, found, metadata, data=(ONE, TWO), configured=(ONE, TWO, THREE))
    assert (stamps.cookie, stamps.metadata, stamps.lost) == (GROWN, True, ())
    assert set(stamps.directories) | set(stamped) == {ONE, TWO, THREE}


def test_unreadable_directory_is_neither_stamped_nor_lost() -> None:
    assert permit(CookiePermissions(), {ONE: MINE}, MINE, data=(ONE,)) == Stamps(MINE)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (lambda: permit(STAMP, {ONE: MINE, TWO: None}, MINE, data=(ONE, TWO)), ["other files", TWO]),
        (
            lambda: permit(CookiePermissions(named="bookie-aa"), {ONE: None, TWO: None}, MINE),
            ["expected bookie-aa", f"cookie fix --zookeeper zk:2181 --bookie bookie-aa {ONE} {TWO}"],
        ),
        (
            lambda: permit(NAMED, {ONE: None, TWO: None}, replace(MINE, directories=(ONE,))),
            ["no directory has the cookie of bookie-aa", f"{ONE})"],
        ),
        (lambda: permit(NAMED, {ONE: None, TWO: None}, MINE, data=(TWO,)), ["not empty"]),
        (
            lambda: permit(replace(NAMED, named="bookie-bb"), {ONE: MINE, TWO: MINE}, MINE),
            ["expected bookie-bb", "found bookie-aa"],
        ),
        (
            lambda: permit(ADD, {ONE: MINE, TWO: None}, MINE, data=(ONE,)),
            [f"directory {TWO}", "missing or was emptied"],
        ),
        (
            lambda: permit(ADD, {ONE: MINE, TWO: MINE, THREE: None}, MINE, data=(THREE,), configured=(ONE, TWO, THREE)),
            ["expected directories"],
        ),
        (
            lambda: permit(
                CookiePermissions(), {ONE: MINE, TWO: MINE, THREE: None}, MINE, configured=(ONE, TWO, THREE)
            ),
            ["and set add_empty_directories"],
        ),
        (lambda: permit(ADD, {ONE: MINE, TWO: MINE}, MINE, configured=(TWO, ONE)), ["the order counts"]),
    ],
)
def test_permission_covers_nothing_else(case, says: list[str]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidCookieError) as caught:
        case()
    for part in says:
        assert part in str(caught.value)

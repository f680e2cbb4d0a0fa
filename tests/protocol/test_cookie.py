"""Who boots: the cookie check over first boots, crashes in the middle of one, and every way of being the wrong bookie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.protocol.cookie import Cookie, CookieCopies, Stamps, check_cookies
from bookspark.protocol.errors import InvalidCookieError

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


def test_all_copies_equal_boots_and_stamps_nothing() -> None:
    assert check(MINE, MINE, MINE, data=(ONE, TWO)) == Stamps(MINE)


def test_a_crash_after_any_stamp_of_a_first_boot_leaves_a_bootable_bookie() -> None:
    assert check(MINE, None, None) == Stamps(MINE, (TWO,), metadata=True)
    assert check(MINE, MINE, None) == Stamps(MINE, (), metadata=True)
    assert check(MINE, MINE, MINE) == Stamps(MINE)


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
            [f"expected directories {ONE},", "cookie update"],
        ),
        (lambda: check(MINE, MINE, None, data=(ONE,)), ["metadata store has no cookie", "cookie create"]),
        (lambda: check(MINE, None, None, data=(TWO,)), ["metadata store has no cookie", "cookie create"]),
        (lambda: check(MINE, MINE, replace(MINE, nonce="nonce-2")), ["expected", "nonce-2", "found", "nonce-1"]),
        (lambda: check(MINE, None, MINE, data=(ONE,)), [f"directory {TWO}", "missing or was emptied", "cookie fix"]),
        (lambda: check(None, MINE, MINE), [f"directory {ONE}", "missing or was emptied"]),
    ],
)
def test_any_other_combination_stays_down_and_says_what_to_do(case, says: list[str]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidCookieError) as caught:
        case()
    for part in says:
        assert part in str(caught.value)

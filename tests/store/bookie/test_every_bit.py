"""Single bit flips in a bookie's files: here samples; ``scripts/soak bookie-bits`` flips all eight bits of every byte."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from bookspark.errors import InvalidCookieError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.servers.daemon.directories import read_cookie, write_cookie
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.wire.batch_prefix import BODY_LENGTH_OFFSET, PREFIX_BYTES
from tests.store.bookie.flips import SETTINGS, Flips, flip
from tests.store.bookie.rewritten_flips import RewrittenFlips
from tests.store.bookie.stepped import Stepped, without_threads


@pytest.fixture(autouse=True)
def stepped():
    with without_threads():
        yield


@pytest.mark.parametrize(
    ("clean", "rewritten"), [(True, False), (False, True)], ids=["stopped", "killed with rewritten logs"]
)
def test_flipped_bit_is_detected_and_never_causes_wrong_bytes_or_absence(clean, rewritten):
    flips = Flips(clean=clean, rewritten=rewritten)
    assert rewritten == any(path.endswith(".arrow") for path in flips.disk.files())
    outcomes = Counter()
    for path, offset in flips.places():
        if offset % (5 if rewritten else 2):
            continue
        try:
            outcomes[flips.judge(path, offset, offset // 2 * 5 % 8)] += 1
        except AssertionError as error:
            error.add_note(f"bit {offset // 2 * 5 % 8} of byte {offset} of {path}")
            raise
    assert min(outcomes[kind] for kind in ("stays down", "unknown", "right")) > 50, outcomes


def test_bit_flipped_while_serving_is_an_error_of_the_read():
    flips = Flips(clean=True)
    disk = flips.disk
    storage = Stepped(SETTINGS, disk)
    outcomes = Counter()
    for path, offset in flips.places():
        if path.endswith(".arrows"):
            bit = offset * 5 % 8
            flip(disk, path, offset, bit)
            outcomes[flips.check_answers(storage)] += 1
            flip(disk, path, offset, bit)
    assert outcomes["unknown"] > 1000 and outcomes["right"] > 2 * len(SCHEMA), "the schema is not read again"


@pytest.mark.parametrize("power_cut", [False, True], ids=["stopped", "without power"])
def test_bit_flipped_while_serving_causes_no_wrong_answer_before_or_after_boot(power_cut):
    flips = Flips(clean=False, rewritten=True)
    outcomes = Counter()
    for path, offset in flips.places():
        if offset % 31 == len(path) % 31:
            bit = offset * 5 % 8
            try:
                outcomes[flips.judge_served(path, offset, bit, power_cut=power_cut)] += 1
            except AssertionError as error:
                error.add_note(f"bit {bit} of byte {offset} of {path}")
                raise
    assert min(outcomes[kind] for kind in ("unknown", "right")) > 20, outcomes


def test_bit_flipped_before_a_rewrite_makes_no_acknowledged_entry_negative():
    """A flipped bit in the length of a dead frame hid the living frames behind it, and their log was removed. Tested here: each
    length of each frame, and a sample of the other places."""
    flips = RewrittenFlips()
    outcomes = Counter()
    lengths = {path: _lengths(content) for path, content in flips.disk.files().items() if path.endswith(".arrows")}
    for path, offset in flips.places():
        if offset % 97 == 0 or offset in lengths.get(path, ()):
            bit = offset * 5 % 8
            try:
                outcomes[flips.judge(path, offset, bit, serving=offset % 2 == 0)] += 1
            except AssertionError as error:
                error.add_note(f"bit {bit} of byte {offset} of {path}")
                raise
    assert min(outcomes[kind] for kind in ("unknown", "right")) > 20, outcomes


def _lengths(content: bytes) -> set[int]:
    """The positions of the lowest three bytes of the body lengths of a log's frames."""
    found, at = set(), len(SCHEMA)
    while at < len(content):
        length = at + BODY_LENGTH_OFFSET
        found.update(range(length, length + 3))
        at += PREFIX_BYTES + int.from_bytes(content[length : length + 8], "little")
    return found


def test_flipped_bit_in_a_cookie_never_yields_another_cookie(tmp_path):
    cookie = Cookie("bookie-1f", ("/disk1", "/disk2"), "instance", "nonce")
    write_cookie(str(tmp_path), cookie)
    whole = (tmp_path / "COOKIE").read_bytes()
    refused = 0
    for offset, bit in product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << bit
        (tmp_path / "COOKIE").write_bytes(damaged)
        try:
            assert read_cookie(str(tmp_path)) == cookie
        except InvalidCookieError:
            refused += 1
    assert refused > 6 * len(whole), "only in the name of the checksum it may go unseen"

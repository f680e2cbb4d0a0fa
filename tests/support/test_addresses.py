"""Addresses as text: an IPv6 host stands in brackets."""

from __future__ import annotations

import pytest

from bookspark.support.addresses import address_text, split_address


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1:3181"),
        ("bookie-1", "bookie-1:3181"),
        ("::1", "[::1]:3181"),
        ("fe80::1%eth0", "[fe80::1%eth0]:3181"),
    ],
)
def test_address_is_written_and_parsed(host, text):
    assert address_text(host, 3181) == text
    assert split_address(text) == (host, 3181)


@pytest.mark.parametrize("text", ["", ":1", "host", "host:", "host:x", "host:²", "::1:3181", "[]:1"])
def test_other_texts_are_no_addresses(text):
    with pytest.raises(ValueError, match="host"):
        split_address(text)

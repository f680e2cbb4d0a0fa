"""Requests with arbitrary header values and valid checksums: each is answered, and no handler fails."""

from __future__ import annotations

import logging

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from tests.store.bookie.kit import OTHER_KEY, Client, add_frame, config, serving

_LONG = st.sampled_from([-(1 << 63), -2, -1, 0, 1, 5, 1 << 31, (1 << 62), (1 << 63) - 1]) | st.integers(-3, 20)
_UNSIGNED = st.sampled_from([0, 1, 10, (1 << 20) | (1 << 10), (1 << 32) - 1])
_POLL_MS_MAX = 5


@st.composite
def headers(draw):
    kind = draw(st.sampled_from([*Kind]) | st.integers(0, 255))
    limit = draw(_UNSIGNED)
    return Header(
        kind,
        draw(st.integers(0, (1 << 64) - 1)),
        ledger_id=draw(_LONG),
        first_entry_id=draw(_LONG),
        last_entry_id=draw(_LONG),
        last_add_confirmed=draw(_LONG),
        flags=draw(st.integers(0, 255)),
        status=draw(st.sampled_from([0, 1, 10, 65535])),
        last_add_fully_replicated=draw(_LONG),
        last_add_synced=draw(_LONG),
        incarnation=draw(st.sampled_from([0, (1 << 64) - 1])),
        master_key=draw(st.sampled_from([bytes(16), b"k" * 16])),
        limit=min(limit, _POLL_MS_MAX) if kind == Kind.READ_LAC else limit,  # a longer poll is only answered later
        value=draw(_LONG),
    )


def test_every_request_is_answered_and_no_handler_fails(tmp_path, caplog):
    with serving(config(tmp_path)) as (_, address), caplog.at_level(logging.ERROR):
        client = Client(address)
        assert client.add(5, 0, 9).status == Status.OK

        @settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
        @given(headers(), st.binary(max_size=40), st.integers(1, 3))
        def ask(header, body, entries):
            client.send(control_frame(header, body))
            assert last_answer(client).request_id == header.request_id
            first = header.first_entry_id
            if header.kind == Kind.ADD and 0 <= first < 1 << 62:
                options = {
                    name: getattr(header, name)
                    for name in ("request_id", "last_add_confirmed", "flags", "limit", "value", "master_key")
                }
                client.send(add_frame(max(header.ledger_id, 0), first, first + entries - 1, **options))
                assert last_answer(client).request_id == header.request_id

        ask()
        assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK
        client.close()
        again = Client(address)
        assert [entry.entry_id for entry in again.read(5, 0, 9)[0]] == list(range(10))
        again.close()
    assert not caplog.records, [record.getMessage() for record in caplog.records]


def last_answer(client):
    """The header of the frame that ends an answer."""
    while (answer := client.receive()).batch is not None:
        pass
    return answer.header


def test_requests_for_the_lowest_possible_entry_id_are_answered(tmp_path):
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        assert client.add(5, 0, 9).status == Status.OK
        for kind in (Kind.READ, Kind.READ_LAC):
            answer = client.call(Header(kind, 0, 5, -(1 << 63), 8, master_key=OTHER_KEY)).header
            assert answer.status in (Status.BAD_REQUEST, Status.UNAUTHORIZED)
        client.close()

"""Every public parameter refuses wrong values, derived from its annotation.

Methods are called on uninitialised objects, and functions with stand-ins without attributes. So any work before the arguments
are checked raises AttributeError: a refused call has written, sent and awaited nothing.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from bookspark.errors import InvalidArgumentError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.support.arguments import AtLeastOne, Config, checked, judges, make_config, parameters
from tests.support.arguments.surface import Call, calls, configs
from tests.support.arguments.wrong_values import annotation_of, drawn_wrong, right, wrong


@pytest.mark.parametrize("call", calls(), ids=str)
def test_wrong_values_are_refused_by_the_name_of_the_argument(call: Call) -> None:
    assert judges(call.function), f"{call}: decorate it with checked, or its class with checks_methods"
    tried = 0
    for name, parameter in parameters(call.function).items():
        assert parameter.annotation is not parameter.empty, f"{call}: {name} has no annotation"
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        for value in wrong(annotation_of(call.function, parameter), parameter.default):
            _refuses(call, name, value)
            tried += 1
    assert tried or all(one.kind is one.VAR_KEYWORD for one in parameters(call.function).values())


@pytest.mark.parametrize("call", calls(), ids=str)
@settings(max_examples=5, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_random_wrong_values_are_refused_with_the_name_of_the_argument(call: Call, data: st.DataObject) -> None:
    """These values are drawn at random; those of the test above are always tried."""
    for name, parameter in parameters(call.function).items():
        values = drawn_wrong(annotation_of(call.function, parameter), parameter.default)
        if parameter.kind is not parameter.VAR_KEYWORD and not values.is_empty:
            _refuses(call, name, data.draw(values, label=name))


def _refuses(call: Call, name: str, value: Any) -> None:
    arguments = {
        other: right(annotation_of(call.function, one))
        for other, one in parameters(call.function).items()
        if other != name and one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
    variadic = parameters(call.function)[name].kind is inspect.Parameter.VAR_POSITIONAL
    this = [] if call.owner is None else [object.__new__(call.owner)]
    try:
        if variadic:
            call.function(*this, *arguments.values(), value)
        else:
            call.function(*this, **arguments, **{name: value})
    except InvalidArgumentError as refusal:
        told = refusal
    except Exception as error:
        pytest.fail(f"{call}({name}={_shown(value)}) raised {type(error).__name__}: {error}")
    else:
        pytest.fail(f"{call}({name}={_shown(value)}) was not refused")
    assert told.argument == name and name in str(told)
    assert len(str(told)) < 2000


def _shown(value: Any) -> str:
    return "a huge int" if isinstance(value, int) and value.bit_length() > 1000 else repr(value)


@pytest.mark.parametrize("kind", configs(), ids=lambda kind: kind.__name__)
def test_wrong_option_is_refused_by_both_ways_to_make_a_config(kind: type[Config]) -> None:
    needed = {one.name: right(one.type) for one in msgspec.structs.fields(kind) if one.required}
    assert kind(**needed) == make_config(kind, needed)
    for field in msgspec.structs.fields(kind):
        values = wrong(field.type)
        assert values, f"nothing is wrong for {field.name}"
        for value in values:
            with pytest.raises(InvalidArgumentError) as told:
                kind(**{**needed, field.name: value})
            assert told.value.argument == field.name and field.name in str(told.value)
            with pytest.raises(InvalidArgumentError):
                make_config(kind, {**needed, field.name: value})


def test_public_functions_include_the_main_api() -> None:
    names = {call.name for call in calls()}
    for name in (
        "bookspark.store.client.bookkeeper.BookKeeper.__init__",
        "bookspark.store.client.bookkeeper.BookKeeper.create_ledger",
        "bookspark.store.client.writing.ledger_handle.LedgerHandle.append_batch",
        "bookspark.store.client.reading.read_handle.ReadHandle.read",
        "bookspark.store.client.writing.futures.AppendFuture.result",
        "bookspark.local.LocalCluster.__init__",
        "bookspark.local.LocalBookie.start",
        "bookspark.spark.session.session",
        "bookspark.spark.bookies.bookie_service.BookieService.__init__",
        "bookspark.spark.snapshots.snapshot.write",
        "bookspark.spark.audit.runner.safe_to_stop",
        "bookspark.logs.chain.maintenance.truncate_log",
        "bookspark.testing.wire_proxy.Wire.delay",
    ):
        assert name in names
    assert {kind.__name__ for kind in configs()} >= {"ClientConfig", "BookieConfig", "AutorecoveryConfig"}


def test_public_function_without_argument_checks_is_reported() -> None:
    def public(count: int) -> None:
        """A function without argument checks."""

    with pytest.raises(AssertionError, match="decorate it"):
        test_wrong_values_are_refused_by_the_name_of_the_argument(Call("public", public, None))


def test_numpy_numbers_buffers_and_subclasses_are_accepted_and_converted() -> None:
    numpy = pytest.importorskip("numpy")

    @checked
    def call(
        count: Annotated[int, Meta(ge=0, le=10)] = 0, part: float = 0.0, name: str = "", content: bytes = b""
    ) -> tuple[int, float, str, bytes]:
        return count, part, name, content

    class Name(str):
        __slots__ = ()

    class Content(bytes):
        __slots__ = ()

    assert call(numpy.int64(3), 1, Name("n"), bytearray(b"c")) == (3, 1.0, "n", b"c")
    assert [type(one) for one in call(numpy.uint8(3), numpy.float32(1), Name("n"), Content(b"c"))] == [
        int, float, str, bytes
    ]  # fmt: skip
    assert call(content=memoryview(b"abcd")[::2])[3] == b"ac"
    with pytest.raises(InvalidArgumentError, match="encode the text first"):
        call(content="text")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="64 bits"):
        choose(Choices(count=1 << 63))
    with pytest.raises(InvalidArgumentError, match="did you mean 'count'"):
        call(counts=3)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Choices:
    digest: DigestType = DigestType.CRC32C
    count: AtLeastOne = 1


@checked
def choose(choices: Choices | None = None) -> Choices | None:
    return choices


def test_fields_of_a_record_are_checked_when_it_is_passed() -> None:
    right = Choices(DigestType.HMAC, 2)
    assert choose(right) is right and choose() is None
    assert choose(Choices("hmac")) == Choices(DigestType.HMAC)  # type: ignore[arg-type]
    for misfit, field in ((Choices("md5"), "digest"), (Choices(count="3"), "count"), (Choices(count=0), "count")):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=rf"choices\['?{field}"):
            choose(misfit)


def test_error_about_a_wrong_password_does_not_show_it() -> None:
    from bookspark import BookKeeper

    client = object.__new__(BookKeeper)
    with pytest.raises(InvalidArgumentError) as told:
        client.create_ledger(password="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(told.value) and "password of type str" in str(told.value)

"""Every option of ``format("bookspark")`` refuses wrong texts; the parsers themselves reveal the options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookspark.errors import ConfigurationError, InvalidArgumentError
from bookspark.spark.options.given_options import GivenOptions
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from bookspark.support.arguments import taken_by

PARSERS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "sink": (SinkOptions.parse, {"zookeeper": "h:1", "log": "a"}),
    "source": (SourceOptions.parse, {"zookeeper": "h:1", "log": "a"}),
}
TEXTS = [
    "",
    " ",
    "abc",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e999",
    "9" * 40,
    "9" * 5000,
    "true false",
    "a\0b",
    "\ud800",
    "1-99999999999",
    "[" * 100_000,
    '{"0":' * 50_000,
    '{"0": 1e400}',
    '{"0": null}',
    '{"²": 5}',
    "²",
    "orders@²",
]


def _known(parse: Callable[..., Any], right: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Options of the parser, each with the description of its values."""
    kinds: dict[str, str] = {}
    judged = GivenOptions.judged

    def noting(self: Any, name: str, annotation: Any) -> Any:
        kinds[name] = taken_by(annotation).words
        return judged(self, name, annotation)

    monkeypatch.setattr(GivenOptions, "judged", noting)
    parse(right)
    monkeypatch.undo()
    return kinds


@pytest.mark.parametrize("name", PARSERS)
def test_wrong_texts_are_refused_with_the_name_of_the_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, right = PARSERS[name]
    kinds = _known(parse, right, monkeypatch)
    assert len(kinds) > 8
    refused = 0
    for option, words in kinds.items():
        for text in TEXTS:
            told: ConfigurationError | None = None
            try:
                parse({**right, option: text})
            except ConfigurationError as error:
                told = error
            if told is None:
                assert "number" not in words and "\0" not in text and "\ud800" not in text, f"{option}={text[:50]!r}"
                continue
            # An error about two contradicting options names both.
            assert option in str(told) and len(str(told)) < 1000, f"{option}={text[:50]!r}: {told}"
            refused += isinstance(told, InvalidArgumentError)
    assert refused > 5 * len(kinds)


@pytest.mark.parametrize("ids", ["0-9999999999", "1-2000000", "5,0-999999", "10000000000", "3-", "-3", "1,,2"])
def test_invalid_list_of_ledgers_is_refused(ids: str) -> None:
    with pytest.raises(InvalidArgumentError, match="ledgers"):
        SourceOptions.parse({"zookeeper": "h:1", "ledgers": ids})

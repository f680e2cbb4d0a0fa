"""Stories of a bookie, told in full and compared with what was told before.

``tests/bookie/told/expected/<story>.txt`` is what each story came to when it was looked at last. A change of it is a change of
what the bookie does. Look whether that is meant; then tell it anew: ``python -m tests.bookie.test_told [STORY …]``.
``--whole STORY`` prints one with all that a digest stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.bookie.told.telling import Telling, apart_from_time

FOLDER = Path(__file__).parent / "told"
_STORY = "story_"
STORIES: dict[str, Callable[[Telling], None]] = {
    name.removeprefix(_STORY).removeprefix("of_"): story
    for path in sorted(FOLDER.glob("*.py"))
    for name, story in vars(import_module(f"tests.bookie.told.{path.stem}")).items()
    if name.startswith(_STORY)
}


def tell(name: str, *, whole: bool = False) -> str:
    telling = Telling()
    telling.whole = whole
    with apart_from_time(telling):
        STORIES[name](telling)
    return telling.text()


def expected(name: str) -> Path:
    return FOLDER / "expected" / f"{name}.txt"


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_as_before(name):
    assert tell(name).splitlines() == expected(name).read_text().splitlines()


def test_nothing_is_expected_of_a_story_that_is_not_there():
    assert {path.stem for path in (FOLDER / "expected").iterdir()} == set(STORIES)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--whole"]:
        print(tell(sys.argv[2], whole=True))
    else:
        for name in sys.argv[1:] or STORIES:
            expected(name).write_text(tell(name))

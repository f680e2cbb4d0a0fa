"""Stories of a storage, told in full and compared with what was told before.

``tests/bookie/told/<story>.txt`` is what each story came to, read by a person when it was new. A change of it is a change of what
the bookie does: look whether it is meant, then write it anew with ``python -m tests.bookie.test_told_storage``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bookie import stories_of_disks, stories_of_parts, stories_of_requests, stories_of_serving
from tests.bookie.telling import Telling, apart_from_time

FOLDER = Path(__file__).parent / "told"
STORIES: dict[str, Callable[[Telling], None]] = {
    name: story
    for module in (stories_of_requests, stories_of_disks, stories_of_serving, stories_of_parts)
    for name, story in vars(module).items()
    if name.startswith("story_")
}


def tell(name: str) -> str:
    telling = Telling()
    with apart_from_time(telling):
        STORIES[name](telling)
    return telling.text()


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_as_before(name):
    assert tell(name).splitlines() == (FOLDER / f"{name[6:]}.txt").read_text().splitlines()


if __name__ == "__main__":
    for name in sys.argv[1:] or STORIES:
        (FOLDER / f"{name[6:]}.txt").write_text(tell(name))

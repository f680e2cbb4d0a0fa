"""Names of the packages as a shell shows them: by Tab, and by ``help``."""

from __future__ import annotations

import pydoc
import rlcompleter
from types import ModuleType

import pytest

import bookspark
import bookspark.spark


@pytest.mark.parametrize("package", [bookspark, bookspark.logs, bookspark.spark], ids=lambda package: package.__name__)
def test_tab_and_help_show_every_public_name(package: ModuleType) -> None:
    shell = rlcompleter.Completer({"package": package})
    offered = [shell.complete("package.", number) for number in range(len(package.__all__))]
    page = pydoc.plain(pydoc.render_doc(package))
    for name in package.__all__:
        assert any(str(one).startswith(f"package.{name}") for one in offered), offered
        assert f"\n    {name}" in page or f"class {name}(" in page, name


def test_logs_are_there_without_an_import_of_their_own() -> None:
    """``import bookspark``, then ``bookspark.logs.`` and Tab."""
    assert (
        rlcompleter.Completer({"bookspark": bookspark}).complete("bookspark.logs.open", 0) == "bookspark.logs.open_log("
    )

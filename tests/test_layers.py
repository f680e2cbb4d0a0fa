"""No module imports itself in a circle.

The contracts in ``setup.cfg`` define which packages may import each other; ``lint-imports`` checks them. One of them
refuses circles among siblings. This test also finds circles through a package's ``__init__``. An import for the type
checker alone counts too: a module that names a type depends on that type's module.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def check_no_circle(graph: grimp.ImportGraph) -> None:
    """Raises CycleError, which names the modules of one circle."""
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_no_module_imports_itself_in_a_circle() -> None:
    check_no_circle(grimp.build_graph("bookspark", cache_dir=None))


def test_import_circle_is_detected() -> None:
    graph = grimp.ImportGraph()
    for module, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")):
        graph.add_import(importer=module, imported=imported)
    with pytest.raises(CycleError, match="'b', 'c'"):
        check_no_circle(graph)

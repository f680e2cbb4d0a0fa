"""Modules of the simulator that were compiled to C, where somebody compiled them (``scripts/compile-simulator``).

Law: the same sources, the same results byte for byte, and never a stale module. What was compiled lies in a folder of its own.
The folder's name is a digest of all sources that it was made from and may know of, and of the Python that runs it. After an edit
there is no such folder, so the sources are used until they are compiled again. A wheel has sources only, and nothing here needs
the compiler.

Only a process that asks for them gets them, before it imports any of them: ``bookspark simulate`` does, and says so. Tests change
functions and constants of modules in memory, so they use the sources; ``tests/system/acceptance`` compares both.

mypyc compiles them (it comes with mypy, a requirement of development only). The machines of the protocol stay as they are:
``values`` looks through their fields, and they are to be the very ones that ship.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
FOLDER = _ROOT / ".cache" / "simulator"
"""Only a checkout has it."""
SHARED = "simulator__mypyc"
"""The module that has all of the code. The others are what imports by their names find."""
MODULES = (
    "bookspark.lab.simulation.ledgers.second_ledger",
    "bookspark.lab.simulation.moves",
    "bookspark.lab.simulation.search.exhaustive",
    "bookspark.lab.simulation.search.random_schedules",
    "bookspark.lab.simulation.search.reductions",
    "bookspark.lab.simulation.search.successors",
    "bookspark.lab.simulation.slots",
    "bookspark.lab.simulation.values",
    "bookspark.lab.simulation.verdicts",
    "bookspark.lab.simulation.world",
)
_SOURCES = ("bookspark/lab/simulation", "bookspark/protocol", "bookspark/errors.py")


def digest_of(root: Path) -> str:
    """What stands for the sources in a checkout and for this Python."""
    digest = sha256(f"{sys.implementation.cache_tag} {sys.platform}".encode())
    for source in _SOURCES:
        for path in sorted((root / source).rglob("*.py")) or [root / source]:
            text = path.read_bytes()
            digest.update(f"\n{path.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:20]


def use_compiled(folder: Path = FOLDER) -> bool:
    """Have the modules imported that were compiled from these sources. False if there are none, or if it is too late for them."""
    if not folder.is_dir() or any(name in sys.modules for name in MODULES):
        return False
    found = folder / digest_of(_ROOT)
    shared = next(iter(found.glob(f"{SHARED}.*")), None)
    if shared is None:
        return False
    spec = spec_from_file_location(SHARED, shared)
    assert spec is not None and spec.loader is not None
    module = sys.modules[SHARED] = module_from_spec(spec)
    spec.loader.exec_module(module)
    for package in sorted({name.rpartition(".")[0] for name in MODULES}):
        import_module(package).__path__.insert(0, str(found.joinpath(*package.split("."))))
    return True

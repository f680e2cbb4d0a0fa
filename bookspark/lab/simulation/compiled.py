"""Modules of the simulator compiled to C by ``scripts/compile-simulator``, where they exist.

Law: the same sources, the same results byte for byte, and never a stale module. The folder of compiled modules is named by
a digest of all their sources and of the running Python, so after an edit the sources run until the next compilation. A
wheel has only sources, and nothing here needs the compiler.

A process gets compiled modules only on request, before it imports any of them, like ``bookspark simulate``. Tests use the
sources, because they change functions and constants in memory; ``tests/system/acceptance`` compares both.

The compiler is mypyc, a part of mypy. The machines of the protocol are not compiled: ``values`` reads their fields, and the
simulator must run the shipped code.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
FOLDER = _ROOT / ".cache" / "simulator"
"""Only in a checkout."""
SHARED = "simulator__mypyc"
"""The module with all compiled code. The other modules are stubs that import it by name."""
MODULES = (
    "bookspark.lab.simulation.moves",
    "bookspark.lab.simulation.search.random_schedules",
    "bookspark.lab.simulation.search.exhaustive",
    "bookspark.lab.simulation.second_ledger",
    "bookspark.lab.simulation.slots",
    "bookspark.lab.simulation.values",
    "bookspark.lab.simulation.verdicts",
    "bookspark.lab.simulation.world",
)
_SOURCES = ("bookspark/lab/simulation", "bookspark/protocol", "bookspark/errors.py")


def digest_of(root: Path) -> str:
    """Digest of a checkout's sources and of this Python."""
    digest = sha256(f"{sys.implementation.cache_tag} {sys.platform}".encode())
    for source in _SOURCES:
        for path in sorted((root / source).rglob("*.py")) or [root / source]:
            text = path.read_bytes()
            digest.update(f"\n{path.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:20]


def use_compiled(folder: Path = FOLDER) -> bool:
    """Make later imports use the modules compiled from these sources. Returns False if none exist, or if a module is
    already imported."""
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

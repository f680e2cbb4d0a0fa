"""Compiles the simulator's modules to C: ``scripts/compile-simulator``. It needs a C compiler.

Law: a folder exists completely or not at all. Folders of other sources are deleted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bookspark.lab.simulation.compiled import FOLDER, MODULES, digest_of

ROOT = Path(__file__).resolve().parents[3]
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup

options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
setup(
    name="simulator",
    packages=[],
    ext_modules=mypycify([*options, *{paths!r}], opt_level="3", debug_level="0", group_name="simulator"),
)
"""
_SECONDS_MAX = 1200


def compile_simulator(folder: Path = FOLDER) -> Path:
    """Compile the sources unless done already; returns the folder with the modules. Raises RuntimeError if that fails."""
    target = folder / digest_of(ROOT)
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as scratch:
        build = Path(scratch)
        only_python = shutil.ignore_patterns("__pycache__", "conf", "jobs", "*.css", "*.js")
        shutil.copytree(ROOT / "bookspark", build / "bookspark", ignore=only_python)
        paths = [f"{name.replace('.', '/')}.py" for name in MODULES]
        (build / "setup.py").write_text(_SETUP.format(paths=paths), "utf-8")
        command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "made", "--build-temp", "temporary"]
        done = subprocess.run(
            command, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS_MAX
        )
        if done.returncode:
            raise RuntimeError(f"the simulator can't be compiled:\n{done.stdout[-3000:]}")
        if digest_of(ROOT) != target.name or digest_of(build) != target.name:
            raise RuntimeError("the simulator's sources changed while it was compiled: call it again")
        os.rename(build / "made", target)
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target


def check(folder: Path) -> None:
    """Compare the findings of the compiled modules and the sources: schedules of each mode, planted bugs with their
    stories, and searches. Takes minutes. Raises RuntimeError if they differ."""
    if _found() != _found("--compiled", str(folder)):
        raise RuntimeError(
            "compiled modules and sources find different things: compare tests/lab/simulation/both_forms.py"
        )


def _found(*form: str) -> bytes:
    command = [sys.executable, "-m", "tests.lab.simulation.both_forms", *form]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=_SECONDS_MAX).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/compile-simulator")
    parser.add_argument("--remove", action="store_true", help="take the compiled modules away")
    parser.add_argument("--check", action="store_true", help="compare the findings of both forms: minutes")
    options = parser.parse_args()
    if options.remove:
        shutil.rmtree(FOLDER, ignore_errors=True)
        return
    try:
        print(compile_simulator())
        if options.check:
            check(FOLDER)
            print("compiled modules and sources find the same")
    except RuntimeError as error:
        sys.exit(f"scripts/compile-simulator: {error}")


if __name__ == "__main__":
    main()

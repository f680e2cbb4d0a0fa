"""The simulator's modules compiled to C: what they find is what the sources find, byte for byte. It takes minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.simulation.compiling import ROOT, compile_simulator

COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
HEADERS = Path(sysconfig.get_path("include"), "Python.h")


@pytest.mark.timeout(2400)
@pytest.mark.skipif(not (shutil.which(COMPILER) and HEADERS.exists()), reason="there is no C compiler for Python here")
def test_schedules_planted_bugs_and_searches_are_the_same_by_compiled_modules(tmp_path: Path) -> None:
    compile_simulator(tmp_path)
    plain, compiled = (told_by(), told_by("--compiled", str(tmp_path)))
    assert plain == compiled


def told_by(*form: str) -> bytes:
    command = [sys.executable, "-m", "tests.simulation.both_forms", *form]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:].decode()
    assert done.stdout
    return done.stdout

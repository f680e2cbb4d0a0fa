"""Tests of wire, client and metadata pass with exactly the lower bounds in ``setup.cfg``.

pip has no option for the lowest versions, so each bound is made a constraint. The test needs the package index that
``scripts/setup`` uses.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheels import ROOT, build_wheel, environment, requirements, settings

RUNS_TESTS = ("hypothesis", "packaging", "pytest", "pytest-timeout", "pytest-xdist")
"""Packages that the tests themselves import: as pinned for this environment."""
TESTS = (
    "tests/store/wire", "tests/store/bookie/test_scenarios.py", "tests/store/client/test_appends.py",
    "tests/store/client/test_reads.py",
    "tests/store/metadata/test_metadata_store.py", "tests/store/metadata/test_zookeeper_store.py",
)  # fmt: skip
"""Tests that use these packages most."""


def lowest() -> list[str]:
    """A constraint ``name==version`` for each lower bound and each exact version of the package itself."""
    extras = [extra for extra in settings()["options.extras_require"] if extra not in ("all", "dev")]
    bounded = requirements("options", "install_requires")
    bounded += [each for extra in extras for each in requirements("options.extras_require", extra)]
    found = {}
    for requirement in bounded:
        (bound,) = (one.version for one in requirement.specifier if one.operator in (">=", "=="))
        found[requirement.name] = f"{requirement.name}=={bound}"
    return sorted(found.values())


@pytest.mark.release
@pytest.mark.timeout(2400)
def test_quick_tests_pass_with_the_lowest_versions(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(lowest()) + "\n")
    pins = [line for line in (ROOT / "conf/constraints.txt").read_text().split() if line.split("==")[0] in RUNS_TESTS]
    assert len(pins) == len(RUNS_TESTS)
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=300)
    python = home / "bin" / "python"
    # Imported modules are compiled then: pip would compile Spark and everything else, which takes a minute.
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile"]
    done = subprocess.run(
        [*install, "--constraint", constraints, f"{wheel}[all]", *pins],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    # In one process: the worker that waits for it has its share of the cores.
    command = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-5000:]

"""Jars from Maven Central, which ``mvn`` copies into a folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def fetched(pom: Path, jars: Path) -> Path:
    """The folder ``jars`` with every jar that ``pom`` needs at run time. It is filled again when the pom changed. Needs ``mvn``;
    raises CalledProcessError if it fails."""
    complete = jars.with_name(f"{jars.name}-complete")
    wanted = pom.read_text()
    if not complete.exists() or complete.read_text() != wanted:
        shutil.rmtree(jars, ignore_errors=True)
        subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"],
            check=True,
        )  # fmt: skip
        complete.write_text(wanted)
    return jars

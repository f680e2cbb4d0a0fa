"""Jars from Maven Central, through mvn, into a folder that is kept as long as the pom stays the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def fetched(pom: Path, jars: Path) -> Path:
    """``jars``, once all that ``pom`` needs at run time lies in it. Needs mvn."""
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

"""Search for Spark's Java, with a check of its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from bookspark.errors import ConfigurationError

JAVA_VERSION_MIN = 17
_ANSWER_SECONDS = 30.0
_ADVICE = (
    f"install Java {JAVA_VERSION_MIN} (for example a package openjdk-{JAVA_VERSION_MIN}-jre-headless), "
    "or set JAVA_HOME to one"
)


def find_java() -> str:
    """The path of a ``java`` of version 17 or later: JAVA_HOME's if it is set, as in Spark, else that on PATH. Raises
    ConfigurationError if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = str(Path(home, "bin", "java"))
        if not os.access(java, os.X_OK):
            raise ConfigurationError(f"JAVA_HOME is {home!r}, and there is no bin/java in it; {_ADVICE}")
    else:
        found = shutil.which("java")
        if found is None:
            raise ConfigurationError(f"there is no java on PATH, and JAVA_HOME is not set; {_ADVICE}")
        java = found
    version = _java_version(java)
    if version < JAVA_VERSION_MIN:
        raise ConfigurationError(f"{java} is Java {version}, and {JAVA_VERSION_MIN} or later is needed; {_ADVICE}")
    return java


def _java_version(java: str) -> int:
    """The major version: 17 for ``"17.0.15"``, 8 for ``"1.8.0_412"``."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{java} can't be run: {error}; {_ADVICE}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise ConfigurationError(f"{java} does not tell its version: {answer.stderr.strip()[:200]!r}; {_ADVICE}")
    return int(found[1])

"""Files of the package: the jobs for spark-submit, and the settings.

Law: they lie in ``bookspark/jobs`` and ``bookspark/conf``. A wheel has them there. In a checkout these two are links to the
folders ``jobs`` and ``conf`` beside the package, and returned paths lead to those.
"""

from __future__ import annotations

import ast
from pathlib import Path

from bookspark.support.arguments import check_names

_PACKAGE = Path(__file__).parents[1]


def jobs() -> dict[str, Path]:
    """The jobs for spark-submit by their names, such as ``bookies``."""
    return {path.stem: path for path in _files("jobs", "[!_]*.py")}


def job(name: str) -> Path:
    """The path of a job. Raises ConfigurationError for an unknown name."""
    found = jobs()
    check_names([name], found, "job")
    return found[name]


def job_summary(path: Path) -> str:
    """The first line of a job's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def settings_files() -> dict[str, Path]:
    """The settings files by their names, such as ``spark-defaults.conf``; ``grafana``, ``kubernetes`` and ``prometheus`` are
    folders."""
    found = [*_files("conf", "*"), *settings_folder().glob("*/")]
    return {path.name: path for path in sorted(found)}


def settings_file(name: str) -> Path:
    """The path of a settings file, or of a folder of them. Raises ConfigurationError for an unknown name."""
    found = settings_files()
    check_names([name], found, "settings file")
    return found[name]


def settings_folder() -> Path:
    return (_PACKAGE / "conf").resolve()


def _files(folder: str, pattern: str) -> list[Path]:
    return sorted(path for path in (_PACKAGE / folder).resolve().glob(pattern) if path.is_file())

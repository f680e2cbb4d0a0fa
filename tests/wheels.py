"""The wheel of this checkout, and virtual environments to try it in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from configparser import ConfigParser
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
# The sources of the wheel. Names of single modules beside them are in ``setup.cfg``.
PACKAGED = ("bookspark", "conf", "jobs", "README.md", "pyproject.toml", "setup.cfg")


def build_wheel(directory: Path) -> Path:
    """Build the wheel in ``directory``, from a copy of the sources and without the network."""
    sources = directory / "sources"
    sources.mkdir()
    modules = [f"{name}.py" for name in settings().get("options", "py_modules", fallback="").split()]
    for name in (*PACKAGED, *modules):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, sources / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory]
    done = subprocess.run([*command, sources], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]
    (wheel,) = directory.glob("bookspark-*.whl")
    return wheel


def settings() -> ConfigParser:
    """The parsed ``setup.cfg``."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def requirements(section: str, option: str) -> list[Requirement]:
    """The requirements that an option of ``setup.cfg`` lists."""
    return [Requirement(line) for line in settings().get(section, option).splitlines() if line.strip()]


def offline_environment(directory: Path, wheel: Path) -> Path:
    """An environment with the wheel and its requirements without extras, copied from this environment. Returns its python."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, site, "zip")
    wanted = requirements("options", "install_requires")
    copied: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        if requirement.name in copied or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        copied.add(requirement.name)
        found = distribution(requirement.name)
        wanted += map(Requirement, found.requires or ())
        for file in found.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(found.locate_file(file))).resolve())
    return directory / "bin" / "python"


def environment(directory: Path) -> dict[str, str]:
    """This process's variables without references to the checkout, and with the commands in ``directory`` on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BOOKSPARK_"))}
    return {**kept, "PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(directory)}

"""The wheel: its files, its requirements, and the features that work with the client's requirements alone."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bookspark
from tests.wheels import ROOT, build_wheel, environment, offline_environment, requirements, settings

EXTRAS = {"arrow", "spark", "cli", "console", "report", "bookkeeper", "metrics", "sasl", "all", "dev"}
CLIENT = """
import sys
import bookspark, bookspark.errors
from bookspark import BookKeeper, LedgerHandle, ReadHandle
loaded = sorted({"pyarrow", "pyspark", "matplotlib", "typer", "rich", "psutil"} & set(sys.modules))
print(bookspark.__file__, BookKeeper.__name__, loaded)
"""
ENTRIES = """
import bookspark.servers.daemon.bookie_process, bookspark.local
from bookspark.store.wire.entry_batch import arrow_schema
arrow_schema()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return offline_environment(tmp_path_factory.mktemp("client"), wheel)


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    home = python.parents[1]
    return subprocess.run(
        [python, *arguments], cwd=home, env=environment(home), capture_output=True, text=True, timeout=300
    )


def test_wheel_has_every_module_and_each_file_that_modules_read(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {name for name in names if not re.match(r"bookspark-[^/]+\.dist-info/", name)}
    kinds = (".py", ".sql", ".cfg", ".java", ".xml", ".css", ".js", ".html", "license.txt", "py.typed")
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "bookspark").rglob("*")
        if path.is_file() and path.name.endswith(kinds) and "__pycache__" not in path.parts
    }
    wanted |= {f"bookspark/jobs/{path.name}" for path in (ROOT / "jobs").glob("*.py")}
    conf = ROOT / "conf"
    wanted |= {f"bookspark/conf/{path.relative_to(conf)}" for path in conf.rglob("*") if path.is_file()}
    wanted |= {f"{name}.py" for name in settings().get("options", "py_modules", fallback="").split()}
    assert ours == wanted
    assert {"bookspark/jobs/bookies.py", "bookspark/conf/bookspark.toml", "bookspark/conf/zoo.cfg"} <= wanted


def test_links_of_the_checkout_are_files_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("bookspark/jobs/bookies.py") == (ROOT / "jobs/bookies.py").read_bytes()
        zoo = archive.read("bookspark/conf/zoo.cfg")
        assert zoo == archive.read("bookspark/store/metadata/zookeeper/zoo.cfg") and b"tickTime" in zoo


def test_client_requires_neither_spark_nor_plots(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Version"] == bookspark.__version__
    assert set(metadata.get_all("Provides-Extra", ())) == EXTRAS
    wanted = [Requirement(line) for line in metadata.get_all("Requires-Dist", ())]
    alone = {each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})}
    assert alone == {"crc32c", "kazoo", "msgspec", "sortedcontainers", "uvloop", "zstandard"}


def test_pinned_versions_are_in_the_required_ranges() -> None:
    pins = dict(
        line.lower().replace("_", "-").split("==") for line in (ROOT / "conf/constraints.txt").read_text().split()
    )
    for section, option in (
        ("options", "install_requires"),
        *(("options.extras_require", extra) for extra in settings()["options.extras_require"] if extra != "all"),
    ):
        for requirement in requirements(section, option):
            pin = pins[requirement.name.lower().replace("_", "-")]
            assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}"


def test_every_package_of_a_checkout_has_its_hashes() -> None:
    """``scripts/setup`` installs conf/requirements.txt by its hashes; ``scripts/supply lock`` writes it."""
    entries = re.split(r"^(?=\w)", (ROOT / "conf/requirements.txt").read_text(), flags=re.MULTILINE)[1:]
    locked = {}
    for entry in entries:
        name, _, version = entry.split()[0].partition("==")
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)
        assert hashes and len(hashes) == entry.count("--hash"), entry
        locked[canonical(name)] = version
    pins = (line.split("==") for line in (ROOT / "conf/constraints.txt").read_text().split())
    pinned = {canonical(name): version for name, version in pins}
    assert {name: locked.get(name) for name in pinned} == pinned
    installed = {canonical(one.name): one.version for one in importlib.metadata.distributions()}
    assert {name: locked[name] for name in installed.keys() & locked.keys()}.items() <= installed.items()


def test_main_job_installs_a_part_of_the_packages_of_a_checkout() -> None:
    """``scripts/run`` needs the extras spark and cli: no plots, peers, or tools for tests and formats."""
    everything, part = (
        re.split(r"^(?=\w)", (ROOT / "conf" / name).read_text(), flags=re.MULTILINE)[1:]
        for name in ("requirements.txt", "requirements-run.txt")
    )
    assert set(part) < set(everything)
    names = {canonical(entry.split("==")[0]) for entry in part}
    needed = ("options", "install_requires"), *(("options.extras_require", extra) for extra in ("spark", "cli"))
    wanted = {canonical(one.name) for section, option in needed for one in requirements(section, option)}
    assert wanted <= names and not names & {
        "pytest",
        "mypy",
        "ruff",
        "duckdb",
        "polars",
        "confluent-kafka",
        "matplotlib",
    }


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_client_is_imported_without_any_extra(python: Path) -> None:
    done = run(python, "-c", CLIENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(python.parents[1])) and done.stdout.endswith("BookKeeper []\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "bookspark", "--version"), "bookspark: the command bookspark needs typer"),
        (("-c", "import bookspark.spark"), "bookspark.spark needs pyspark"),
        (("-c", ENTRIES), "reading Arrow batches needs pyarrow"),
    ],
)
def test_feature_without_its_extra_names_the_extra(arguments: tuple[str, ...], words: str, python: Path) -> None:
    extra = {"typer": "cli", "pyspark": "spark", "pyarrow": "arrow"}[words.rpartition(" ")[2]]
    done = run(python, *arguments)
    # A command that can't run exits with 2 (bookspark.support.command_line); the others are Python's own errors.
    assert done.returncode == (2 if "-m" in arguments else 1)
    last = done.stderr.splitlines()[-1]
    assert words in last and f"install the extra {extra}, as in pip install 'bookspark-….whl[{extra}]'" in last


def test_package_shows_its_public_names(python: Path) -> None:
    assert set(bookspark.__all__) <= set(dir(bookspark)) and "import_module" not in dir(bookspark)
    done = run(python, "-c", "import bookspark; help(bookspark)")
    for words in ("class BookKeeper", "class ReadHandle", "create_ledger(", "open_ledger_no_recovery(", "autorecovery"):
        assert words in done.stdout

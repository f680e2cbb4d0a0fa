"""Everything that documents and docstrings refer to exists (docs/contributing.md).

The checks read text and import nothing, so they take a second or two. They check that

* ``….md`` anywhere: the document exists;
* links in Markdown files: the file exists, and the heading of an ``#anchor``;
* paths in Markdown files, such as `bookspark/store/wire/frames.py` or `wire/frames.py`: the file or folder exists, and in
  it the test after ``::``;
* dotted names that begin with ``bookspark.``: the module exists, and the name in it;
* in docstrings and comments, ``package.module`` and ``module.name`` where the first or second word is a module's name;
* in code spans of documents, docstrings and comments, names with an underscore: the code has such a name;
* nothing outside of the project is cited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("bookspark", "tests", "docs", "jobs", "conf", "scripts", ".ci")
SUFFIXES = {".py", ".md", ".toml", ".cfg", ".sql", ".conf", ".java", ".xml", ".properties", ".txt", ".json", ""}
NOT_OURS = {".venv", ".cache", "__pycache__"}

_OUTSIDE = re.compile(
    "|".join(
        (
            r"\b(?:desi" r"gn|sty" r"le|ben" r"ch|spark-fa" r"cts)\.md\b",
            r"\biss" r"ue \d+\b",
            r"/wo" r"rk/",
            r"\.\./sha" r"red\b",
            r"\b[Ss]ec" r"tion \d+ of the des" r"ign",
        )
    )
)
_DOCUMENT = re.compile(r"(?<![\w:/.-])(?:[\w.-]+/)*[\w-]+\.md\b")
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PATH = re.compile(r"(?:[\w.*-]+/)+[\w.*-]*(?:::\w+)*|[\w-]+\.py(?:::\w+)*")
_DOTTED = re.compile(r"(?<![\w./-])bookspark(?:\.[A-Za-z_]\w*)+(?![\w/]|\.[a-z])")
_QUOTED = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?``")
_QUOTED_FILE = re.compile(r"``([\w/]+\.py)``")
_QUOTED_CODE = re.compile(r"``([^`\n]+)``")
_NAME = re.compile(r"(?<![\w/$-])[A-Za-z]\w*_\w+")
_OTHERS = re.compile(r"\b(?:psutil|pyarrow|os|kazoo|asyncio|concurrent|spark|msgspec|zstandard)(?:\.\w+)+")
_TRIPLE = re.compile(r'r?"""(.*?)"""', re.DOTALL)
_COMMENT = re.compile(r"^\s*#(.*)$|\s{2}# (.*)$", re.MULTILINE)
_DEFINITION = (
    r"^(?:class|def|async def) +{name}\b|^{name}\b *[:=]|^(?:from .*|import .*|    |.*, ){name}\b|[\"']{name}[\"']"
)
# First words that name packages and never variables.
_FLOORS = {"protocol", "wire", "autorecovery", "simulation", "daemon", "cli", "demo"}


@cache
def _files() -> dict[Path, str]:
    found = {}
    for place in (ROOT, *(ROOT / name for name in PLACES)):
        for path in place.iterdir() if place == ROOT else place.rglob("*"):
            parts = path.relative_to(ROOT).parts
            if path.is_file() and path.suffix in SUFFIXES and not NOT_OURS.intersection(parts) and parts[0] != ".git":
                try:
                    found[path.relative_to(ROOT)] = path.read_text()
                except UnicodeDecodeError:
                    continue
    return found


@cache
def _names() -> frozenset[str]:
    """All files and folders, as paths from the root."""
    paths = set()
    for path in ROOT.iterdir():
        if path.name not in NOT_OURS:
            paths.add(path.name)
    for place in PLACES:
        for path in (ROOT / place).rglob("*"):
            if not NOT_OURS.intersection(path.parts):
                paths.add(path.relative_to(ROOT).as_posix())
    return frozenset(paths)


@cache
def _modules() -> dict[str, Path]:
    """The package's modules and sub-packages, by dotted name."""
    found = {}
    for path in _files():
        if path.parts[0] == "bookspark" and path.suffix == ".py":
            dotted = ".".join(path.with_suffix("").parts)
            found[dotted.removesuffix(".__init__")] = path
    return found


def _documents() -> Iterator[tuple[Path, str]]:
    return ((path, text) for path, text in _files().items() if path.suffix == ".md")


def _prose(path: Path, text: str) -> str:
    """The text for people in a file: all of a document, the docstrings and comments of a module."""
    if path.suffix != ".py":
        return text
    comments = (one or other for one, other in _COMMENT.findall(_TRIPLE.sub("", text)))
    return "\n".join((*_TRIPLE.findall(text), *comments))


@cache
def _defined(module: str, name: str) -> bool:
    """Whether the name is a sub-module, or bound or imported at the top level of the module."""
    if f"{module}.{name}" in _modules():
        return True
    text = _files()[_modules()[module]]
    return re.search(_DEFINITION.format(name=re.escape(name)), text, re.MULTILINE) is not None


@cache
def _members() -> frozenset[str]:
    """The attributes and methods of the package's classes."""
    member = re.compile(r"\bself\.(\w+) *[:=]|^ +(?:async )?def (\w+)|^    (\w+): ", re.MULTILINE)
    texts = (text for path, text in _files().items() if path.suffix == ".py" and path.parts[0] == "bookspark")
    return frozenset(name for text in texts for found in member.findall(text) for name in found)


def _resolves(dotted: str) -> bool:
    """Whether such a module exists and binds the next name; members of a class are not checked."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in _modules():
            return length == len(parts) or _defined(module, parts[length])
    return False


@cache
def _anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    anchors: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", _files()[path])):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        known, number = slug, 0
        while known in anchors:
            number += 1
            known = f"{slug}-{number}"
        anchors.add(known)
    return frozenset(anchors)


def _none(dead: set[str]) -> None:
    assert not dead, "\n".join(("dead references:", *sorted(dead)))


def test_cited_documents_exist():
    dead = set()
    names = {Path(name).name for name in _names() if name.endswith(".md")}
    for path, text in _files().items():
        for cited in _DOCUMENT.findall(_prose(path, text)):
            places = (ROOT, ROOT / path.parent)
            if "/" in cited and any((place / cited).is_file() for place in places):
                continue
            if "/" not in cited and cited in names:
                continue
            dead.add(f"{path}: {cited}")
    _none(dead)


def test_links_lead_to_existing_files_and_headings():
    dead = set()
    for path, text in _documents():
        for target in _LINK.findall(_FENCE.sub("", text)):
            if re.match(r"\w+:", target):
                continue
            file, _, anchor = target.partition("#")
            place = (ROOT / path.parent / file).resolve() if file else ROOT / path
            if not place.exists() or not place.is_relative_to(ROOT):
                dead.add(f"{path}: {target}")
            elif anchor and anchor not in _anchors(place.relative_to(ROOT)):
                dead.add(f"{path}: {target} (no such heading)")
    _none(dead)


def test_paths_in_documents_exist():
    dead = set()
    tops = {name.split("/")[0] for name in _names()} | {Path(name).name for name in _names() if name.count("/") == 1}
    for path, text in _documents():
        for code in _CODE.findall(_FENCE.sub("", text)):
            for named in code.split():
                if not _PATH.fullmatch(named):
                    continue
                file, *tests = named.split("::")
                if "/" in file and file.split("/")[0] not in tops:
                    continue  # a path in ZooKeeper, in a bookie's directory, …
                found = _find(file)
                if not found:
                    dead.add(f"{path}: {named}")
                elif tests and not all(
                    re.search(rf"\b(?:def|class) {test}\b", _files()[Path(found)]) for test in tests
                ):
                    dead.add(f"{path}: {named} (no such test)")
    _none(dead)


def _find(file: str) -> str | None:
    """The matching path from the root: relative to the root, to the package, or (a bare name) anywhere."""
    file = file.rstrip("/")
    if "*" in file:
        pattern = re.compile(re.escape(file).replace(r"\*", "[^/]*"))
        return next((name for name in _names() if pattern.fullmatch(name.removeprefix("bookspark/"))), None) or next(
            (name for name in _names() if pattern.fullmatch(name)), None
        )
    for name in (file, f"bookspark/{file}"):
        if name in _names():
            return name
    if "/" not in file:
        return next((name for name in _names() if name.rsplit("/", 1)[-1] == file), None)
    return None


def test_dotted_names_of_the_package_resolve():
    dead = set()
    for path, text in _files().items():
        if path.suffix in (".py", ".md"):
            for dotted in _DOTTED.findall(_prose(path, text)):
                if not _resolves(dotted) and not _is_text(dotted) and "__" not in dotted:
                    dead.add(f"{path}: {dotted}")
    _none(dead)


@cache
def _is_text(dotted: str) -> bool:
    """Labels in ledgers' metadata, and files of that name."""
    return dotted.endswith((".toml", ".sql")) or any(
        f'"{dotted}"' in text
        for path, text in _files().items()
        if path.suffix == ".py" and path.parts[0] == "bookspark"
    )


def test_module_names_in_docstrings_resolve():
    """A moved module does not match its old name, nor a function the name of another module."""
    dead = set()
    known = _modules()
    by_name: dict[str, list[str]] = {}
    for module in known:
        by_name.setdefault(module.rsplit(".", 1)[-1], []).append(module)
    for path, text in _files().items():
        if path.suffix != ".py" or path.parts[0] not in ("bookspark", "tests", "jobs"):
            continue
        prose = _prose(path, text)
        for file in _QUOTED_FILE.findall(prose):
            if not any(name.endswith(f"/{file}") or name == file for name in _names()):
                dead.add(f"{path}: {file}")
        for quoted in _QUOTED.findall(prose):
            first, second, *_ = quoted.split(".")
            if first not in by_name or quoted.startswith("bookspark.") or quoted.endswith(tuple(SUFFIXES - {""})):
                continue
            module_like = second in by_name and ("_" in second or first in _FLOORS)
            if not (module_like or first in _FLOORS or "_" in first):
                continue
            if first not in _FLOORS and second in _members():
                continue  # a variable of that name, and its attribute
            if not any(_resolves(f"{package}.{quoted.split('.', 1)[1]}") for package in by_name[first]):
                dead.add(f"{path}: {quoted}")
    _none(dead)


@cache
def _words() -> frozenset[str]:
    """All words of code and settings without docstrings and comments, and the names of modules."""
    code = []
    for path, text in _files().items():
        if path.suffix == ".py":
            code.append(re.sub(r"#.*", "", _TRIPLE.sub("", text)))
        elif path.suffix in (".sql", ".cfg", ".toml", ".java"):
            code.append(text)
    names = (name.rsplit("/", 1)[-1].removesuffix(".py") for name in _names())
    return frozenset(re.findall(r"\w+", " ".join(code))).union(names)


def test_names_in_prose_are_names_of_the_code():
    """Only names with an underscore, since others may be words of the language."""
    dead = set()
    for path, text in _files().items():
        if path.suffix == ".py" and path.parts[0] != "scripts":
            codes = _QUOTED_CODE.findall(_prose(path, text))
        elif path.suffix == ".md":
            codes = _CODE.findall(_FENCE.sub("", text))
        else:
            continue
        for code in codes:
            dead.update(
                f"{path}: {name}"
                for name in _NAME.findall(_OTHERS.sub(" ", _PATH.sub(" ", code)))
                # The command line takes an enumeration's names in lower case.
                if name not in _words() and not (path.name == "commands.md" and name.upper() in _words())
            )
    _none(dead)


def test_nothing_outside_of_the_project_is_cited():
    found = {f"{path}: {match}" for path, text in _files().items() for match in _OUTSIDE.findall(text)}
    _none(found)

"""The code and commands of docs/testing.md, and each documented search without a protection."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bookspark.operations.cli.main import command_line
from bookspark.store.wire.header import Kind

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    (path.relative_to(DOCS), block)
    for path in sorted(DOCS.rglob("*.md"))
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
]
SIMULATED = [
    (path.relative_to(DOCS), command.replace("\\\n", " "))
    for path in sorted(DOCS.rglob("*.md"))
    for command in re.findall(
        r"^    bookspark (simulate --exhaustive (?:.*\\\n)*.*--no-.*)$", path.read_text(), re.MULTILINE
    )
]


@pytest.mark.parametrize(("path", "block"), BLOCKS, ids=lambda value: str(value)[:40])
def test_python_blocks_parse(path, block):
    ast.parse(block, str(path))


def test_scenario_on_the_testing_page_runs():
    (scenario,) = (block for path, block in BLOCKS if "stage.play" in block)
    exec(scenario, {})


def test_example_test_on_the_testing_page_passes(faulty_cluster):
    (test,) = (block for path, block in BLOCKS if "faulty_cluster.wire.park" in block)
    names = {"Kind": Kind}
    exec(test, names)
    names["test_a_late_add"](faulty_cluster)


@pytest.mark.parametrize(("path", "command"), SIMULATED, ids=lambda value: str(value)[:60])
def test_search_without_a_protection_finds_the_documented_violation(path, command):
    words = shlex.split(command)
    done = CliRunner().invoke(command_line(words), words)
    assert done.exit_code == 1
    found = json.loads(done.stdout.splitlines()[-1])["violation"]
    text = (DOCS / path).read_text()
    assert f"{found['steps']} steps" in text

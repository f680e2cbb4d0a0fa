"""docs/clusters/changes.md, run as it is written, with an operator who follows each request."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import bookspark
from bookspark.local import LocalBookie, LocalCluster
from tests.pages import path, script_of

PAGE = "clusters/changes.md"
SETTINGS = "[changes]\npoll_seconds = 0.2\nconfirm_seconds = 0.3\nstall_seconds = 600.0\n"
ASKED = re.compile(r"do this now: (restart|stop) ([\w-]+)(, mount an empty disk)?")


def operate(verb: str, bookie: LocalBookie, new_disk: bool, environment: dict[str, str]) -> None:
    bookie.stop()
    if new_disk:
        (directory,) = bookie.directories
        shutil.rmtree(directory)
        Path(directory).mkdir()
        fix = ["bookspark", "cookie", "fix", "--yes", "--bookie", bookie.bookie_id, directory]
        subprocess.run(fix, env=environment, check=True, timeout=600)
    if verb == "restart" or new_disk:
        bookie.start()


@pytest.mark.timeout(1800)
def test_changes_page_runs_as_written_with_an_operator(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    with LocalCluster(6, autorecovery={"check_interval_hours": 0.0, "poll_seconds": 0.5}) as cluster:
        client = cluster.bookkeeper()
        ledgers = []
        for _ in range(6):
            with client.create_ledger() as ledger:
                ledger.append_batch([b"a row"] * 20)
            ledgers.append(ledger.ledger_id)
        known = {one.bookie_id: one for one in cluster.bookies}
        first, second, *_, new = known
        own = {"PATH": path(), "PYTHONPATH": "", "BOOKSPARK_ZOOKEEPER": cluster.zookeeper}
        own |= {"BOOKSPARK_CONFIG": str(tmp_path / "settings.toml"), "VERSION": bookspark.__version__}
        own |= {"BOOKIE": first, "OTHER": second, "NEW": new, "DIRECTORY": known[new].directories[0]}
        environment = {**os.environ, **own}
        (tmp_path / "page.sh").write_text(script_of(PAGE))
        printed, asked = [], []
        # The commands that ask read more than one line ahead, so answers never end.
        with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as yes, subprocess.Popen(
            ["bash", "page.sh"], cwd=tmp_path, env=environment, stdin=yes.stdout, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        ) as shell:  # fmt: skip
            assert shell.stdout is not None
            for line in shell.stdout:
                printed.append(line)
                if request := ASKED.search(line):
                    verb, name, new_disk = request.groups()
                    asked.append((verb, name, bool(new_disk)))
                    operate(verb, known[name], bool(new_disk), environment)
            yes.terminate()
        assert shell.returncode == 0, "".join(printed)
        once_again = [("restart", first, False), ("restart", second, False)]
        assert asked[0] == ("restart", first, False) and sorted(asked[1:3]) == sorted(once_again)
        assert asked[3:] == [("stop", first, False), ("stop", second, False), ("stop", new, True)]
        assert set(client.metadata.list_cookies()) == set(known) - {first, second}
        for ledger_id in ledgers:
            reader = client.open_ledger(ledger_id)
            assert reader.last_add_confirmed == 19 and len(list(reader.read())) == 20
            assert not {first, second} & set(reader.metadata.fragments[0].ensemble)

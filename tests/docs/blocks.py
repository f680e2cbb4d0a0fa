"""The code blocks and commands of the README and docs/, and the tests that run them.

Law: the test that ``RUN`` names for a page runs its ``bash`` and ``python`` blocks as written, unless ``AGAIN`` names
another page with the same commands. Every other block except pictures and data is in ``SHOWN``, with a test that does the
same in another way, or with the reason why one machine can't. ``test_blocks`` checks that no block escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
PROGRAMS = "bash", "python"
# Languages of blocks that are not run, with the test that checks them.
DATA = {
    "text": "a picture, or what a command prints",
    "json": "tests/docs/test_formats.py",
    "hex": "tests/docs/test_formats.py",
}


class Block(NamedTuple):
    """A block of a page."""

    # from the root of the project
    page: str
    # empty for a block indented by four spaces instead of fenced
    language: str
    text: str

    @property
    def first(self) -> str:
        """The block's first line."""
        return self.text.strip().split("\n")[0]


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    lines = (ROOT / page).read_text("utf-8").split("\n")
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"( *)```(\w*).*", lines[number])
        if fence is not None:
            end = next(one for one in range(number + 1, len(lines)) if lines[one] == f"{fence[1]}```")
            yield Block(page, fence[2] or "none", "\n".join(lines[number + 1 : end]))
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block(page, "", "\n".join(line[4:] for line in lines[number:end]))
        else:
            number += 1
            continue
        number = end + 1 if fence is not None else end


SEVERAL_HOSTS = (
    "needs several hosts, or a server that is not part of Bookspark (Spark's master, YARN, Kubernetes, ZooKeeper)"
)
INSTALLS = "changes the environment that the tests run in"
A_CHECKOUTS = "the commands of a checkout, which run these tests, or run for long"
NO_COMMAND = "a connection string or a query, not a command"

# By page: the module that runs its ``bash`` and ``python`` blocks.
RUN = {
    "README.md": "tests/system/acceptance/test_installed_package.py",
    "docs/clusters/changes.md": "tests/system/acceptance/test_changes_page.py",
    "docs/decisions/no-filter-push-down.md": "tests/system/acceptance/test_spark_pages.py",
    "docs/durability.md": "tests/system/acceptance/test_spark_pages.py",
    "docs/guides/audits.md": "tests/system/acceptance/test_tutorial.py",
    "docs/guides/backup.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/bookkeeper.md": "tests/system/acceptance/test_copied_from_bookkeeper.py",
    "docs/guides/choices.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/disks.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/hosts.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/kafka.md": "tests/system/acceptance/test_spark_pages.py",
    "docs/guides/ledgers.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/measure.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/offload.md": "tests/system/acceptance/test_spark_pages.py",
    "docs/guides/python.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/repair.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/rows.md": "tests/system/acceptance/test_spark_pages.py",
    "docs/guides/services.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/sizing.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/spark.md": "tests/system/acceptance/test_spark_pages.py",
    "docs/guides/tls.md": "tests/system/acceptance/test_guides.py",
    "docs/guides/upgrade.md": "tests/system/acceptance/test_guides.py",
    "docs/metrics.md": "tests/system/acceptance/test_guides.py",
    "docs/promises.md": "tests/system/acceptance/test_promises.py",
    "docs/testing.md": "tests/docs/test_examples.py",
    "docs/tutorial.md": "tests/system/acceptance/test_tutorial.py",
}

# By page, then by the first words of a ``bash`` block: the page whose test runs the same commands. The words are the same
# except for the path. Not run twice, because a snapshot and an audit start Spark each.
AGAIN = {
    "docs/durability.md": {"bookspark snapshot --path": "README.md"},
    "docs/tutorial.md": {"bookspark snapshot --path": "README.md"},
}

# By page, then by the block's first words: the test that does the same in another way, or the reason why no test can.
SHOWN = {
    "README.md": {
        "scripts/run   ": "tests/system/acceptance/test_main_job.py",
        "python3 -m venv ~/bookspark-env": INSTALLS,
    },
    "docs/clusters/changes.md": {"bookspark cookie fix --bookie": "tests/operations/cli/test_cookie_commands.py"},
    "docs/guides/choices.md": {"bookspark cluster placement  ": "tests/system/cluster/test_racks.py"},
    "docs/clusters/kubernetes.md": {
        'cp -r "$(bookspark conf kubernetes)"': SEVERAL_HOSTS,
        "kubectl apply -f namespace.yaml": SEVERAL_HOSTS,
        "kubectl apply -f zookeeper.yaml": SEVERAL_HOSTS,
        "kubectl -n bookspark exec -i zookeeper-0": SEVERAL_HOSTS,
        "kubectl apply -f bookies.yaml": SEVERAL_HOSTS,
        "kubectl apply -f storage.yaml": SEVERAL_HOSTS,
        "bookspark bookie run --directory=/data/bookie": "tests/system/cluster/test_bookie_run.py",
        "bookspark bookie safe-to-stop --wait=235": "tests/operations/cli/test_safe_to_stop.py",
    },
    "docs/clusters/standalone.md": {
        "spark.authenticate  ": NO_COMMAND,
        "python3 -m venv /opt/bookspark": INSTALLS,
        "export SPARK_HOME=": SEVERAL_HOSTS,
        "$SPARK_HOME/bin/spark-class": SEVERAL_HOSTS,
        "export PYSPARK_PYTHON=/opt/bookspark/bin/python": SEVERAL_HOSTS,
        "bookspark stop-bookies --zookeeper zk1:2181": "tests/operations/cli/test_stop_bookies.py",
        "bookspark bookie run --create": "tests/system/cluster/test_bookie_run.py",
    },
    "docs/clusters/yarn.md": {
        "--conf spark.authenticate=true": NO_COMMAND,
        "python3 -m venv /opt/bookspark": INSTALLS,
        "pip install venv-pack": INSTALLS,
        "spark-submit --master yarn": SEVERAL_HOSTS,
    },
    "docs/clusters/zookeeper.md": {
        "dataDir=/var/lib/zookeeper": "tests/system/acceptance/test_three_zookeepers.py",
        "mkdir -p /var/lib/zookeeper": SEVERAL_HOSTS,
        "export BOOKSPARK_ZOOKEEPER=zk://zk1.example.org:2181,": SEVERAL_HOSTS,
    },
    "docs/console.md": {"bookspark console": "tests/operations/console/test_door.py"},
    "docs/contributing.md": {"scripts/setup": A_CHECKOUTS},
    "docs/decisions/without-the-journal.md": {"bookspark simulate --exhaustive": "tests/docs/test_examples.py"},
    "docs/guides/audits.md": {"spark-submit $(bookspark job snapshot)": "tests/spark/test_jobs.py"},
    "docs/guides/backup.md": {
        "cd /var/lib/zookeeper/version-2": SEVERAL_HOSTS,
        "bookspark bookie logs $DIRECTORY": "tests/operations/cli/test_bookie_commands.py",
    },
    "docs/guides/bookkeeper.md": {
        "spark-submit $(bookspark job copy_ledgers)": "tests/system/acceptance/test_copied_from_bookkeeper.py",
        "bookspark bookie collect $BOOKIE": "tests/operations/cli/test_bookie_commands.py",
    },
    "docs/guides/disks.md": {
        "bookspark audit --checksums --integrity-check": "tests/operations/cli/test_audit_commands.py",
        "bookspark cluster apply --replace-disk": "tests/system/acceptance/test_changes_page.py",
        "bookspark bookie accept-loss $DIRECTORY": "tests/operations/cli/test_bookie_commands.py",
    },
    "docs/guides/hosts.md": {
        "bookspark cluster apply --remove $BOOKIE": "tests/system/acceptance/test_changes_page.py"
    },
    "docs/guides/ledgers.md": {"bookspark bookie run --create": "tests/system/acceptance/test_guides.py"},
    "docs/guides/measure.md": {
        "bookspark bench peers ledger": "tests/operations/cli/test_bench.py",
        "bookspark bench ledger": "tests/operations/cli/test_bench.py",
    },
    "docs/guides/offload.md": {"spark-submit $(bookspark job offload)": "tests/system/acceptance/test_spark_pages.py"},
    "docs/guides/repair.md": {
        "bookspark autorecovery run": "tests/operations/cli/test_autorecovery_commands.py",
        "spark-submit --master … $(bookspark job autorecovery)": "tests/spark/test_autorecovery_service.py",
    },
    "docs/guides/tls.md": {
        "export BOOKSPARK_CONFIG=": "tests/system/cluster/test_security.py",
    },
    "docs/guides/upgrade.md": {"bookspark cluster apply --upgrade-to": "tests/system/acceptance/test_changes_page.py"},
    "docs/metrics.md": {
        "histogram_quantile(0.99": NO_COMMAND,
        "prometheus --config.file=": "tests/support/metrics/test_alerts.py",
    },
    "docs/security.md": {
        "zk://host1:2281,host2:2281/chroot": NO_COMMAND,
        "addauth digest us:password": SEVERAL_HOSTS,
    },
    "docs/testing.md": {
        "scripts/test ": A_CHECKOUTS,
        "bookspark replay FOLDER": "tests/operations/cli/test_replay_command.py",
        "bookspark simulate --exhaustive --entries 2 --crashes 1": "tests/lab/simulation/test_simulate_command.py",
        "bookspark simulate --exhaustive --no-fence-on-recovery-read": "tests/docs/test_examples.py",
    },
    "docs/tutorial.md": {
        "bookspark local --bookies 4": "tests/pages.py",
        "export BOOKSPARK_ZOOKEEPER=127.0.0.1:": "tests/pages.py",
    },
    "docs/why.md": {"bookspark why": "tests/operations/why/test_questions.py"},
}

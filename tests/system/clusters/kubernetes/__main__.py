"""The manifests of conf/kubernetes at a real API server, with Spark's own Kubernetes client beside it.

* every document is validated strictly, and a planted mistake of each kind is refused;
* ``fields.json``, which tests without a server use, matches this server;
* a driver of Spark, with the rights of its account in the manifests, requests executors: their pods are admitted under the
  namespace's pod security, and take the claims of the manifests; the next pod takes the claim of a lost pod; a clean stop of the
  driver leaves the claims. With the right to remove claims it removes them all, which shows the reason for that restriction.

There is no kubelet, so no container runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.awaiting import time_passes
from tests.processes import Output
from tests.system.clusters.kubernetes.api_server import ApiServer, RefusedError, api_server
from tests.system.clusters.kubernetes.fields import kinds_of, known_fields, taken_from, write
from tests.system.clusters.kubernetes.manifests import (
    ROOT,
    Document,
    all_documents,
    config_map,
    parse,
    pod_templates,
    texts,
)

SPACE = "bookspark"
DRIVER = "driver"
"""Token of the driver's account."""
_ACCOUNT = "system:serviceaccount:bookspark:bookspark-driver"
_SECONDS_MAX = 400.0
PLANTED = {
    "a field that is none": ("bookies", "readinessProbe:", "readynessProbe:"),
    "a field in the wrong place": ("bookies", "      automount", "      replicas: 3\n      automount"),
    "a number as text": ("bookies", "replicas: 3", 'replicas: "3"'),
    "a key that comes twice": ("bookies", "  replicas: 3", "  replicas: 3\n  replicas: 5"),
    "labels that don't fit the selector": (
        "bookies",
        "matchLabels:\n      app: bookies\n  template",
        "matchLabels:\n      app: b\n  template",
    ),
    "a volume that is none": (
        "bookies",
        "- name: temporary\n              mountPath",
        "- name: temporal\n              mountPath",
    ),
    "a port that can't be": ("bookies", "containerPort: 3181", "containerPort: 318100"),
    "a kind that is none": ("bookies", "kind: StatefulSet", "kind: StatfulSet"),
    "a right that is none": ("spark", "verbs: [get, list, watch]", "verb: [get, list, watch]"),
}


def main(arguments: list[str]) -> int:
    """Run all checks; returns 1 if one fails."""
    parser = argparse.ArgumentParser(prog="scripts/clusters kubernetes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write-fields", action="store_true", help="write fields.json anew, and do nothing else")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bookspark-kubernetes-") as folder:
        begun = time.monotonic()
        with api_server(Path(folder), {DRIVER: _ACCOUNT}) as server:
            _say(begun, "an API server is ready")
            if options.write_fields:
                write(taken_from(server.schemas(), kinds_of(all_documents())))
                return 0
            try:
                for check in (_judge, _refuse, _same_fields, _reuse_claims, _remove_claims):
                    begun = time.monotonic()
                    _say(begun, check(server))
            except (AssertionError, RefusedError) as error:
                print(f"does not hold: {error}", file=sys.stderr, flush=True)
                return 1
    return 0


def _say(begun: float, text: str) -> None:
    print(f"{time.monotonic() - begun:6.1f} s  {text}", flush=True)


def _judge(server: ApiServer) -> str:
    """Create the namespace, and validate everything else as it is in its file."""
    made = 0
    for text in texts().values():
        for part in text.split("\n---\n"):
            (document,) = parse(part)
            if document["kind"] == "Namespace":
                server.make(document)
            else:
                server.judge(document, part)
            for pod in pod_templates(document):
                _account(server, "default")
                server.judge(pod)
            made += 1
    return f"{made} documents are accepted with strict validation"


def _account(server: ApiServer, name: str) -> None:
    """Create an account, as a controller would."""
    with contextlib.suppress(RefusedError):
        server.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SPACE}})


def _refuse(server: ApiServer) -> str:
    for what, (file, right, wrong) in PLANTED.items():
        text = texts()[file]
        assert right in text, f"{right!r} is not in {file}"
        refused = []
        for part in text.replace(right, wrong, 1).split("\n---\n"):
            try:
                server.judge(_loose(part), part)
            except RefusedError as error:
                refused.append(str(error))
        assert len(refused) == 1, f"{what} was taken" if not refused else f"{what}: {refused}"
    return f"{len(PLANTED)} planted mistakes are refused"


def _loose(part: str) -> Document:
    """The kind and place of a document that may be invalid."""
    import yaml

    found: Document = yaml.safe_load(part)
    return found


def _same_fields(server: ApiServer) -> str:
    assert known_fields() == taken_from(server.schemas(), kinds_of(all_documents())), (
        "fields.json is not what this server knows: scripts/clusters kubernetes --write-fields"
    )
    return "fields.json is what this server knows"


def _reuse_claims(server: ApiServer) -> str:
    documents = all_documents()
    wanted = {one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"}
    for one in documents:
        if one["kind"] not in ("Namespace", "Pod"):
            server.make(one)
    with _driver(server, documents) as driver:
        # A pod that requests a claim of its own is removed again: Spark may not create a claim.
        first = driver.await_that(lambda: _all_there(server, wanted))
        lost = next(iter(first))
        server.ask("DELETE", f"/api/v1/namespaces/{SPACE}/pods/{lost}?gracePeriodSeconds=0")
        again = driver.await_that(lambda: _all_there(server, wanted))
        assert lost not in again
        assert _claims(server) == wanted, "Spark made no claim"
        driver.stop()
    assert _claims(server) == wanted, f"after a clean stop there are the claims {_claims(server)}"
    assert not _claims_of_executors(server), "executors are gone"
    return f"executors take the {len(wanted)} claims, also after one was lost; a clean stop of the driver leaves the claims"


def _remove_claims(server: ApiServer) -> str:
    """The same driver with the rights in Spark's own guide."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SPACE}/roles/bookspark-driver"
    role = server.ask("GET", path)
    for rule in role["rules"]:
        rule["verbs"] = ["*"]
    server.ask("PUT", path, role)
    with _driver(server, all_documents()) as driver:
        driver.await_that(lambda: len(_claims_of_executors(server)) == 3)
        driver.stop()
    left = _claims(server)
    assert not left, f"with every right, Spark left {left}: the note in spark.yaml is out of date"
    return "with the right to remove claims, a clean stop of the driver removes them all"


class _Driver:
    """A process of ``driver``."""

    def __init__(self, process: subprocess.Popen[str], output: Output) -> None:
        self._process, self._output = process, output

    def await_that(self, look: Callable[[], Any]) -> Any:
        """Wait until ``look`` returns a true value, while the driver lives."""
        deadline = time.monotonic() + _SECONDS_MAX
        while not (found := look()):
            assert self._process.poll() is None, "the driver has ended"
            assert time.monotonic() < deadline, "it did not come to that in time"
            time_passes(0.5)
        return found

    def stop(self) -> None:
        """Stop the driver cleanly."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.wait_for("stopped", _SECONDS_MAX)
        self._process.wait(60)


@contextlib.contextmanager
def _driver(server: ApiServer, documents: list[Document]) -> Iterator[_Driver]:
    """A driver with the settings of the manifests."""
    files = config_map(documents, "bookspark-driver")
    template = server.folder / "executor.yaml"
    template.write_text(files["executor.yaml"])
    secret = server.folder / "spark"
    secret.write_text("a secret that a Secret brings\n")
    lines = (line.split(None, 1) for line in files["spark-defaults.conf"].splitlines() if line[:1] not in ("", "#"))
    settings = {name: value.strip() for name, value in lines} | {
        "spark.master": f"k8s://{server.url}",
        "spark.app.name": "bookies",
        "spark.kubernetes.authenticate.oauthToken": DRIVER,
        "spark.kubernetes.authenticate.caCertFile": str(server.ca),
        "spark.kubernetes.driver.pod.name": _driver_pod(server, documents),
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.authenticate.secret.driver.file": str(secret),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.port": "0",
        "spark.blockManager.port": "0",
        "spark.ui.enabled": "false",
        # For a busy machine.
        "spark.kubernetes.driver.connectionTimeout": "120000",
        "spark.kubernetes.driver.requestTimeout": "120000",
        # No executor will ever register.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
    }
    log = server.folder / "driver.log"
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.clusters.kubernetes.driver"],
            cwd=ROOT,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None and process.stdout is not None
    driver = _Driver(process, Output(process.stdout))
    try:
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        yield driver
    except BaseException:
        told = [line for line in log.read_text().splitlines() if not line.startswith("\t")]
        print("\n".join(line[:300] for line in told[:60]), file=sys.stderr)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _driver_pod(server: ApiServer, documents: list[Document]) -> str:
    """Create the driver's pod and mark it ready, as a StatefulSet's controller and a kubelet would."""
    (owner,) = (
        one for one in documents if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "bookspark-driver"
    )
    template = owner["spec"]["template"]
    name = f"{owner['metadata']['name']}-0"
    path = f"/api/v1/namespaces/{SPACE}/pods"
    with contextlib.suppress(RefusedError):
        server.ask("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
    server.make(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": SPACE, **template["metadata"]},
            "spec": template["spec"],
        }
    )
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    server.ask("PATCH", f"{path}/{name}/status", json.dumps(ready), kind="application/merge-patch+json")
    return name


def _claims(server: ApiServer) -> set[str]:
    found = server.ask("GET", f"/api/v1/namespaces/{SPACE}/persistentvolumeclaims")["items"]
    return {one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]}


def _all_there(server: ApiServer, wanted: set[str]) -> dict[str, str]:
    """The claim of each executor's pod, if all claims are in use, each by one pod."""
    found = _claims_of_executors(server)
    return found if set(found.values()) == wanted and len(found) == len(wanted) else {}


def _claims_of_executors(server: ApiServer) -> dict[str, str]:
    """The claim of each executor's pod."""
    pods = server.ask("GET", f"/api/v1/namespaces/{SPACE}/pods?labelSelector=spark-role%3Dexecutor")["items"]
    return {
        pod["metadata"]["name"]: volume["persistentVolumeClaim"]["claimName"]
        for pod in pods
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume and "deletionTimestamp" not in pod["metadata"]
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The manifests of conf/kubernetes match the program: fields, commands, options, settings, ports and paths.

No cluster is needed. ``scripts/clusters kubernetes`` tries them at a real API server. Here a mistake of each kind is planted
too.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bookspark.operations.cli.main import command_line
from bookspark.operations.cli.terminal import settings
from bookspark.servers.daemon.bookie_process import ANSWER_SECONDS_MAX, STOP_SECONDS_MAX
from bookspark.spark.bookies.bookies_job import parse_arguments
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.client.client_config import client_config
from bookspark.store.metadata.zookeeper.layout import parse_address
from bookspark.store.settings import TABLES, read_settings
from tests.system.clusters.kubernetes.fields import kinds_of, known_fields, mistakes
from tests.system.clusters.kubernetes.manifests import (
    FOLDER,
    Container,
    Document,
    MistakeError,
    all_documents,
    containers,
    environment,
    expanded,
    mounted_files,
    parse,
    pod_templates,
    texts,
)

FIELDS = {"metadata.name": "bookies-0", "metadata.namespace": "bookspark", "spec.nodeName": "node-1"}
USAGE_ERROR: Any = typer.BadParameter.__base__
PAGES = {"/health", "/ready", "/metrics"}


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return all_documents()


class ParsedError(Exception):
    """The command would have started, with these arguments."""


@pytest.fixture(scope="module")
def command() -> Iterator[Any]:
    """The command line of ``bookspark``, whose commands do nothing."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        app = command_line()
        _spare(app, monkeypatch)
        yield typer.main.get_command(app)


def _spare(one: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in one.registered_commands:
        monkeypatch.setattr(command, "callback", _stub(command.callback))
    for group in one.registered_groups:
        if group.typer_instance is not None:
            _spare(group.typer_instance, monkeypatch)


def _stub(function: Any) -> Any:
    @functools.wraps(inspect.unwrap(function))
    def reached(**arguments: Any) -> None:
        raise ParsedError(arguments)

    return reached


@pytest.fixture
def parsed(command: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str], dict[str, str]], dict[str, Any]]:
    """Parses a command with our command line, without running it; returns its arguments."""

    def parse_line(line: list[str], variables: dict[str, str]) -> dict[str, Any]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            command.main(line, prog_name="bookspark", standalone_mode=False)
        except ParsedError as reached:
            arguments: dict[str, Any] = reached.args[0]
            return arguments
        except (USAGE_ERROR, Exception) as error:
            raise MistakeError(f"bookspark {' '.join(line)}: {error!r}") from error
        raise MistakeError(f"bookspark {' '.join(line)}: it only prints")

    yield parse_line
    settings.choose(None)


def our_lines(one: Container, variables: dict[str, str]) -> list[list[str]]:
    """The command lines of ``bookspark`` in a container: its command, its probes, its hooks."""
    command = [*one.container.get("command", ()), *one.container.get("args", ())]
    lines = [[expanded(part, variables, one.name) for part in command]]
    handlers = [one.container.get(f"{name}Probe", {}) for name in ("startup", "readiness", "liveness")]
    handlers += one.container.get("lifecycle", {}).values()
    # A kubelet expands nothing in probes and hooks.
    lines += [handler["exec"]["command"] for handler in handlers if "exec" in handler]
    return [line[1:] for line in lines if line[:1] == ["bookspark"]]


def check_command(
    one: Container, documents: list[Document], tmp_path: Path, parsed: Callable[..., dict[str, Any]]
) -> list[dict[str, Any]]:
    """Parse each command line of ``bookspark`` as in the container. Raises MistakeError."""
    variables = environment(one, FIELDS)
    for name in variables:
        if name.startswith("BOOKSPARK_") and f'envvar="{name}"' not in _SOURCES:
            raise MistakeError(f"{one.name}: nothing reads the variable {name}")
    files = mounted_files(one, documents)
    if "BOOKSPARK_CONFIG" in variables:
        path = variables["BOOKSPARK_CONFIG"]
        if path not in files:
            raise MistakeError(f"{one.name}: {path} is not mounted")
        variables["BOOKSPARK_CONFIG"] = str(tmp_path / "bookspark.toml")
        Path(variables["BOOKSPARK_CONFIG"]).write_text(files[path])
    return [parsed(line, variables) for line in our_lines(one, variables)]


_SOURCES = "\n".join(path.read_text() for path in (FOLDER.parents[1] / "bookspark/operations/cli").rglob("*.py"))


def ours(documents: list[Document]) -> list[Container]:
    return [one for one in containers(documents) if one.container["image"].startswith("bookspark-")]


def named(documents: list[Document], kind: str, name: str) -> Document:
    (found,) = (one for one in documents if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def check_ports(one: Container, documents: list[Document]) -> None:
    """Ports named by Services must be ports of the container, with the numbers in its command."""
    ports = {port["name"]: port["containerPort"] for port in one.container.get("ports", ())}
    labels = one.owner["spec"]["template"]["metadata"]["labels"]
    for service in (each for each in documents if each["kind"] == "Service"):
        if service["spec"]["selector"].items() <= labels.items():
            for port in service["spec"]["ports"]:
                if ports.get(port["name"]) != port["port"]:
                    raise MistakeError(f"Service {service['metadata']['name']}: {one.name} has no port {port}")


def check_probes(one: Container) -> None:
    """Probes of our containers don't share a port with strangers, and have enough time."""
    for name in ("startup", "readiness", "liveness"):
        probe = one.container.get(f"{name}Probe")
        if probe is None:
            continue
        if "exec" not in probe:
            raise MistakeError(f"{one.name}: the {name} probe asks where strangers may stand in its way")
        if probe["timeoutSeconds"] <= ANSWER_SECONDS_MAX:
            raise MistakeError(f"{one.name}: a {name} probe may take {ANSWER_SECONDS_MAX:g} s")


def check_pod(pod: Document) -> None:
    """A pod runs without privileges, writes nothing but its volumes, and names its images by full version with a line for the
    digest. Raises MistakeError."""
    spec, name = pod["spec"], pod["metadata"].get("name") or pod["metadata"]["labels"]["app"]
    context = spec.get("securityContext", {})
    if not (context.get("runAsNonRoot") and context.get("runAsUser")):
        raise MistakeError(f"{name}: it may run as root")
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        raise MistakeError(f"{name}: no seccomp profile")
    if spec.get("automountServiceAccountToken") is not (spec.get("serviceAccountName") is not None):
        raise MistakeError(f"{name}: a token of the API server that nobody needs, or none for an account")
    mounted = {volume["name"] for volume in spec["volumes"]}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        inner = container.get("securityContext", {})
        if inner.get("readOnlyRootFilesystem") is not True or inner.get("allowPrivilegeEscalation") is not False:
            raise MistakeError(f"{name}: {container['name']} may write to its image, or gain privileges")
        if inner.get("capabilities") != {"drop": ["ALL"]}:
            raise MistakeError(f"{name}: {container['name']} keeps capabilities")
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in mounted}
        if "/tmp" not in writable:
            raise MistakeError(f"{name}: {container['name']} has no /tmp to write to")


def check_policies(documents: list[Document]) -> None:
    """Nobody reaches a pod by default, and each port of a container is open to named pods or namespaces alone. Raises
    MistakeError."""
    policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    if {"podSelector": {}, "policyTypes": ["Ingress"]} not in policies:
        raise MistakeError("no policy closes every pod of the namespace")
    for policy in policies:
        for rule in policy.get("ingress", ()):
            if not rule.get("from") or {"namespaceSelector": {}} in rule["from"]:
                raise MistakeError(f"{policy['podSelector']}: a rule for everybody")
    for one in containers(documents):
        labels = one.owner["spec"]["template"]["metadata"]["labels"]
        rules = [
            rule
            for policy in policies
            if (wanted := policy["podSelector"].get("matchLabels")) and wanted.items() <= labels.items()
            for rule in policy["ingress"]
        ]
        opened = {port["port"] for rule in rules for port in rule["ports"]}
        there = {port["containerPort"] for port in one.container.get("ports", ())}
        if opened != there:
            raise MistakeError(f"{one.name}: its ports are {there}, and the policies are for {opened}")


def check_images(text: str) -> None:
    """Each image has a full version, and a line before it says where its digest goes. Raises MistakeError."""
    lines = [line.strip() for line in text.splitlines()]
    for before, line in itertools.pairwise(lines):
        if found := re.match(r"(?:image:|FROM|spark\.kubernetes\.container\.image) *(\S+)", line):
            name = found[1].partition("@")[0]
            if not re.search(r":\d+\.\d+\.\d+(-[\w.-]+)?$", name):
                raise MistakeError(f"{name} is no full version")
            if f"{name}@sha256:<digest>" not in before and "digest" not in before:
                raise MistakeError(f"{name}: no line says where its digest goes")


def check_zookeeper(document: Document) -> None:
    """ZooKeeper asks every session for its user, and starts no AdminServer. Raises MistakeError."""
    settings = dict(line.split("=", 1) for line in document["data"]["zoo.cfg"].splitlines() if line[:1] not in "# ")
    wanted = {
        "admin.enableServer": "false",
        "admin.snapshot.enabled": "false",
        "admin.restore.enabled": "false",
        "sessionRequireClientSASLAuth": "true",
        "4lw.commands.whitelist": "ruok",
    }
    for name, value in wanted.items():
        if settings.get(name) != value:
            raise MistakeError(f"zoo.cfg: {name} is {settings.get(name)}, not {value}")


def test_every_pod_runs_without_privileges_or_needless_tokens(documents: list[Document]) -> None:
    pods = [one if one["kind"] == "Pod" else one["spec"]["template"] for one in documents if _has_pods(one)]
    assert len(pods) == 5
    for pod in pods:
        check_pod(pod)


def _has_pods(document: Document) -> bool:
    return document["kind"] == "Pod" or "template" in (document.get("spec") or {})


def test_every_port_is_open_to_named_pods_alone(documents: list[Document]) -> None:
    check_policies(documents)


def test_images_have_full_versions_and_a_place_for_their_digest() -> None:
    for text in (*texts().values(), (FOLDER / "Dockerfile").read_text()):
        check_images(text)


def test_zookeeper_asks_for_users_and_has_no_admin_server(documents: list[Document]) -> None:
    check_zookeeper(named(documents, "ConfigMap", "zookeeper"))


def test_secrets_are_for_their_owner_alone_and_match_the_manifests(documents: list[Document], tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    told = subprocess.run(
        ["bash", str(FOLDER / "secrets.sh"), str(folder)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert folder.stat().st_mode & 0o777 == 0o700
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    # Each secret that a manifest mounts is made, with the files that settings name.
    made = {line.split()[6]: {part.rpartition("/")[2] for part in line.split()[7:]} for line in told.splitlines()}
    mounted = {
        volume["secret"]["secretName"]
        for one in containers(documents)
        for volume in one.pod["volumes"]
        if "secret" in volume and not volume["secret"].get("optional")
    }
    assert mounted == made.keys() and set().union(*made.values()) == files.keys()
    named_files = set(re.findall(r"/etc/bookspark-secret/(\w+)", "\n".join(texts().values())))
    assert named_files == made["bookspark-secret"]
    user, _, password = files["zookeeper"].strip().partition(":")
    assert f'user_{user}="{password}"' in files["jaas.conf"] and len(password) == 44
    assert len({files["secret"], files["spark"], password}) == 3
    again = subprocess.run(["bash", str(FOLDER / "secrets.sh"), str(folder)], capture_output=True, timeout=60)
    assert again.returncode != 0 and {path.name: path.read_text() for path in folder.iterdir()} == files


def test_spark_proves_a_secret_and_encrypts(documents: list[Document]) -> None:
    settings = named(documents, "ConfigMap", "bookspark-driver")["data"]["spark-defaults.conf"]
    told = dict(line.split(None, 1) for line in settings.splitlines() if line.startswith("spark."))
    for name in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert told[name].strip() == "true"
    assert told["spark.authenticate.secret.file"].strip() == "/etc/bookspark-secret/spark"


def test_every_manifest_has_only_known_fields(documents: list[Document]) -> None:
    fields = known_fields()
    assert kinds_of(documents) <= fields.keys()
    assert [mistake for one in documents for mistake in mistakes(one, fields)] == []


def test_every_command_in_the_manifests_parses(
    documents: list[Document], tmp_path: Path, parsed: Callable[..., Any]
) -> None:
    counted = [len(check_command(one, documents, tmp_path, parsed)) for one in ours(documents)]
    assert sum(counted) == 6, "bookie run, three probes, safe-to-stop, autorecovery run"


def test_ports_and_probes_match_the_containers(documents: list[Document]) -> None:
    for one in containers(documents):
        check_ports(one, documents)
    for one in ours(documents):
        check_probes(one)


def test_bookies_serve_the_ports_and_address_of_their_service(
    documents: list[Document], tmp_path: Path, parsed: Callable[..., Any]
) -> None:
    (bookie,) = (one for one in ours(documents) if one.container["name"] == "bookie")
    run, *_, stop = check_command(bookie, documents, tmp_path, parsed)
    ports = {port["name"]: port["containerPort"] for port in bookie.container["ports"]}
    assert (run["port"], run["metrics_port"]) == (ports["bookie"], ports["metrics"])
    service, space = bookie.owner["spec"]["serviceName"], bookie.owner["metadata"]["namespace"]
    assert run["advertised_address"] == f"bookies-0.{service}.{space}.svc.cluster.local:{run['port']}"
    assert named(documents, "Service", service)["spec"]["publishNotReadyAddresses"] is True
    assert run["bookie_id"] == "bookies-0" and stop["bookies"] == ["bookies-0"], "the pod asks about itself"
    annotations = bookie.owner["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(run["metrics_port"])
    assert annotations["prometheus.io/path"] in PAGES
    (directory,) = run["directory"]
    mounts = {mount["mountPath"] for mount in bookie.container["volumeMounts"] if mount["name"] == "data"}
    assert {str(parent) for parent in directory.parents} & mounts and str(directory) not in mounts
    # The hook has ended, and the bookie has stopped, before a kubelet kills it.
    grace = bookie.pod["terminationGracePeriodSeconds"]
    assert stop["wait"] + STOP_SECONDS_MAX < grace
    assert bookie_config(
        directories=["/data/bookie"],
        zookeeper=run["zookeeper"],
        host=run["host"],
        advertised_address=run["advertised_address"],
    )


def test_settings_in_config_maps_are_valid(documents: list[Document], tmp_path: Path) -> None:
    seen = 0
    for one in documents:
        for name, text in one["data"].items() if one["kind"] == "ConfigMap" else ():
            if not name.endswith(".toml"):
                continue
            # Settings in comments must be valid once a user uncomments them.
            every = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
            path = tmp_path / name
            for version in (text, every):
                path.write_text(version)
                tables = read_settings(path)
                assert tables.keys() <= TABLES.keys()
                bookie_config(directories=["/d"], zookeeper="z", **tables.get("bookie", {}))
                client_config(**tables.get("client", {}))
            seen += 1
            secrets = {
                value for table in tomllib.loads(every).values() for value in table.values() if "/" in str(value)
            }
            mounts = {mount["mountPath"] for each in ours(documents) for mount in each.container["volumeMounts"]}
            assert {secret.rpartition("/")[0] for secret in secrets} <= mounts
    assert seen == 2


def test_driver_job_accepts_its_arguments_and_matches_the_claims(documents: list[Document]) -> None:
    (driver,) = (one for one in ours(documents) if one.container["name"] == "driver")
    variables = environment(driver, FIELDS)
    command = [expanded(part, variables, driver.name) for part in driver.container["command"]]
    assert command[0].endswith("/spark-submit")
    job = next(number for number, part in enumerate(command) if part.endswith(".py"))
    assert command[job].endswith("/jobs/bookies.py")
    options = parse_arguments(command[job + 1 :])
    files = mounted_files(driver, documents)
    (properties,) = (part.partition("=")[2] for part in command if part.startswith("--properties-file="))
    told = dict(
        line.split(None, 1) for line in files[properties].splitlines() if line.strip() and not line.startswith("#")
    )
    told = {name: value.strip() for name, value in told.items()}
    assert all(name.startswith("spark.") for name in told)
    # One executor for each bookie, and one claim for each executor: Spark takes claims by its application's id, class and
    # size.
    claims = [one for one in documents if one["kind"] == "PersistentVolumeClaim"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.bookies"
    assert int(told["spark.executor.instances"]) == options.bookies == len(claims)
    for claim in claims:
        assert claim["metadata"]["labels"] == {"spark-app-selector": told["spark.app.id"]}
        assert claim["spec"]["storageClassName"] == told[f"{volume}.options.storageClass"]
        assert claim["spec"]["resources"]["requests"]["storage"] == told[f"{volume}.options.sizeLimit"]
        assert "ownerReferences" not in claim["metadata"]
    assert told[f"{volume}.options.claimName"] == "OnDemand"
    assert options.directory[0].startswith(told[f"{volume}.mount.path"] + "/")
    # Otherwise Spark would look only for claims older than 10 minutes, and end after 6 attempts to create one.
    assert told["spark.kubernetes.allocation.executor.timeout"] == "30s"
    assert told["spark.executor.maxNumFailures"] == str(2**31 - 1)
    for name in ("own", "reuse", "waitToReuse"):
        assert told[f"spark.kubernetes.driver.{name}PersistentVolumeClaim"] == "true"
    assert told["spark.executorEnv.BOOKSPARK_CONFIG"] in files
    assert told["spark.kubernetes.executor.podTemplateFile"] in files


def test_spark_driver_may_neither_create_nor_delete_claims(documents: list[Document]) -> None:
    """A driver that ends cleanly removes all claims of its application, if it may, and with them all entries."""
    role = named(documents, "Role", "bookspark-driver")
    for rule in role["rules"]:
        if {"persistentvolumeclaims", "*"} & set(rule["resources"]):
            assert set(rule["verbs"]) == {"get", "list", "watch"}


def test_all_manifests_name_the_same_zookeeper_servers(documents: list[Document]) -> None:
    servers = re.findall(
        r"^server\.\d=([\w.-]+):2888:3888$", named(documents, "ConfigMap", "zookeeper")["data"]["zoo.cfg"], re.M
    )
    ensemble = named(documents, "StatefulSet", "zookeeper")
    name, service = ensemble["metadata"]["name"], ensemble["spec"]["serviceName"]
    assert [one.split(".")[:2] for one in servers] == [
        [f"{name}-{k}", service] for k in range(ensemble["spec"]["replicas"])
    ]
    told = set(re.findall(r"zk://[\w.:,/?=-]+", "\n".join(texts().values())))
    assert len(told) == 1
    address = parse_address(told.pop())
    assert address.chroot and address.access.sasl_file
    assert address.servers == ",".join(f"{name}-{k}.{service}:2181" for k in range(len(servers)))


def test_bookies_are_disrupted_one_at_a_time_and_never_share_a_node(documents: list[Document]) -> None:
    for name in ("bookies", "zookeeper"):
        labels = named(documents, "StatefulSet", name)["spec"]["template"]["metadata"]["labels"]
        budget = named(documents, "PodDisruptionBudget", name)["spec"]
        assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
        pod = named(documents, "StatefulSet", name)["spec"]["template"]["spec"]
        (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}


PLANTED = {
    "a field that is none": ("bookies", "readinessProbe:", "readynessProbe:"),
    "a field in the wrong place": (
        "bookies",
        "      automountServiceAccountToken",
        "      replicas: 3\n      automountServiceAccountToken",
    ),
    "a number as text": ("bookies", "replicas: 3", 'replicas: "3"'),
    "a field that is missing": ("bookies", "  serviceName: bookies\n  replicas: 3", "  replicas: 3\n  selectors: {}"),
    "a key that comes twice": ("bookies", "  replicas: 3", "  replicas: 3\n  replicas: 5"),
    "an option that is none": ("bookies", "--metrics-port=8000", "--metric-port=8000"),
    "a value that is none": ("bookies", "--port=3181", "--port=70000"),
    "a command that is none": ("bookies", "safe-to-stop, ", "safe-to-halt, "),
    "a setting that is none": ("bookies", "lost_bookie_delay_seconds", "lost_bookies_delay_seconds"),
    "a variable that nobody reads": ("bookies", "name: BOOKSPARK_BOOKIE_ID", "name: BOOKSPARK_BOOKIE"),
    "a variable that is not set": ("bookies", "$(POD_NAME).bookies", "$(PODNAME).bookies"),
    "a settings file that is not mounted": (
        "bookies",
        "value: /etc/bookspark/bookspark.toml",
        "value: /etc/bookspark/b.toml",
    ),
    "a probe's command that is none": ("bookies", "bookie, alive, ", "bookie, live, "),
    "a probe at a port": (
        "bookies",
        "exec:\n              command: [bookspark, bookie, alive, --directory=/data/bookie]\n",
        "httpGet:\n              path: /health\n              port: metrics\n",
    ),
    "a port without a policy": ("bookies", "- port: 8000\n      from", "- port: 8001\n      from"),
    "a policy for everybody": (
        "zookeeper",
        'namespaceSelector:\n            matchLabels:\n              bookspark-clients: "true"\n',
        "namespaceSelector: {}\n",
    ),
    "an image that may be written to": (
        "spark",
        "readOnlyRootFilesystem: true",
        "readOnlyRootFilesystem: false",
    ),
    "a pod that runs as root": ("bookies", "runAsNonRoot: true", "runAsNonRoot: false"),
    "a pod without seccomp": ("spark", "type: RuntimeDefault", "type: Unconfined"),
    "a token that nobody needs": (
        "zookeeper",
        "automountServiceAccountToken: false",
        "automountServiceAccountToken: true",
    ),
    "an image of any version": ("zookeeper", "image: zookeeper:3.9.5", "image: zookeeper:3.9"),
    "an AdminServer": ("zookeeper", "admin.enableServer=false", "admin.enableServer=true"),
    "sessions without a user": ("zookeeper", "sessionRequireClientSASLAuth=true", "sessionRequireClientSASLAuth=false"),
    "a service's port that the pod does not have": ("bookies", "port: 3181\n", "port: 3182\n"),
}


def check_text(text: str, tmp_path: Path, parsed: Callable[..., Any]) -> None:
    """All checks of one file. Raises MistakeError."""
    documents = parse(text)
    for mistake in (mistake for one in documents for mistake in mistakes(one, known_fields())):
        raise MistakeError(mistake)
    for one in ours(documents):
        check_command(one, documents, tmp_path, parsed)
        check_ports(one, documents)
        check_probes(one)
    documents += [pod for one in documents for pod in pod_templates(one)]
    for document in documents:
        if _has_pods(document):
            check_pod(document if document["kind"] == "Pod" else document["spec"]["template"])
        if document["kind"] == "ConfigMap" and "zoo.cfg" in document["data"]:
            check_zookeeper(document)
    check_policies([*documents, *parse(texts()["namespace"])])
    check_images(text)


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_mistake_is_detected(planted: str, tmp_path: Path, parsed: Callable[..., Any]) -> None:
    file, right, wrong = PLANTED[planted]
    text = texts()[file]
    assert right in text
    check_text(text, tmp_path, parsed)
    with pytest.raises(MistakeError):
        check_text(text.replace(right, wrong, 1), tmp_path, parsed)

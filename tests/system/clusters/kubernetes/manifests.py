"""The manifests of conf/kubernetes as documents, and their parts that concern Bookspark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "conf/kubernetes"
ORDER = ("namespace", "storage", "zookeeper", "bookies", "autorecovery", "spark")
"""The order in which a cluster gets them."""

Document = dict[str, Any]


class MistakeError(Exception):
    """A manifest is wrong; the text says where and how."""


class _Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a duplicate key, of which YAML's reader silently keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise MistakeError(f"{', '.join(map(str, twice))} comes twice{node.start_mark}")
        return super().construct_mapping(node, deep)


def parse(text: str) -> list[Document]:
    """The documents of a YAML text. Raises MistakeError."""
    try:
        return [one for one in yaml.load_all(text, _Strict) if one is not None]
    except yaml.YAMLError as error:
        raise MistakeError(f"no YAML: {error}") from error


def texts() -> dict[str, str]:
    """The text of each file by its name without the suffix, in ``ORDER``."""
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    assert names == set(ORDER), f"ORDER names {ORDER}, and the folder has {sorted(names)}"
    return {name: (FOLDER / f"{name}.yaml").read_text() for name in ORDER}


def all_documents() -> list[Document]:
    """All documents of all files, in ``ORDER``, and the pod templates for Spark in ConfigMaps."""
    found = [one for text in texts().values() for one in parse(text)]
    return found + [pod for one in found for pod in pod_templates(one)]


def pod_templates(document: Document) -> list[Document]:
    """The pod templates in a ConfigMap, with the name and image that Spark adds."""
    if document["kind"] != "ConfigMap":
        return []
    found = [pod for name, text in document["data"].items() if name.endswith(".yaml") for pod in parse(text)]
    for pod in found:
        pod["metadata"] |= {"name": "template", "namespace": document["metadata"]["namespace"]}
        pod["spec"]["containers"][0].setdefault("image", "image")
    return found


class Container(NamedTuple):
    """A container of a pod template, with its pod and the owner of the pods."""

    owner: Document
    pod: Document
    container: Document

    @property
    def name(self) -> str:
        """For messages: ``StatefulSet bookies: bookie``."""
        return f"{self.owner['kind']} {self.owner['metadata']['name']}: {self.container['name']}"


def containers(documents: list[Document]) -> Iterator[Container]:
    """Every container of every pod template."""
    for one in documents:
        pod = one.get("spec", {}).get("template", {}).get("spec") if isinstance(one.get("spec"), dict) else None
        for container in pod["containers"] if pod else ():
            yield Container(one, pod, container)


def config_map(documents: list[Document], name: str) -> dict[str, str]:
    """The files of a ConfigMap. Raises MistakeError if there is none."""
    for one in documents:
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name:
            files: dict[str, str] = one["data"]
            return files
    raise MistakeError(f"there is no ConfigMap {name}")


def environment(one: Container, fields: dict[str, str]) -> dict[str, str]:
    """The variables of a container, as a kubelet makes them. ``fields``: the values of ``fieldRef``."""
    found: dict[str, str] = {}
    for variable in one.container.get("env", ()):
        source = variable.get("valueFrom")
        found[variable["name"]] = (
            fields[source["fieldRef"]["fieldPath"]] if source else expanded(variable["value"], found, one.name)
        )
    return found


def expanded(text: str, variables: dict[str, str], where: str) -> str:
    """The text with ``$(NAME)`` replaced, as a kubelet does in commands and variables. Raises MistakeError for an unset name,
    which a kubelet would leave unchanged."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise MistakeError(f"{where}: $({match[1]}) is not set")
        return variables[match[1]]

    return re.sub(r"\$\(([A-Za-z_]\w*)\)", value, text)


def mounted_files(one: Container, documents: list[Document]) -> dict[str, str]:
    """The files that ConfigMaps put into a container: text by path."""
    volumes = {volume["name"]: volume for volume in one.pod.get("volumes", ())}
    found = {}
    for mount in one.container.get("volumeMounts", ()):
        source = volumes.get(mount["name"], {}).get("configMap")
        if source:
            for name, text in config_map(documents, source["name"]).items():
                found[f"{mount['mountPath']}/{name}"] = text
    return found

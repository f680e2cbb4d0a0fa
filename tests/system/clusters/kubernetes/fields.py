"""The fields of Kubernetes' kinds, and a strict check of documents by them, without an API server.

``scripts/clusters kubernetes --write-fields`` took ``fields.json`` from a real API server: for each kind in the manifests, and
for each type in it, the names of the fields with their types. A ``!`` after the type marks a required field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("fields.json")
_PLAIN: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "quantity": (str, int, float),
    "int-or-string": (int, str),
    "any": (object,),
}
_SERVERS = ("status", "managedFields")
"""Fields that the API server and its controllers write, and no manifest."""
Fields = dict[str, dict[str, str]]


def known_fields() -> Fields:
    """Fields by the name of their type."""
    found: Fields = json.loads(FILE.read_text())
    return found


def mistakes(document: dict[str, Any], fields: Fields) -> Iterator[str]:
    """Mistakes in a document: unknown fields, values of another type, missing fields."""
    kind = f"{document.get('apiVersion')}/{document.get('kind')}"
    if kind not in fields:
        yield f"{kind} is no kind that is known"
        return
    name = document.get("metadata", {}).get("name", "without a name")
    yield from _of(document, kind, f"{document['kind']} {name}", fields)


def _of(value: Any, kind: str, where: str, fields: Fields) -> Iterator[str]:
    if kind.startswith("list of "):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, item in enumerate(value):
            yield from _of(item, kind.removeprefix("list of "), f"{where}[{number}]", fields)
    elif kind.startswith("map of "):
        if not isinstance(value, dict):
            yield f"{where} is no map"
            return
        for key, item in value.items():
            yield from _of(item, kind.removeprefix("map of "), f"{where}.{key}", fields)
    elif kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind in ("integer", "number")):
            yield f"{where} is no {kind}: {value!r}"
    elif not isinstance(value, dict):
        yield f"{where} is no {kind}"
    else:
        there = fields[kind]
        for name, item in value.items():
            if name not in there:
                yield f"{where} has no field {name}"
            else:
                yield from _of(item, there[name].rstrip("!"), f"{where}.{name}", fields)
        for name, type_ in there.items():
            if type_.endswith("!") and name not in value:
                yield f"{where} lacks the field {name}"


def kinds_of(documents: list[dict[str, Any]]) -> set[str]:
    """The kinds of these documents, such as ``apps/v1/StatefulSet``."""
    return {f"{one['apiVersion']}/{one['kind']}" for one in documents}


def write(fields: Fields) -> None:
    """Write ``fields.json``, a line for each type."""
    lines = (f" {json.dumps(name)}: {json.dumps(inner)}" for name, inner in fields.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def taken_from(schemas: dict[str, Any], kinds: set[str]) -> Fields:
    """The fields of ``kinds`` (``apps/v1/StatefulSet``) and of all types in them. ``schemas``: the schemas of all OpenAPI v3
    documents of an API server, by name."""
    found: Fields = {}
    names = {}
    for name, schema in schemas.items():
        for one in schema.get("x-kubernetes-group-version-kind", ()):
            group = f"{one['group']}/" if one["group"] else ""
            names[f"{group}{one['version']}/{one['kind']}"] = name
    wanted = [(kind, schemas[names[kind]]) for kind in sorted(kinds)]
    while wanted:
        kind, schema = wanted.pop()
        if kind in found:
            continue
        found[kind] = {}
        required = set(schema.get("required", ()))
        for field, inner in schema.get("properties", {}).items():
            if field in _SERVERS:
                continue
            type_ = _type(inner, schemas, wanted)
            found[kind][field] = type_ + ("!" if field in required else "")
    return dict(sorted(found.items()))


def _type(schema: dict[str, Any], schemas: dict[str, Any], wanted: list[tuple[str, Any]]) -> str:
    if "allOf" in schema:
        return _type(schema["allOf"][0], schemas, wanted)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        inner = schemas[name]
        if "properties" in inner:
            short = name.rpartition("io.k8s.")[2]
            wanted.append((short, inner))
            return short
        if name.endswith(".Quantity"):
            return "quantity"
        if inner.get("format") == "int-or-string" or "oneOf" in inner:
            return "int-or-string"
        return str(inner.get("type", "any")) if inner.get("type") != "object" else "any"
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema['items'], schemas, wanted)}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"map of {_type(inner, schemas, wanted)}" if isinstance(inner, dict) else "any"
        case None:
            return "any"
        case plain:
            return str(plain)

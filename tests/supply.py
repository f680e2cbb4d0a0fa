"""``python -m tests.supply``, for ``scripts/supply``: the jars in a bill of materials, and the hashes of Delta's jars.

sbom FILE      adds Spark's and Delta's jars to a CycloneDX document of Python packages
jars FOLDER    writes conf/jars.sha256 from the jars that Ivy fetched into FOLDER, without Spark's own
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pyspark

HASHES = Path(__file__).parents[1] / "conf/jars.sha256"
SPARKS = Path(pyspark.__file__).parent / "jars"


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def artifact(name: str) -> tuple[str, str]:
    """``jackson-core-2.13.5.jar`` → ``jackson-core``, ``2.13.5``."""
    found = re.fullmatch(r"(.+?)-(\d.*)\.jar", name)
    return (found[1], found[2]) if found else (name.removesuffix(".jar"), "")


def component(name: str, digest: str) -> dict[str, Any]:
    """A jar as CycloneDX has it. The file's name is what is known of it."""
    short, version = artifact(name)
    return {
        "type": "library",
        "bom-ref": f"jar:{name}",
        "name": short,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "properties": [{"name": "file", "value": name}],
    }


def add_jars(file: Path) -> int:
    """Add all jars to the document; returns their count."""
    document = json.loads(file.read_text())
    jars = {path.name: sha256(path) for path in sorted(SPARKS.glob("*.jar"))}
    jars |= {name: digest for digest, name in (line.split() for line in HASHES.read_text().splitlines())}
    document["components"] += [component(name, digest) for name, digest in jars.items()]
    file.write_text(json.dumps(document, indent=1) + "\n")
    return len(jars)


def write_hashes(folder: Path) -> None:
    """Write conf/jars.sha256. Ivy puts ``<organisation>_`` before a jar's name."""
    own = {artifact(path.name)[0] for path in SPARKS.glob("*.jar")}
    jars = [path for path in sorted(folder.glob("*.jar")) if artifact(path.name)[0].rpartition("_")[2] not in own]
    HASHES.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in jars))


if __name__ == "__main__":
    if sys.argv[1] == "sbom":
        print(f"{sys.argv[2]}: with {add_jars(Path(sys.argv[2]))} jars")
    else:
        write_hashes(Path(sys.argv[2]))

"""A real Kubernetes API server with its etcd, on this host's loopback, without kubelet, scheduler or controllers.

It validates and stores documents, and runs nothing. kube-apiserver is built from Go modules with ``go/go.mod`` at the first use
(about 8 minutes of processor time, 140 MB), and kept in ``.cache/clusters/kubernetes``. etcd comes from Debian's package,
unpacked there. Both end with the ``with`` statement.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.awaiting import time_passes
from tests.ports import free_port
from tests.system.clusters.kubernetes.manifests import ROOT

CACHE = ROOT / ".cache/clusters/kubernetes"
_GO = Path(__file__).with_name("go")
_BUILD_SECONDS_MAX = 3600
_START_SECONDS_MAX = 120.0
_REQUEST_SECONDS_MAX = 30.0
ADMIN = "admin"
"""Token of the administrator."""


class RefusedError(Exception):
    """The API server refused a request; the text is its reason."""


def kube_apiserver() -> Path:
    """Path of the program, which is built if missing."""
    program = CACHE / "kube-apiserver"
    if not program.exists():
        if shutil.which("go") is None:
            raise SystemExit(
                "scripts/clusters: Go is missing, which builds kube-apiserver; install it (go.dev, 1.24 or later)"
            )
        place = CACHE / "go"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(_GO, place)
        print("building kube-apiserver (once, about 9 minutes of processor time)", file=sys.stderr, flush=True)
        command = ["nice", "-n", "19", "go", "build", "-o", str(program), "k8s.io/kubernetes/cmd/kube-apiserver"]
        subprocess.run(command, cwd=place, check=True, timeout=_BUILD_SECONDS_MAX)
    return program


def etcd() -> Path:
    """Path of the program: from PATH, or unpacked from Debian's package."""
    if found := shutil.which("etcd"):
        return Path(found)
    program = CACHE / "etcd/usr/bin/etcd"
    if not program.exists():
        place = CACHE / "deb"
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", "etcd-server"], cwd=place, check=True, timeout=300)
        (package,) = place.glob("etcd-server_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(CACHE / "etcd")], check=True, timeout=60)
    return program


class ApiServer:
    """A running API server at ``url``, whose certificate's CA is in ``ca``."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.ca = folder / "certificates/apiserver.crt"
        self.folder = folder

    def ask(self, method: str, path: str, body: Any = None, *, token: str = ADMIN, kind: str = "") -> Any:
        """The response to a request. ``body``: a document, or text of the media type ``kind``. Raises RefusedError."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {token}")
        request.add_header("Content-Type", kind or "application/json")
        context = ssl.create_default_context(cafile=str(self.ca))
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS_MAX, context=context) as answer:
                text = answer.read().decode()
                return json.loads(text) if text[:1] in "{[" else text
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            with contextlib.suppress(ValueError, KeyError):
                text = json.loads(text)["message"]
            raise RefusedError(f"{error.code}: {text}") from None

    def path_of(self, document: dict[str, Any]) -> str:
        """The path at which documents of this kind are created."""
        api, kind = document["apiVersion"], document["kind"]
        root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
        there = {one["kind"]: one for one in self.ask("GET", root)["resources"] if "/" not in one["name"]}
        if kind not in there:
            raise RefusedError(f"there is no kind {kind} in {api}")
        space = f"/namespaces/{document['metadata'].get('namespace', 'default')}" if there[kind]["namespaced"] else ""
        return f"{root}{space}/{there[kind]['name']}"

    def judge(self, document: dict[str, Any], text: str = "") -> Any:
        """Validate the document strictly, without storing it. ``text``: its YAML, sent unchanged. Raises RefusedError."""
        path = f"{self.path_of(document)}?fieldValidation=Strict&dryRun=All"
        return self.ask("POST", path, text or document, kind="application/yaml" if text else "")

    def make(self, document: dict[str, Any]) -> Any:
        """Create a document, strictly validated. Raises RefusedError."""
        return self.ask("POST", f"{self.path_of(document)}?fieldValidation=Strict", document)

    def schemas(self) -> dict[str, Any]:
        """All schemas of all groups, by name."""
        found: dict[str, Any] = {}
        for one in self.ask("GET", "/openapi/v3")["paths"].values():
            found |= self.ask("GET", one["serverRelativeURL"])["components"].get("schemas", {})
        return found


@contextlib.contextmanager
def api_server(folder: Path, tokens: dict[str, str]) -> Iterator[ApiServer]:
    """Run an API server with its data in ``folder``, which is empty. ``tokens``: users by token, besides the administrator."""
    peers, clients, secure = (free_port() for _ in range(3))
    programs = [etcd(), kube_apiserver()]
    key = folder / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=60)
    users = {ADMIN: ("admin", "system:masters"), **{token: (user, "") for token, user in tokens.items()}}
    listed = folder / "tokens.csv"
    listed.write_text("".join(f'{token},{user},{token},"{group}"\n' for token, (user, group) in users.items()))
    store = f"http://127.0.0.1:{clients}"
    peer = f"http://127.0.0.1:{peers}"
    commands = (
        [
            *(str(programs[0]), "--data-dir", str(folder / "etcd")),
            *("--listen-client-urls", store, "--advertise-client-urls", store),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"default={peer}",
            ),
        ],
        [
            *(str(programs[1]), f"--etcd-servers={store}", "--bind-address=127.0.0.1", f"--secure-port={secure}"),
            *(f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={listed}", "--authorization-mode=RBAC"),
            *("--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc"),
            # Lists as streams need an etcd that is newer than Debian's. Clients work without them.
            "--feature-gates=WatchList=false",
            *(f"--service-account-signing-key-file={key}", f"--service-account-key-file={key}"),
        ],
    )
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context(open(folder / f"{Path(command[0]).name}.log", "wb"))
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            stack.callback(_end, process)
        server = ApiServer(secure, folder)
        _await_ready(server, process)
        yield server


def _await_ready(server: ApiServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        try:
            server.ask("GET", "/readyz")
            return
        except (OSError, RefusedError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                words = (server.folder / "kube-apiserver.log").read_text(errors="replace").splitlines()[-5:]
                raise SystemExit(f"the API server is not ready: {error}\n" + "\n".join(words)) from error
        time_passes(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

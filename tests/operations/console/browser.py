"""A headless Chromium, driven through its DevTools protocol over two pipes: no package and no port.

Law: every wait has a deadline, and the browser ends with the block. The tests treat every console message of a page as an
error.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS_MAX = 120.0
PHONE, DESKTOP = (390, 844), (1280, 800)
# Chromium reads from descriptor 3 and writes to 4, so the pipes are moved there.
_AS_3_AND_4 = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); r, w = os.dup(r), os.dup(w); "
    "os.dup2(r, 3); os.dup2(w, 4); [os.set_inheritable(one, True) for one in (3, 4)]; os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """Runs until ``close``."""

    def __init__(self, folder: Path) -> None:
        assert BROWSER is not None
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
        options = (*options, "--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run", "about:blank")
        with (folder / "stderr").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _AS_3_AND_4, str(reads), str(writes), BROWSER, *options],
                pass_fds=(reads, writes),
                stderr=log,
                stdout=log,
                start_new_session=True,
            )
        os.close(reads)
        os.close(writes)
        self._ids = itertools.count(1)
        self._buffer = b""
        # Messages in the pages' consoles.
        self.told: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._to)
        os.close(self._from)
        # Chromium's helper processes are in its process group.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a request and return the answer."""
        number = next(self._ids)
        asked = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            found = self._next(deadline, method)
            if found.get("id") == number:
                assert "error" not in found, (method, found)
                return found.get("result", {})
            if found.get("method") == "Log.entryAdded":
                self.told.append(found["params"]["entry"]["text"])
            if found.get("method") == "Runtime.exceptionThrown":
                self.told.append(json.dumps(found["params"]))

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer {what}"
            more = os.read(self._from, 1 << 16)
            assert more, f"the browser ended at {what}"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def page(self, size: tuple[int, int] = DESKTOP, dark: bool = False, scale: float = 1.0) -> Tab:
        """Open a new page of that size."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, session, target, size, dark, scale)


class Tab:
    """One page of a browser."""

    def __init__(
        self, browser: Browser, session: str, target: str, size: tuple[int, int], dark: bool, scale: float
    ) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.size = size
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.send(f"{domain}.enable")
        phone = size[0] < 600
        self.send(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self._target)

    def js(self, expression: str) -> Any:
        """Evaluate a script expression in the page; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def show(self, url: str, until: str = "!document.querySelector('.waiting')") -> None:
        """Load a page and wait until its content has arrived."""
        self.send("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete' && {until}", url)

    def wait(self, condition: str, what: str = "") -> None:
        """Wait until the expression holds."""
        patience = int(1000 * SECONDS_MAX / 2)
        looks = f"""new Promise((found, lost) => {{
            const ends = Date.now() + {patience};
            const look = () => ({condition}) ? found(true) : Date.now() > ends ? found(false) : setTimeout(look, 20);
            look();
        }})"""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            found = self.send("Runtime.evaluate", expression=looks, returnByValue=True, awaitPromise=True)
            # While another page loads, the script of the previous page ends without a value.
            if found.get("result", {}).get("value") is True:
                return
        raise AssertionError(f"never: {condition} {what}: {self.js('document.body.innerText')[:2000]}")

    def press(self, key: str, code: int, shift: bool = False) -> None:
        """Press and release a key."""
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="rawKeyDown", **fields)
        self.send("Input.dispatchKeyEvent", type="keyUp", **fields)

    def names(self) -> list[tuple[str, str]]:
        """Role and name of every node of the accessibility tree."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(one.get("role", {}).get("value", "")), str(one.get("name", {}).get("value", "")))
            for one in nodes
            if not one.get("ignored")
        ]

    def picture(self, height: int | None = None) -> bytes:
        """A PNG of the page from its top, ``height`` px high; None: the height of the window."""
        clip = {"x": 0, "y": 0, "width": self.size[0], "height": height or self.size[1], "scale": 1}
        found = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

"""A headless Chromium for tests, spoken to over its DevTools pipe: no port, no driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PATIENCE = 60.0


def find_chromium() -> str | None:
    """Return Chromium's path, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One page of a headless Chromium, with a new profile.

    Console errors, uncaught exceptions and requests are kept in ``errors`` and ``requests``.
    """

    def __init__(self, profile: Path) -> None:
        binary = find_chromium()
        assert binary is not None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        self._loaded = False
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        own = ("--remote-debugging-pipe", f"--user-data-dir={profile}")
        # Chromium reads commands from file 3 and writes answers to file 4.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            [*("bash", "-c", command, binary), *FLAGS, *own, "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(to_read)
        os.close(to_write)
        targets = self._call("Target.getTargets", session=None)["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self._call(
            "Target.attachToTarget", session=None, targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._call("Browser.close", session=None)
            self._process.wait(PATIENCE)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def size(self, width: int, height: int) -> None:
        """Set the size of the page; a narrow one is a phone."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def dark(self, on: bool) -> None:
        """Prefer dark or light colours."""
        value = "dark" if on else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def open(self, page: Path) -> None:
        """Load a file and wait until it is loaded."""
        self.errors.clear()
        self.requests.clear()
        self._loaded = False
        self._call("Page.navigate", url=page.absolute().as_uri())
        end = time.monotonic() + PATIENCE
        while not self._loaded:
            assert time.monotonic() < end, f"{page} did not load"
            self._take(end)

    def run(self, script: str) -> Any:
        """Return the value of an expression; promises are awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)

    def move(self, selector: str, across: float) -> None:
        """Move the mouse over an element, at a share of its width."""
        self.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.run(
            f"(({{x, y, width, height}}) => [x, y, width, height])"
            f"(document.querySelector('{selector}').getBoundingClientRect())"
        )
        self._call(
            "Input.dispatchMouseEvent", type="mouseMoved", x=x + width * across, y=y + height / 2
        )

    def key(self, name: str) -> None:
        """Press and release a key."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, " ": 32}
        values = {"key": name, "windowsVirtualKeyCode": codes[name]}
        if name == " ":
            values["text"] = " "
        self._call("Input.dispatchKeyEvent", type="keyDown", **values)
        self._call("Input.dispatchKeyEvent", type="keyUp", **values)

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, session: str | None = "", **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session == "":
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            answer = self._take(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _take(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            assert ready, "Chromium gave no answer"
            part = os.read(self._read, 1 << 16)
            assert part, f"Chromium ended with {self._process.poll()}"
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message

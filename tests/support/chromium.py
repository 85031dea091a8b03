"""A headless Chromium for tests, controlled over its DevTools pipe: no port, no driver."""

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
TIMEOUT = 60.0
"""Seconds to wait for anything that the browser does."""


def find_chromium() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One page of a headless Chromium.

    Console errors and uncaught exceptions are collected in ``errors``, the addresses that the
    page requests in ``requests``.

    Parameters
    ----------
    profile : Path
        An empty folder for the browser's profile.
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
        flags = (*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}")
        # Chromium reads commands from file descriptor 3 and writes answers to descriptor 4.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, binary, *flags, "about:blank"],
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
            self._process.wait(TIMEOUT)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def set_size(self, width: int, height: int) -> None:
        """Set the size of the window; a narrow one counts as a phone."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer_dark(self, dark: bool) -> None:
        """Make the browser ask for dark colours, or for light ones."""
        value = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def open(self, page: Path | str) -> None:
        """Open an HTML file, or an address, and wait until it is loaded."""
        self.errors.clear()
        self.requests.clear()
        self._loaded = False
        url = page if isinstance(page, str) else page.absolute().as_uri()
        self._call("Page.navigate", url=url)
        end = time.monotonic() + TIMEOUT
        while not self._loaded:
            assert time.monotonic() < end, f"{page} did not load"
            self._receive(end)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + TIMEOUT
        while not self.evaluate(script):
            assert time.monotonic() < end, f"did not become true: {script}"
            time.sleep(0.02)

    def move_mouse(self, selector: str, across: float) -> None:
        """Move the mouse over an element, to a fraction of its width from the left."""
        self.evaluate(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.evaluate(
            f"(({{x, y, width, height}}) => [x, y, width, height])"
            f"(document.querySelector('{selector}').getBoundingClientRect())"
        )
        self._call(
            "Input.dispatchMouseEvent", type="mouseMoved", x=x + width * across, y=y + height / 2
        )

    def press(self, name: str) -> None:
        """Press and release a key."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, " ": 32}
        values = {"key": name, "windowsVirtualKeyCode": codes[name]}
        if name == " ":
            values["text"] = " "
        self._call("Input.dispatchKeyEvent", type="keyDown", **values)
        self._call("Input.dispatchKeyEvent", type="keyUp", **values)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Write a PNG of the whole page, or of what the window shows."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, session: str | None = "", **params: Any) -> dict[str, Any]:
        """Send a DevTools command to the page, or to the browser if ``session`` is None."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session == "":
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, end: float) -> dict[str, Any]:
        """Return the next message of the browser; collect errors and requests."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            assert ready, "Chromium did not answer in time"
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

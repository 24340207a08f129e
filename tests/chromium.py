"""A page in headless Chromium, through its DevTools protocol.

Needs the browser and tornado (it comes with ipykernel), and no other driver.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Visit(NamedTuple):
    requests: list[str]  # every address asked for
    errors: list[str]  # uncaught exceptions, console errors, and what the browser logs as one
    values: list[Any]  # of the expressions
    screenshot: bytes  # PNG


@contextlib.contextmanager
def browser() -> Iterator[int]:
    """A browser of its own with an empty profile; gives the port it listens on."""
    command = find()
    assert command is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run"]
        process = subprocess.Popen(
            [command, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield _port(Path(profile) / "DevToolsActivePort", process)
        finally:
            process.terminate()
            process.wait(timeout=20)


def _port(file: Path, process: subprocess.Popen) -> int:
    for _ in range(300):
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        if process.poll() is not None:
            raise RuntimeError(f"the browser ended at once, with status {process.returncode}.")
        time.sleep(0.1)
    raise RuntimeError("the browser did not open its port within 30 s.")


def visit(
    port: int,
    url: str,
    *,
    width: int,
    height: int,
    expressions: Sequence[str] = (),
    colours: str = "light",
    whole_page: bool = False,
) -> Visit:
    """Load a page at a window size, evaluate JavaScript on it and take its picture."""
    new = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
    with urllib.request.urlopen(new, timeout=20) as answer:
        address = json.load(answer)["webSocketDebuggerUrl"]
    session = _Session(address)
    return asyncio.run(session.run(url, width, height, expressions, colours, whole_page))


class _Session:
    def __init__(self, address: str):
        self.address, self.count, self.events = address, 0, []

    async def call(self, method: str, **params) -> dict:
        self.count += 1
        await self.socket.write_message(
            json.dumps({"id": self.count, "method": method, "params": params})
        )
        while (message := await self.next()).get("id") != self.count:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    async def next(self, seconds: float = 30.0) -> dict:
        return json.loads(await asyncio.wait_for(self.socket.read_message(), seconds))

    async def run(self, url, width, height, expressions, colours, whole_page) -> Visit:
        from tornado.websocket import websocket_connect

        # A screenshot is one message.
        self.socket = await websocket_connect(self.address, max_message_size=2**26)
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": colours}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(await self.next())
        values = []
        for expression in expressions:
            options = {"expression": expression, "returnByValue": True, "awaitPromise": True}
            found = await self.call("Runtime.evaluate", **options)
            if "exceptionDetails" in found:
                raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
            values.append(found["result"].get("value"))
        picture = await self.call("Page.captureScreenshot", captureBeyondViewport=whole_page)
        await self.drain(0.5)
        self.socket.close()
        while await asyncio.wait_for(self.socket.read_message(), 10) is not None:
            pass  # until it is closed on both sides
        return Visit(_requests(self.events), _errors(self.events), values, _png(picture))

    async def drain(self, seconds: float) -> None:
        """Whatever the page does a little after it was loaded."""
        with contextlib.suppress(TimeoutError):
            while True:
                self.events.append(await self.next(seconds))


def _png(picture: dict) -> bytes:
    return base64.b64decode(picture["data"])


def _requests(events: list[dict]) -> list[str]:
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def _errors(events: list[dict]) -> list[str]:
    out = []
    for event in events:
        method, params = event["method"], event.get("params", {})
        if method == "Runtime.exceptionThrown":
            out.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            out.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            out.append(params["entry"]["text"])
    return out

"""A headless Chromium that tests drive by the DevTools protocol, over a pipe."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """`with Browser(folder) as page: page.open(address); page.value("document.title")`."""

    def __init__(self, folder: Path, width: int = 1400, height: int = 1000) -> None:
        self.events: list[dict[str, Any]] = []
        self._session, self._count, self._rest = {}, 0, b""
        (commands, self._commands), (self._answers, answers) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (commands, answers)]

        def place() -> None:
            for end, number in zip(theirs, (3, 4), strict=True):  # where Chromium expects the pipe
                os.dup2(end, number)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={folder}", f"--window-size={width},{height}"]
        self._process = subprocess.Popen(
            [BROWSER, *options], pass_fds=(3, 4), preexec_fn=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in (commands, answers, *theirs):
            os.close(end)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        for end in (self._commands, self._answers):
            os.close(end)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive before it are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def load(self, address: str) -> None:
        """Open a page and wait until it and its pictures are there."""
        self.open(address)
        self.wait(f"document.readyState == 'complete' && location.href == {json.dumps(address)}", 60)
        drawn = "Promise.all([...document.images].map((each) => each.decode().catch(() => null)))"
        self.value(f"Promise.race([{drawn}, new Promise((late) => setTimeout(late, 10000))]).then(() => true)")

    def value(self, expression: str) -> Any:
        """A JavaScript expression's value, of a promise what it resolves to."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", expression))
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"after {seconds} s still not: {expression}"
            time.sleep(0.2)
        return found

    def complaints(self) -> list[str]:
        """What the browser's log has above information, uncaught errors, and answers of 400 and more."""
        found = []
        for event in self.events:
            facts = event.get("params", {})
            if event["method"] == "Network.responseReceived" and facts["response"]["status"] >= 400:
                found.append(f"{facts['response']['status']} {facts['response']['url']}")
            elif event["method"] == "Log.entryAdded" and facts["entry"]["level"] in ("warning", "error"):
                found.append(f"{facts['entry']['level']}: {facts['entry']['text']} {facts['entry'].get('url', '')}")
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(facts["exceptionDetails"]))
        return found

    def screen(self, path: Path) -> None:
        """A picture of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

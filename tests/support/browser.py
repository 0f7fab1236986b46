"""A page in a real browser: Chromium without a window, spoken to through a pipe (the DevTools protocol)."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENS = [(*size, dark) for size in ((1280, 900), (390, 844)) for dark in (False, True)]
AXE_RUN = """axe.run().then((found) => found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes[0].html]))"""


class Tab:
    def __init__(self, write, read):
        self._write, self._read, self._left, self._last = write, read, b"", 0
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.problems = []  # what the console says of errors, and every address that the page asks for
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self):
        while b"\0" not in self._left:
            assert select.select([self._read], [], [], 120)[0], "the browser does not answer"
            part = os.read(self._read.fileno(), 1 << 20)
            assert part, "the browser is gone"
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        message = json.loads(text)
        kind, said = message.get("method"), message.get("params")
        if kind == "Runtime.exceptionThrown":
            self.problems.append(said["exceptionDetails"]["exception"].get("description", "an exception"))
        elif kind == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(said["entry"]["text"])
        elif kind == "Network.requestWillBeSent" and not said["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(said["request"]["url"])
        return message

    def open(self, file, *, width=1280, height=900, dark=False):
        self._screen = width, height, dark
        self._show_on(*self._screen)
        self.call("Page.navigate", url=file.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def _show_on(self, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)

    def inaccessible(self):
        """What axe-core finds serious about the page as it is now: on a desk and a phone, light and dark.

        The environment variable AXE names axe.min.js of the npm package axe-core; without it, nothing is found.
        """
        if not (source := os.environ.get("AXE")):
            return []
        if self.run("typeof axe === 'undefined'"):
            self.run(f"{Path(source).read_text()}; 0")
        found = []
        for screen in SCREENS:
            self._show_on(*screen)
            found += [(*screen, *one) for one in self.run(AXE_RUN)]
        self._show_on(*self._screen)
        return found

    def run(self, script):
        """The value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, selector, *, click=False):
        """The mouse onto an element."""
        x, y = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); "
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, file):
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def tab():
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as home:

        def wire():  # the browser reads file descriptor 3 and writes to 4; first out of their way, whatever they are
            ours, theirs = os.dup(to_browser), os.dup(to_us)
            os.dup2(ours, 3)
            os.dup2(theirs, 4)

        options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking"
        process = subprocess.Popen(
            [CHROMIUM, *options.split(), "--remote-debugging-pipe", f"--user-data-dir={home}"],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        with os.fdopen(from_us, "wb") as write, os.fdopen(from_browser, "rb", buffering=0) as read:
            try:
                yield Tab(write, read)
            finally:
                process.kill()
                process.wait()

"""A headless Chromium, driven over its DevTools pipe with nothing but the standard library."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT = 60

# Keys that are not the character that they write.
CODES = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35}


def executable():
    """The browser of this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in one browser process."""

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="pmapx-browser-")
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # Above 4, so that putting one in its place does not overwrite the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]

        def put_in_place():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [
                executable(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage", "--disable-extensions", "--remote-debugging-pipe",
                f"--user-data-dir={self._folder}", "about:blank",
            ],
            pass_fds=(3, 4), preexec_fn=put_in_place,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (commands, answers, *ends):
            os.close(end)
        self._number = 0
        self._received = b""
        self.events = []
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        """Send a command and return what it answers; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            assert select.select([self._read], [], [], max(left, 0))[0], "no answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser ended"
            self._received += chunk
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1280, height=800, dark=False):
        """Load a file; returns when its scripts have run."""
        self.look(width, height, dark)
        self.events.clear()
        self.send("Page.navigate", url="about:blank")
        self.events.clear()
        self.send("Page.navigate", url=path if "://" in str(path) else path.as_uri())
        self.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")

    def look(self, width=1280, height=800, dark=False):
        """Set the size of the window and what the system prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def value(self, expression):
        """The value of an expression of JavaScript in the page."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition):
        """Wait until an expression is true."""
        deadline = time.monotonic() + TIMEOUT
        while not self.value(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def press(self, *keys):
        """Press keys as a person does."""
        for key in keys:
            code = CODES.get(key, ord(key.upper()) if len(key) == 1 else 0)
            shared = {"key": key, "windowsVirtualKeyCode": code}
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **shared)
            self.send("Input.dispatchKeyEvent", type="keyUp", **shared)

    def click(self, selector):
        """Click in the middle of an element."""
        x, y = self.value(
            f"(() => {{ const r = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path):
        """Write what is seen to a PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def pdf(self):
        """The page as it would be printed."""
        answer = self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    def complaints(self):
        """Errors, warnings and requests of the page since it was opened, but for itself."""
        self.value("0")
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif event.get("method") == "Log.entryAdded":
                found.append(parameters["entry"]["text"])
            elif event.get("method") == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if parameters.get("type") != "Document":
                    found.append(url)
        return found

    def close(self):
        """End the browser."""
        with contextlib.suppress(Exception):
            self._session = None
            self.send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

"""A person at the page of `serve`."""

import json
import os
from pathlib import Path

UNTIL = """new Promise((done, failed) => {{
  const last = Date.now() + 90000;
  const look = () => ({}) ? done(true) : Date.now() < last ? setTimeout(look, 20) : failed(Error('still not: ' + {}));
  look();
}})"""


def until(condition):
    return UNTIL.format(condition, json.dumps(condition))


class Reviewer:
    """A person at the page: clicks and keys."""

    def __init__(self, page):
        self.page = page

    def key(self, key, code=None, **more):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" and not more else {}
            self.page.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, **text, **more)

    def type(self, text):
        self.page.call("Input.insertText", text=text)

    def edit(self, text):
        """In the place of the caption; not saved."""
        self.key("e")
        self.until("document.activeElement.id === 'caption'")
        self.page.run("document.querySelector('#caption').select()")
        self.type(text)

    def until(self, condition):
        self.page.run(until(condition))

    def text(self, selector):
        return self.page.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def screenshot(self, name):
        if shots := os.environ.get("SCREENSHOTS"):
            self.page.screenshot(Path(shots) / f"{name}.png")

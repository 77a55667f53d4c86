# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, which notices scripts, requests and errors that a page must not have."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

FOLDER = Path(__file__).parents[2] / ".tools/chromium"
LEFT_OUT = FOLDER.with_name("chromium.left-out")
MISSING = f"there is no {FOLDER}; make .tools/chromium/.stamp fetches it"
COLOURS = 128
# Nothing but this machine is resolved, whatever a page asks for.
OPTIONS = (
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--no-proxy-server",
    "--hide-scrollbars",
)


class Visitor:
    """One browser window with cookies of its own.

    :param server: the url that pages may load from, as ``http://127.0.0.1:8080``; empty for a file, which
        may load nothing.
    """

    def __init__(self, context: Any, server: str = "") -> None:
        self._server = server
        self._opened: set[str] = set()
        self.page: Any = context.new_page()
        self.requests: list[str] = []
        """What pages wanted from elsewhere; they did not get it."""
        self.scripts: list[str] = []
        """Urls of documents and files whose scripts the browser read, scripts in attributes included."""
        self.errors: list[str] = []
        """Errors in the console, and what no script caught."""
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        context.route("**/*", self._ask)
        debugger = context.new_cdp_session(self.page)
        debugger.on("Debugger.scriptParsed", self._parsed)
        debugger.send("Debugger.enable")

    def open(self, url: str) -> Any:
        """Open a path of the server, or a file's url; returns the answer."""
        url = f"{self._server}{url}" if url.startswith("/") else url
        self._opened.add(url)
        return self.page.goto(url)

    def open_file(self, path: Path) -> None:
        """Open a file of this machine."""
        self.open(path.absolute().as_uri())

    def log_in(self, username: str, password: str) -> None:
        """Log in to Airflow as its form does, and keep the cookie."""
        self.open("/")  # leads to the form
        self.page.get_by_label("Username").fill(username)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "/auth/login" not in url)
        self.errors.clear()  # before it, Airflow's page was refused

    def picture(self, path: Path, **options: Any) -> Path:
        """Write what the page shows as a PNG of few colours.

        :param options: of Playwright's ``screenshot``, such as ``full_page`` and ``clip``.
        """
        from PIL import Image

        shown = Image.open(io.BytesIO(self.page.screenshot(animations="disabled", **options)))
        few = shown.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
        return path

    def assert_quiet(self) -> None:
        """Fail on an error in the console and on a request to elsewhere."""
        assert (self.errors, self.requests) == ([], [])

    def assert_static(self) -> None:
        """Fail on those, and on a script."""
        self.assert_quiet()
        assert self.scripts == []

    def _ask(self, route: Any) -> None:
        url = route.request.url
        own = self._server and urlsplit(url)[:2] == urlsplit(self._server)[:2]
        if own or url.partition("#")[0] in self._opened:
            route.continue_()
        else:
            self.requests.append(url)
            route.abort()

    def _said(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _parsed(self, script: dict[str, Any]) -> None:
        if script["url"]:  # Playwright's own have none
            self.scripts.append(script["url"])


class Chromium:
    """A running browser."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    @contextmanager
    def visitor(self, server: str = "", width: int = 1200, height: int = 800) -> Iterator[Visitor]:
        """Open a window with cookies of its own."""
        context = self._browser.new_context(viewport={"width": width, "height": height})
        try:
            yield Visitor(context, server)
        finally:
            context.close()


@contextmanager
def chromium(home: Path) -> Iterator[Chromium]:
    """Run the browser with a folder of its own and nothing of this user's.

    :param home: an empty folder.
    """
    from playwright.sync_api import sync_playwright

    env = {
        "HOME": str(home),
        "PATH": "",
        "LD_LIBRARY_PATH": str(FOLDER / "lib"),
        "FONTCONFIG_FILE": str(_fonts(home)),
    }
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=FOLDER / "chromium", args=list(OPTIONS), env=env, chromium_sandbox=False
        )
        try:
            yield Chromium(browser)
        finally:
            browser.close()


def _fonts(home: Path) -> Path:
    """Write the settings for fonts: those beside Chromium, and matplotlib's, which know more alphabets."""
    matplotlib = find_spec("matplotlib")
    assert matplotlib is not None
    assert matplotlib.origin is not None
    folders = (FOLDER / "fonts", Path(matplotlib.origin).parent / "mpl-data/fonts/ttf")
    listed = "".join(f"<dir>{folder}</dir>" for folder in folders)
    names = {"sans-serif": "Open Sans", "monospace": "DejaVu Sans Mono", "serif": "DejaVu Serif"}
    preferred = "".join(
        f"<alias><family>{kind}</family><prefer><family>{name}</family></prefer></alias>"
        for kind, name in names.items()
    )
    path = home / "fonts.conf"
    path.write_text(f"<fontconfig>{listed}<cachedir>{home / 'fonts'}</cachedir>{preferred}</fontconfig>")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The Chromium that .ci/chromium.py fetched; CI has it, or says why it could not be fetched.

    A module's, because Playwright keeps an event loop in this thread, beside which no other can run.
    """
    if not (FOLDER / "chromium").exists():
        reason = LEFT_OUT.read_text("utf-8") if LEFT_OUT.exists() else None
        assert reason or not os.environ.get("CI"), MISSING
        pytest.skip(reason or MISSING)
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running

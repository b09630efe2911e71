"""A real browser on a host's WebUI, with the plugin's page open in it.

Invariants:
- Chromium comes from the machine; nothing is downloaded and nothing called home.
- The page is opened the way a user does: log in, then the plugin's page address.
"""

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page, sync_playwright

from .host_process import PASSWORD, USERNAME, HostProcess
from .webui import PLUGIN

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGE_ADDRESS = f"/#/plugin-page/{PLUGIN}/memory"
FRAME = "iframe"
# The tabs of a session, from left to right.
TABS = (
    "memory",
    "memories",
    "compress",
    "versions",
    "next",
    "history",
    "settings",
    "transfer",
)
# After the first login the WebUI covers everything with its "change your account".
NO_ACCOUNT_DIALOG = """
if (window === window.top) addEventListener("DOMContentLoaded", () => {
  const style = document.createElement("style");
  style.textContent = ".v-overlay.v-dialog { display: none !important; }";
  document.head.append(style);
});
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Runs the machine's Chromium without a window."""
    path = shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def log_in(context: BrowserContext, host: HostProcess) -> None:
    """Logs a browser in through the WebUI's own form."""
    page = context.new_page()
    page.goto(host.web.url + "/#/auth/login")
    page.locator("input[type=text]").first.fill(USERNAME)
    page.locator("input[type=password]").first.fill(PASSWORD)
    page.locator("input[type=password]").first.press("Enter")
    page.wait_for_url(lambda url: "/auth/login" not in url)
    page.close()


def open_page(context: BrowserContext, host: HostProcess) -> tuple[Page, FrameLocator]:
    """Opens the plugin's page; returns the tab and the page inside it."""
    page = context.new_page()
    page.add_init_script(NO_ACCOUNT_DIALOG)
    page.goto(host.web.url + PAGE_ADDRESS)
    frame = page.frame_locator(FRAME)
    frame.locator(".filters").wait_for()
    return page, frame

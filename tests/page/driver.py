"""The page as a user works with it."""

from playwright.sync_api import BrowserContext, Locator

from dev.browser import open_page
from dev.host_process import HostProcess

ROUTES = "**/api/v1/plugins/extensions/**"


class MemoryPage:
    """One tab with the plugin's page.

    Attributes:
        page: The tab.
        frame: The page inside the WebUI.
        problems: Dialogs, uncaught errors and executed markers; stays empty.
    """

    def __init__(self, context: BrowserContext, host: HostProcess) -> None:
        self.problems: list[str] = []
        self.host = host
        context.on("page", self._watch)
        self.page, self.frame = open_page(context, host)
        context.remove_listener("page", self._watch)

    def _watch(self, page: object) -> None:
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self._error(str(error)))
        page.on(
            "console",
            lambda message: "pwned" in message.text and self.problems.append(message.text),
        )

    def _dialog(self, dialog: object) -> None:
        self.problems.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _error(self, text: str) -> None:
        # The WebUI's own code asks for news of AstrBot, which fails without a network.
        if "has_new_version" not in text and "Network Error" not in text:
            self.problems.append(text)

    def find(self, selector: str, text: str | None = None) -> Locator:
        """Elements inside the page."""
        return self.frame.locator(selector, has_text=text)

    def button(self, name: str) -> Locator:
        """A button inside the page by its exact name."""
        return self.frame.get_by_role("button", name=name, exact=True)

    def search(self, text: str) -> None:
        """Types into the search field."""
        self.find("input[type=search]").fill(text)

    def open(self, chat: dict, tab: str = "memory") -> None:
        """Opens a session and one of its tabs."""
        self.search(chat["name"])
        self.find(f".session-row[data-session='{chat['id']}']").click()
        self.tab(tab)

    def tab(self, key: str) -> None:
        """Opens a tab of the open session."""
        self.find(f"[role=tab][data-key={key}]").click()

    def editor(self, name: str) -> Locator:
        """The editor of ``fixed_memory`` or ``summary``."""
        return self.find(f"[data-field={name}] textarea")

    def row(self, chat: dict) -> dict:
        """The session as the server has it."""
        status, row = self.host.web.api("GET", "session", session_id=chat["id"])
        assert status == 200, row
        return row

    def save_elsewhere(self, chat: dict, **changes: object) -> dict:
        """Changes the session behind the page's back."""
        body = {
            "session_id": chat["id"],
            "revision": self.row(chat)["revision"],
            "changes": changes,
        }
        status, row = self.host.web.api("POST", "session", body)
        assert status == 200, row
        return row

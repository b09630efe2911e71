"""Search on the page: hits with marks, filters, and the way to a hit's place."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from dev.host_process import HostProcess
from dev.page_seed import add_session

from .driver import MemoryPage

HOSTILE = '翡翠"><img src=x onerror=console.log("pwned")>'


@pytest.fixture
def said(host: HostProcess, chat: dict) -> Callable[[dict, str], None]:
    """Puts a text far inside a new conversation of a chat and has it archived."""

    def say(where: dict, text: str) -> None:
        talk = [{"role": "user", "content": f"闲聊 {i}"} for i in range(160)]
        talk[100]["content"] = text
        host.store.seed(where["id"], talk)
        status, answer = host.web.api("GET", "conversations", session_id=where["id"])
        assert status == 200, answer

    return say


def ask(page: MemoryPage, words: str) -> None:
    page.find("form[role=search] input[type=text]").fill(words)
    page.button("搜索").click()


def test_a_hit_is_marked_and_leads_to_its_place(
    page: MemoryPage, chat: dict, said: Callable
) -> None:
    said(chat, "把翡翠色的那一版发给陈晨")
    page.open(chat, "history")
    ask(page, "翡翠")
    hit = page.find("[data-hit]").first
    expect(hit.locator("mark")).to_have_text("翡翠")
    hit.click()
    found = page.find(".message.found")
    expect(found).to_contain_text("把翡翠色的那一版发给陈晨")
    expect(found).to_be_focused()
    expect(found).to_be_in_viewport()


def test_a_search_over_all_sessions_opens_the_session_of_a_hit(
    page: MemoryPage, chat: dict, said: Callable, host: HostProcess
) -> None:
    word = f"孔雀石{chat['id'][-5:]}"
    said(chat, f"颜色定为{word}")
    other = {"id": f"{chat['id']}0", "name": f"另一个群{chat['id'][-5:]}"}
    add_session(host, other["id"], display_name=other["name"])
    page.open(other, "history")
    ask(page, word)
    expect(page.find("form[role=search]")).to_contain_text("没有找到")
    page.find("form[role=search] select").first.select_option("all")
    page.button("搜索").click()
    hit = page.find("[data-hit]").first
    expect(hit).to_contain_text(chat["name"])
    hit.click()
    expect(page.find(".session-head h2")).to_have_text(chat["name"])
    expect(page.find(".message.found")).to_contain_text(word)


def test_filters_and_hostile_words_and_texts(page: MemoryPage, chat: dict, said: Callable) -> None:
    said(chat, HOSTILE)
    page.open(chat, "history")
    for words in ('"', "%", "NEAR(", "<img src=x>", HOSTILE):
        ask(page, words)
        expect(page.find("form[role=search]")).to_contain_text("找到")
    expect(page.find("[data-hit]").first).to_contain_text(HOSTILE)
    expect(page.find("[data-hit] img")).to_have_count(0)
    page.find("form[role=search] select").nth(1).select_option("assistant")
    ask(page, "翡翠")
    expect(page.find("form[role=search]")).to_contain_text("没有找到")
    page.find("form[role=search] select").nth(1).select_option("")
    page.find("form[role=search] input[type=date]").first.fill("2100-01-01")
    page.button("搜索").click()
    expect(page.find("form[role=search]")).to_contain_text("没有找到")

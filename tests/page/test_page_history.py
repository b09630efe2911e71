"""The archive on the page: chain, reading by pages, resume, export, deletion."""

import json
from pathlib import Path

from playwright.sync_api import expect

from dev.host_process import HostProcess
from dev.page_seed import history

from .driver import MemoryPage

HOSTILE = '"><img src=x onerror=console.log("pwned")>'


def conversations(host: HostProcess, chat: dict) -> list[dict]:
    status, answer = host.web.api("GET", "conversations", session_id=chat["id"])
    assert status == 200, answer
    return answer["items"]


def test_conversations_are_read_by_pages_and_at_a_messages_place(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    host.store.seed(chat["id"], [{"role": "user", "content": f"说 {i}"} for i in range(120)])
    page.open(chat, "history")
    expect(page.find("details.version")).to_have_count(2)
    newest = page.find("details.version").first
    expect(newest).to_contain_text("当前对话")
    expect(newest).to_contain_text("120 条消息")
    newest.locator("summary").click()
    expect(newest.locator(".message")).to_have_count(50)
    expect(newest.locator(".message").first).to_contain_text("说 0")
    page.button("更新").click()
    expect(newest.locator(".message").first).to_contain_text("说 50")
    expect(newest.get_by_role("status")).to_contain_text("51–100")
    page.button("更早").click()
    expect(newest.locator(".message").first).to_contain_text("说 0")


def test_a_deleted_conversation_is_brought_back_as_the_current_one(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    before = host.store.conversation(chat["conversation"]).messages
    assert len(conversations(host, chat)) == 1
    body = {"user_id": chat["id"], "cid": chat["conversation"]}
    host.web.post("/api/conversation/delete", body)
    page.open(chat, "history")
    old = page.find("details.version").first
    expect(old).to_contain_text("只在存档里")
    old.locator("summary").click()
    old.get_by_role("button", name="恢复").click()
    dialog = page.find("[role=dialog]")
    expect(dialog.get_by_role("checkbox")).to_be_checked()
    dialog.get_by_role("button", name="恢复").click()
    expect(page.find(".toast")).to_contain_text("已恢复")
    expect(page.find("details.version")).to_have_count(2)
    [made] = host.store.conversations(chat["id"])
    assert made.messages == before
    expect(page.find("details.version").first).to_contain_text("当前对话")


def test_hostile_texts_are_only_texts(page: MemoryPage, chat: dict, host: HostProcess) -> None:
    said = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]
    host.store.seed(chat["id"], said)
    page.open(chat, "history")
    newest = page.find("details.version").first
    expect(newest).to_contain_text(HOSTILE)
    newest.locator("summary").click()
    expect(newest.locator(".message").first).to_contain_text(HOSTILE)
    expect(newest.locator("img")).to_have_count(0)


def test_one_conversation_and_everything_are_exported(
    page: MemoryPage, chat: dict, host: HostProcess, tmp_path: Path
) -> None:
    host.store.seed(chat["id"], history(3, 12))
    page.open(chat, "history")
    for name, count in (("JSON", 1), ("导出全部（JSON）", 2)):
        if count == 1:
            page.find("details.version").first.locator("summary").click()
        with page.page.expect_download() as started:
            page.button(name).first.click()
        path = tmp_path / f"{count}.json"
        started.value.save_as(path)
        assert len(json.loads(path.read_text(encoding="utf-8"))["conversations"]) == count


def test_the_archive_is_deleted_after_a_question(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    page.open(chat, "history")
    page.button("删除存档").click()
    page.find("[role=dialog]").get_by_role("button", name="取消").click()
    assert conversations(host, chat)[0]["messages"] == 80
    page.button("删除存档").click()
    page.find("[role=dialog]").get_by_role("button", name="删除存档").click()
    expect(page.find(".toast")).to_contain_text("已删除 80 条消息")
    expect(page.find("[role=tabpanel]")).to_contain_text("还没有存档的对话")
    assert conversations(host, chat) == []
    assert len(host.store.conversation(chat["conversation"]).messages) == 80

"""Compressing, versions, the next request, settings, import and export."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from dev.browser import log_in
from dev.dify import FakeDify
from dev.host_process import HostConfig, HostProcess
from dev.page_seed import add_requests, add_version
from dev.script import Gate, Reply
from dev.scripted_model import ScriptedModel

from ..host.sessions import wait_until
from .driver import MemoryPage


@pytest.fixture
def slow_summary(model: ScriptedModel, chat: dict) -> Gate:
    """A model that holds its summary until the gate opens."""
    gate = Gate()

    def script(body: dict) -> Reply | None:
        compressing = "tools" not in body and "新版首页" in json.dumps(body, ensure_ascii=False)
        return Reply("压缩得到的摘要", gate=gate) if compressing else None

    remove = model.add_script(script)
    yield gate
    gate.release()
    remove()


def test_a_slow_compression_survives_leaving_and_coming_back(
    page: MemoryPage, chat: dict, slow_summary: Gate, context: BrowserContext, host: HostProcess
) -> None:
    page.open(chat, "compress")
    page.find("[role=tabpanel] textarea").fill("保留日期")
    page.button("立即压缩").click()
    expect(page.find("progress")).to_be_visible()
    slow_summary.wait_entered()
    page.page.close()
    again = MemoryPage(context, host)
    again.open(chat, "compress")
    expect(again.find("progress")).to_be_visible()
    slow_summary.release()
    expect(again.find("[data-job=done]")).to_contain_text("压缩得到的摘要")
    expect(again.find(".coverage")).to_contain_text("已涵盖 80 条消息中的 80 条")
    again.tab("memory")
    expect(again.editor("summary")).to_have_value("压缩得到的摘要")
    assert not again.problems


def test_a_compression_that_ends_behind_another_tab_is_reviewed_on_coming_back(
    page: MemoryPage, chat: dict, slow_summary: Gate, host: HostProcess
) -> None:
    page.open(chat, "compress")
    page.button("立即压缩").click()
    slow_summary.wait_entered()
    page.tab("settings")
    slow_summary.release()
    query = {"session_id": chat["id"]}
    wait_until(
        lambda: host.web.api("GET", "session/compress", **query)[1]["state"] == "done", "the job"
    )
    page.tab("compress")
    expect(page.find("[data-job=done] .card")).to_contain_text("压缩得到的摘要")
    expect(page.find(".coverage")).to_contain_text("已涵盖 80 条消息中的 80 条")


def test_a_compression_is_cancelled(page: MemoryPage, chat: dict, slow_summary: Gate) -> None:
    page.open(chat, "compress")
    page.button("立即压缩").click()
    slow_summary.wait_entered()
    page.button("取消压缩").click()
    expect(page.find("[data-job=cancelled]")).to_be_visible()
    assert page.row(chat)["summary"] == "第一版摘要"


def test_an_edit_while_compressing_stands_and_the_result_is_a_version(
    page: MemoryPage, chat: dict, slow_summary: Gate
) -> None:
    page.open(chat, "compress")
    page.button("立即压缩").click()
    slow_summary.wait_entered()
    page.save_elsewhere(chat, summary="我改的")
    slow_summary.release()
    expect(page.find("[data-job=conflict]")).to_be_visible()
    page.button("查看版本").click()
    conflicting = page.find("details.version").first
    expect(conflicting).to_contain_text("未采用")
    assert page.row(chat)["summary"] == "我改的"
    conflicting.locator("summary").click()
    expect(conflicting.locator(".diff-add")).to_contain_text("我改的")
    conflicting.get_by_role("button", name="采用这个版本").click()
    page.find("[role=dialog]").get_by_role("button", name="采用这个版本").click()
    expect(page.find(".toast")).to_contain_text("已恢复")
    assert page.row(chat)["summary"] == "压缩得到的摘要"
    assert page.row(chat)["coverage"]["messages"] == 80


def test_a_summary_is_rebuilt_and_its_cost_is_shown_apart(page: MemoryPage, chat: dict) -> None:
    page.open(chat, "compress")
    page.button("立即压缩").click()
    expect(page.find("[data-job=done]")).to_be_visible()
    expect(page.find(".costs")).to_contain_text("1 次")
    page.button("立即压缩").click()
    expect(page.find("[data-job=failed]")).to_contain_text("0 条新消息")
    page.button("从全部历史重建").click()
    page.find("[role=dialog]").get_by_role("button", name="从全部历史重建").click()
    expect(page.find("[data-job=done]")).to_be_visible()
    expect(page.find(".costs")).to_contain_text("2 次")
    page.tab("next")
    expect(page.find(".zones")).to_contain_text("全部 80 条消息")


def test_a_changed_history_gets_a_badge(page: MemoryPage, chat: dict, host: HostProcess) -> None:
    page.open(chat, "compress")
    page.button("立即压缩").click()
    expect(page.find("[data-job=done]")).to_be_visible()
    host.store.overwrite(chat["conversation"], [{"role": "user", "content": "改过"}], 0)
    page.page.reload()
    page.open(chat, "memory")
    expect(page.find(".coverage")).to_contain_text("需要更新")


def test_versions_are_compared_and_restored(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    add_version(host, chat["id"], "旧的第一行\n共同的一行")
    page.save_elsewhere(chat, summary="新的第一行\n共同的一行")
    page.open(chat, "versions")
    old = page.find("details.version").last
    old.locator("summary").click()
    expect(old.locator(".diff-del")).to_contain_text("旧的第一行")
    expect(old.locator(".diff-add")).to_contain_text("新的第一行")
    old.get_by_role("button", name="恢复这个版本").click()
    page.find("[role=dialog]").get_by_role("button", name="恢复这个版本").click()
    expect(page.find(".toast")).to_contain_text("已恢复")
    expect(page.find("details.version")).to_have_count(3)
    assert page.row(chat)["summary"] == "旧的第一行\n共同的一行"


def test_the_next_request_shows_budget_window_and_what_is_left_out(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    add_requests(host, chat["id"], 8)
    page.open(chat, "next")
    expect(page.find(".bar .part-window")).to_be_visible()
    expect(page.find(".legend").first).to_contain_text("近期对话")
    expect(page.find(".window-line").first).to_contain_text("窗口从这里开始")
    expect(page.find("[role=tabpanel]")).to_contain_text("超出了 token 预算")
    expect(page.find("[role=tabpanel]")).to_contain_text("80 条中最近的")
    expect(page.find("tbody tr")).to_have_count(8)
    expect(page.find("tbody")).to_contain_text("86%")
    expect(page.find("tbody")).to_contain_text("未报告")
    expect(page.find(".plot svg")).to_be_visible()


def test_long_texts_are_folded(page: MemoryPage, chat: dict, host: HostProcess) -> None:
    long = "长" * 3000
    host.store.seed(
        chat["id"],
        [{"role": "user", "content": "看这个"}, {"role": "assistant", "content": long}],
    )
    page.save_elsewhere(chat, recent_context_token_budget=50_000)
    page.open(chat, "next")
    message = page.find(".message.role-assistant")
    expect(message).to_contain_text("展开")
    assert len(message.inner_text()) < 800
    message.get_by_role("button").click()
    expect(message).to_contain_text(long)


def test_a_remote_agents_history_is_said_to_be_kept_there(
    context: BrowserContext, host: HostProcess, model: ScriptedModel
) -> None:
    with FakeDify() as dify:
        config = HostConfig(version=host.config.version, settings=dify.host_settings())
        with HostProcess(config, model) as remote:
            remote.qq.send_private(7001, "你好")
            remote.qq.wait_reply("private:7001")
            log_in(context, remote)
            page = MemoryPage(context, remote)
            page.find(".session-row").first.click()
            page.tab("next")
            expect(page.find("[role=tabpanel]")).to_contain_text("历史由远程智能体")
            assert not page.problems


def test_numbers_are_checked_and_saved_for_one_session(page: MemoryPage, chat: dict) -> None:
    page.open(chat, "settings")
    card = page.find("[data-card=numbers]")
    save = card.get_by_role("button", name="只保存到这个会话")
    budget = card.locator("input").first
    budget.fill("10")
    expect(page.find(".problem").first).to_contain_text("1,024")
    expect(save).to_be_disabled()
    budget.fill("8000")
    save.click()
    expect(page.find(".toast")).to_contain_text("已保存")
    assert page.row(chat)["recent_context_token_budget"] == 8000


def test_all_sessions_are_changed_only_after_a_confirm_that_counts_them(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    total = host.web.api("GET", "sessions", limit=1)[1]["total"]
    page.open(chat, "settings")
    card = page.find("[data-card=numbers]")
    card.locator("input").last.fill("777")
    card.get_by_role("button", name="应用到全部会话").click()
    dialog = page.find("[role=dialog]")
    expect(dialog).to_contain_text(f"{total:,} 个会话")
    page.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert page.row(chat)["summary_target_tokens"] != 777
    card.get_by_role("button", name="应用到全部会话").click()
    dialog.get_by_role("button").last.click()
    expect(page.find(".toast")).to_contain_text(f"{total:,}")
    assert page.row(chat)["summary_target_tokens"] == 777


def test_an_option_is_switched_on_for_one_session(page: MemoryPage, chat: dict) -> None:
    page.open(chat, "settings")
    card = page.find("[data-card=auto]")
    card.get_by_label("自动摘要", exact=True).check()
    card.get_by_role("button", name="只保存到这个会话").click()
    expect(page.find(".toast")).to_contain_text("已保存")
    assert page.row(chat)["options"]["auto_compress"] is True


def test_the_compress_prompt_is_changed_previewed_and_reset(page: MemoryPage, chat: dict) -> None:
    page.open(chat, "settings")
    area = page.find("[role=tabpanel] textarea")
    default = area.input_value()
    area.fill("请只写三句话。")
    page.find("[role=tabpanel] .card", "压缩提示词").get_by_role("button", name="保存").click()
    expect(page.find("[role=tabpanel]")).to_contain_text("自定义")
    page.find("details.rendered summary").click()
    expect(page.find("details.rendered")).to_contain_text("请只写三句话。")
    page.button("恢复默认").click()
    page.find("[role=dialog]").get_by_role("button", name="恢复默认").click()
    expect(area).to_have_value(default)
    assert page.row(chat)["compress_prompt"] == ""


def test_host_settings_that_conflict_are_named_with_the_fix(page: MemoryPage, chat: dict) -> None:
    expect(page.find(".warnings")).to_contain_text("项需要注意")
    page.open(chat, "settings")
    expect(page.find("[role=tabpanel] .note").first).to_contain_text("truncate_by_turns")


def test_an_export_is_imported_only_after_its_changes_were_shown(
    page: MemoryPage, chat: dict, tmp_path: Path
) -> None:
    page.open(chat, "transfer")
    with page.page.expect_download() as event:
        page.button("这个会话（JSON）").click()
    file = tmp_path / "export.json"
    event.value.save_as(file)
    page.save_elsewhere(chat, summary="后来的摘要")
    page.find("input[type=file]").set_input_files(file)
    expect(page.find(".changes")).to_contain_text("第一版摘要")
    expect(page.find(".changes")).to_contain_text("后来的摘要")
    assert page.row(chat)["summary"] == "后来的摘要"
    page.find("[role=tabpanel] .btn-primary").click()
    page.find("[role=dialog] .btn-primary").click()
    expect(page.find(".note-success", "导入完成")).to_be_visible()
    assert page.row(chat)["summary"] == "第一版摘要"


def test_a_broken_import_changes_nothing(page: MemoryPage, chat: dict, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text('{"sessions": [', encoding="utf-8")
    before = page.row(chat)["revision"]
    page.open(chat, "transfer")
    page.find("input[type=file]").set_input_files(file)
    expect(page.find("[role=tabpanel] .state-error")).to_be_visible()
    assert page.row(chat)["revision"] == before

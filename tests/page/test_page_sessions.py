"""The list of sessions, editing, saving and conflicts."""

import itertools

from playwright.sync_api import BrowserContext, expect

from dev.host_process import HostProcess
from dev.page_seed import add_session, add_sessions

from .driver import ROUTES, MemoryPage

_prefixes = itertools.count(1)


def test_sessions_are_searched_filtered_and_paged_by_the_server(
    page: MemoryPage, host: HostProcess
) -> None:
    prefix = f"p{next(_prefixes)}-{host.config.version}-"
    add_sessions(host, 70, prefix)
    add_session(host, f"tg:FriendMessage:{prefix}x", display_name=f"好友 {prefix}")
    page.search(prefix)
    expect(page.find(".pager")).to_contain_text("第 1–50 个，共 71 个")
    page.button("下一页").click()
    expect(page.find(".pager")).to_contain_text("第 51–71 个，共 71 个")
    page.find("select[aria-label=类型]").select_option("private")
    expect(page.find(".session-row")).to_have_count(1)
    page.find("select[aria-label=类型]").select_option("")
    page.find("select[aria-label=平台]").select_option("tg")
    expect(page.find(".session-row")).to_contain_text(["好友"])
    page.search("没有这个名字")
    expect(page.find(".list")).to_contain_text("没有符合条件的会话")
    page.button("清除筛选").click()
    expect(page.find(".session-row")).to_have_count(50)


def test_an_empty_list_tells_how_a_session_appears(page: MemoryPage) -> None:
    page.page.route("**/sessions?**", lambda route: route.fulfill(json={"items": [], "total": 0}))
    page.button("刷新").click()
    expect(page.find(".list")).to_contain_text("得到模型的回复后")


def test_memory_is_saved_and_counted_while_typing(page: MemoryPage, chat: dict) -> None:
    page.open(chat)
    counter = page.find("[data-field=fixed_memory] .counter")
    before = counter.inner_text()
    page.editor("fixed_memory").fill("规矩一\n规矩二：周五发布，预算三万八。")
    expect(counter).not_to_have_text(before)
    expect(counter).to_contain_text("约")
    page.button("保存").click()
    expect(page.find(".toast")).to_contain_text("已保存")
    expect(counter).not_to_contain_text("约")
    assert page.row(chat)["fixed_memory"].endswith("预算三万八。")


def test_unsaved_changes_survive_leaving_the_session(page: MemoryPage, chat: dict) -> None:
    page.open(chat)
    page.editor("summary").fill("改了一半")
    expect(page.find(".app-head")).to_contain_text("1 个会话未保存")
    expect(page.find(f".session-row[data-session='{chat['id']}']")).to_contain_text("未保存")
    page.tab("versions")
    page.page.set_viewport_size({"width": 600, "height": 900})
    # By key: the WebUI moves its frame for a moment after the change of size.
    page.button("返回列表").press("Enter")
    page.find(f".session-row[data-session='{chat['id']}']").press("Enter")
    page.tab("memory")
    expect(page.editor("summary")).to_have_value("改了一半")
    page.button("放弃修改").click()
    expect(page.editor("summary")).to_have_value("第一版摘要")
    assert page.row(chat)["summary"] == "第一版摘要"


def test_two_tabs_conflict_shows_both_texts_and_overwrites_nothing(
    page: MemoryPage, chat: dict, context: BrowserContext, host: HostProcess
) -> None:
    other = MemoryPage(context, host)
    page.open(chat)
    other.open(chat)
    other.editor("summary").fill("乙的修改")
    other.button("保存").click()
    expect(other.find(".toast")).to_contain_text("已保存")
    page.editor("summary").fill("甲的修改")
    page.button("保存").click()
    conflict = page.find("[data-conflict=summary]")
    expect(conflict.locator("pre").first).to_have_text("甲的修改")
    expect(conflict.locator("pre").last).to_have_text("乙的修改")
    assert page.row(chat)["summary"] == "乙的修改"
    page.button("合并两者").click()
    page.button("保存这个结果").click()
    expect(page.editor("summary")).to_have_value("乙的修改\n\n甲的修改")
    assert page.row(chat)["summary"] == "乙的修改\n\n甲的修改"
    assert not other.problems


def test_the_stored_text_can_be_kept_in_a_conflict(page: MemoryPage, chat: dict) -> None:
    page.open(chat)
    page.editor("fixed_memory").fill("我的")
    page.save_elsewhere(chat, fixed_memory="别人的")
    page.button("保存").click()
    page.button("放弃我的修改").click()
    expect(page.editor("fixed_memory")).to_have_value("别人的")
    assert page.row(chat)["fixed_memory"] == "别人的"


def test_changes_of_different_fields_are_both_kept(page: MemoryPage, chat: dict) -> None:
    page.open(chat)
    page.editor("fixed_memory").fill("我的记忆")
    page.save_elsewhere(chat, summary="别人的摘要")
    page.button("保存").click()
    expect(page.editor("summary")).to_have_value("别人的摘要")
    row = page.row(chat)
    assert (row["fixed_memory"], row["summary"]) == ("我的记忆", "别人的摘要")


def test_markdown_is_previewed_without_links_or_pictures(page: MemoryPage, chat: dict) -> None:
    page.open(chat)
    text = (
        "**粗体** [链接](javascript:alert(1)) ![图](https://example.org/x.png) "
        "<b onclick=1>原文</b>"
    )
    page.editor("summary").fill(text)
    page.find("[data-field=summary]").get_by_role("button", name="预览").click()
    shown = page.find("[data-field=summary] .markdown")
    expect(shown.locator("strong")).to_have_text("粗体")
    assert shown.locator("a, img, b").count() == 0
    expect(shown).to_contain_text("<b onclick=1>原文</b>")


def test_a_lost_connection_is_told_and_comes_back(page: MemoryPage, chat: dict) -> None:
    page.open(chat)
    page.editor("summary").fill("断线前的修改")
    page.page.route(ROUTES, lambda route: route.abort())
    page.button("保存").click()
    expect(page.find(".connection")).to_contain_text("连接断开")
    expect(page.editor("summary")).to_have_value("断线前的修改")
    page.page.unroute(ROUTES)
    page.find(".connection").get_by_role("button").click()
    expect(page.find(".connection")).to_be_hidden()
    page.button("保存").click()
    expect(page.find(".toast")).to_contain_text("已保存")
    assert page.row(chat)["summary"] == "断线前的修改"


def test_a_switched_off_plugin_says_so(page: MemoryPage, host: HostProcess, chat: dict) -> None:
    page.open(chat)
    host.web.switch_plugin(False)
    try:
        page.button("刷新").first.click()
        expect(page.find(".list")).to_contain_text("没有加载成功")
    finally:
        host.web.switch_plugin(True)
    page.find(".list").get_by_role("button", name="重试").click()
    expect(page.find(".session-row").first).to_be_visible()


def test_a_connection_that_comes_back_is_found_without_a_click(
    page: MemoryPage, chat: dict
) -> None:
    page.open(chat)
    page.page.route(ROUTES, lambda route: route.abort())
    page.tab("versions")
    expect(page.find("[role=tabpanel] .state-error")).to_be_visible()
    expect(page.find(".connection")).to_be_visible()
    page.page.unroute(ROUTES)
    expect(page.find(".connection")).to_be_hidden()
    # What could not be loaded meanwhile is loaded now.
    expect(page.find("[role=tabpanel]")).to_contain_text("还没有版本")

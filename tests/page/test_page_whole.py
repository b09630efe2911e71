"""The page as a whole: hostile texts, accessibility, language, theme, speed."""

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from dev import axe
from dev.browser import TABS
from dev.host_process import HostProcess
from dev.page_seed import add_requests, add_session, add_sessions, add_version, history

from .driver import MemoryPage

HOSTILE = (
    '"><img src=x onerror="console.log(\'pwned\');alert(1)"></textarea>'
    "<script>console.log('pwned')</script><svg onload=alert(1)> "
    "[x](javascript:alert(1)) \u202egnp.exe ${alert(1)} {{constructor}}"
)


def wait_loaded(page: MemoryPage) -> None:
    expect(page.find("[role=tabpanel] .spinner")).to_have_count(0)


@pytest.fixture
def hostile(host: HostProcess, chat: dict) -> dict:
    """A session whose every text tries to run something."""
    number = chat["id"].rsplit(":", 1)[1]
    name = f"{HOSTILE} {number}"
    session_id = add_session(
        host,
        f"qq:GroupMessage:h{number}",
        display_name=name,
        fixed_memory=HOSTILE,
        summary=HOSTILE + "\n" + "x" * 150_000,
        compress_prompt=HOSTILE,
        recent_context_token_budget=1_000_000,
    )
    add_version(host, session_id, HOSTILE, model=HOSTILE, source="import")
    add_requests(host, session_id, 2)
    talk = [
        {"role": "user", "content": HOSTILE},
        {"role": "assistant", "content": "y" * 1_000_000 + HOSTILE},
    ]
    host.store.seed(session_id, talk)
    memory = {"session_id": session_id, "text": "<img src=x onerror='alert(1)'>likes tea"}
    assert host.web.api("POST", "memories", memory)[0] == 200
    return {"id": session_id, "name": number}


def test_hostile_texts_are_shown_as_text_everywhere(
    page: MemoryPage, hostile: dict, tmp_path: object
) -> None:
    page.open(hostile)
    row = page.find(f".session-row[data-session='{hostile['id']}'] bdi").first
    expect(row).to_contain_text("<img src=x onerror=")
    expect(page.find("h2 bdi")).to_contain_text("<script>")
    for name in ("fixed_memory", "summary"):
        box = page.find(f"[data-field={name}]")
        box.get_by_role("button", name="预览").click()
        expect(box.locator(".markdown")).to_contain_text("onerror")
    for tab in TABS[1:]:
        page.tab(tab)
        wait_loaded(page)
        for opener in page.find("details.version summary").all():
            opener.click()
    page.tab("next")
    expect(page.find(".message.role-user")).to_contain_text("<img src=x onerror=")
    page.find(".message.role-assistant").get_by_role("button").click()
    file = tmp_path / "hostile.json"
    exported = page.host.web._client.get(
        "/api/v1/plugins/extensions/astrbot_plugin_context_manager/export",
        params={"session_id": hostile["id"]},
    ).text
    file.write_text(exported, encoding="utf-8")
    page.save_elsewhere(hostile, fixed_memory="clean", summary="clean")
    page.tab("transfer")
    page.find("input[type=file]").set_input_files(file)
    expect(page.find(".changes")).to_contain_text("onerror")
    page.page.wait_for_timeout(300)
    assert page.find("#app img, #app script, #app svg[onload], #app a").count() == 0


def _serious(page: MemoryPage, where: str) -> list[str]:
    frame = next(f for f in page.page.frames if f.parent_frame is not None)
    frame.evaluate(axe.source())
    found = frame.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{where}: {rule['id']} {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"][:3]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(
    page: MemoryPage, chat: dict, host: HostProcess, theme: str, width: int
) -> None:
    add_requests(host, chat["id"], 5)
    add_version(host, chat["id"], "旧的\n第二行")
    page.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.page.set_viewport_size({"width": width, "height": 900})
    expect(page.find("html")).to_have_attribute("data-theme", theme)
    problems = _serious(page, "list")
    page.open(chat)
    for tab in TABS:
        page.tab(tab)
        wait_loaded(page)
        if tab == "versions":
            page.find("details.version summary").last.click()
        problems += _serious(page, tab)
        if tab == "memory":
            page.editor("summary").fill("**改**")
            page.find("[data-field=summary]").get_by_role("button", name="预览").click()
            problems += _serious(page, "preview")
    page.tab("settings")
    page.button("应用到全部会话…").first.click()
    expect(page.find("[role=dialog]")).to_be_visible()
    problems += _serious(page, "dialog")
    page.find("[role=dialog]").get_by_role("button").first.click()
    page.save_elsewhere(chat, summary="别人的")
    page.tab("memory")
    page.button("保存").click()
    expect(page.find(".conflict")).to_be_visible()
    problems += _serious(page, "conflict")
    assert not problems, "\n".join(problems)


def choose_language(tab: Page, name: str) -> None:
    tab.locator(".v-app-bar button, header button").last.click()
    tab.locator(".v-overlay .v-list-item", has=tab.locator(".mdi-translate")).click()
    tab.locator(".v-overlay").get_by_text(name, exact=True).first.click()


def test_language_and_theme_change_while_the_page_is_open(page: MemoryPage, chat: dict) -> None:
    page.open(chat)
    page.editor("summary").fill("还没保存")
    choose_language(page.page, "English")
    expect(page.find("h1")).to_have_text("Context manager")
    expect(page.find("[role=tab][data-key=next]")).to_have_text("Next request")
    expect(page.editor("summary")).to_have_value("还没保存")
    expect(page.find("html")).to_have_attribute("lang", "en-US")
    page.page.emulate_media(color_scheme="dark")
    expect(page.find("html")).to_have_attribute("data-theme", "dark")
    expect(page.find("body")).to_have_css("background-color", "rgb(26, 26, 26)")


def test_what_the_plugin_answers_is_in_the_pages_language(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    host.store.overwrite(chat["conversation"], [], 0)
    page.open(chat, "compress")
    page.button("立即压缩").click()
    failed = page.find("[data-job=failed]")
    expect(failed).to_have_text("没有可以压缩的历史消息，没有调用模型。")
    choose_language(page.page, "English")
    expect(failed).to_have_text("There is no history to compress; no model was called.")


def test_the_keyboard_reaches_everything_and_focus_is_seen(page: MemoryPage, chat: dict) -> None:
    page.search(chat["name"])
    row = page.find(f".session-row[data-session='{chat['id']}']")
    row.focus()
    page.page.keyboard.press("Enter")
    tab = page.find("[role=tab][data-key=memory]")
    expect(tab).to_be_focused()
    page.page.keyboard.press("ArrowRight")
    expect(page.find("[role=tab][data-key=memories]")).to_be_focused()
    expect(page.find("[role=tab][data-key=memories]")).to_have_css("outline-style", "solid")
    page.page.keyboard.press("End")
    expect(page.find("[role=tab][data-key=transfer]")).to_have_attribute("aria-selected", "true")
    page.page.keyboard.press("Tab")
    expect(page.find("[role=tabpanel] button").first).to_be_focused()


def test_nothing_scrolls_sideways_on_a_phone(page: MemoryPage, chat: dict) -> None:
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.open(chat)
    shown = page.find("[role=tab]").evaluate_all("tabs => tabs.map(tab => tab.dataset.key)")
    assert shown == list(TABS)
    for tab in TABS:
        page.tab(tab)
        wait_loaded(page)
        wide = page.find("html").evaluate("e => e.scrollWidth > e.clientWidth")
        detail = page.find(".detail").evaluate("e => e.scrollWidth > e.clientWidth")
        assert not wide and not detail, tab


# Clicks on something and waits until what it opens is laid out.
OPEN = """async ([click, title, ready]) => {
  while (!document.querySelector(click)) await new Promise(requestAnimationFrame);
  const there = () => document.querySelector("h2")?.textContent.includes(title)
    && !document.querySelector(".list .spinner") && document.querySelector(ready);
  return await new Promise((done) => {
    const start = performance.now();
    const observer = new MutationObserver(() => {
      if (!there() || !document.body.offsetHeight) return;
      observer.disconnect();
      done(performance.now() - start);
    });
    observer.observe(document.body, { childList: true, subtree: true });
    document.querySelector(click).click();
  });
}"""


def _quickest(page: MemoryPage, *steps: tuple[str, str, str], times: int = 25) -> list[float]:
    """Milliseconds of steps, in turns: whatever else the machine does only adds to them."""
    frame = next(f for f in page.page.frames if f.parent_frame is not None)
    for step in steps:
        frame.evaluate(OPEN, step)
    spent = [[frame.evaluate(OPEN, step) for step in steps] for _ in range(times)]
    return [min(of_step) for of_step in zip(*spent, strict=True)]


def test_many_sessions_and_long_chats_stay_quick(
    context: BrowserContext, host: HostProcess, chat: dict
) -> None:
    small = {"id": "qq:GroupMessage:speed-small", "name": "小聊天"}
    big = {"id": "qq:GroupMessage:speed-big", "name": "大聊天"}
    for item, turns in ((small, 10), (big, 2500)):
        add_session(host, item["id"], display_name=item["name"])
        host.store.seed(item["id"], history(turns))
    add_sessions(host, 10, "few")
    page = MemoryPage(context, host)

    def opened(ready: str) -> list[float]:
        # The tab that was open last is open again.
        rows = [(f".session-row[data-session='{i['id']}']", i["name"]) for i in (small, big)]
        return _quickest(page, *((row, name, ready) for row, name in rows))

    def listed() -> float:
        return _quickest(page, (".list button[title]", big["name"], ".session-row"))[0]

    page.search("聊天")
    expect(page.find(f".session-row[data-session='{big['id']}']")).to_be_visible()
    texts = opened("[data-field=summary]")
    page.tab("next")
    expect(page.find(".messages + .row")).to_contain_text("显示 30 条，共")
    messages = opened(".message")
    page.search("")
    expect(page.find(".session-row")).not_to_have_count(2)
    few = listed()
    add_sessions(host, 10_000, "many")
    many = listed()
    print(f"list {few:.0f} -> {many:.0f} ms, chat {texts}, next request {messages}")
    assert many <= 2 * few
    assert texts[1] <= 2 * texts[0]
    assert messages[1] <= 2 * messages[0]

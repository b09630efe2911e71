"""The next request: what is left out in numbers, a new topic and back, the plots."""

from playwright.sync_api import expect

from dev.host_process import HostProcess
from dev.page_seed import add_days, add_requests

from .driver import MemoryPage


def preview(page: MemoryPage, chat: dict) -> dict:
    status, answer = page.host.web.api("GET", "session/preview", session_id=chat["id"])
    assert status == 200, answer
    return answer


def test_what_is_left_out_is_said_in_the_servers_numbers(page: MemoryPage, chat: dict) -> None:
    left = preview(page, chat)["left_out"]
    assert 0 < left["messages"] < 80
    page.open(chat, "next")
    out = page.find(".note-info").first
    expect(out).to_contain_text(f"不发送较早的 {left['turns']} 轮（{left['messages']} 条消息")
    expect(out).to_contain_text(f"会发送 80 条中最近的 {80 - left['messages']} 条")
    line = page.find(".window-line").first
    expect(line).to_contain_text(f"第 {left['turns'] + 1} 轮")


def test_a_new_topic_is_started_and_taken_back(page: MemoryPage, chat: dict) -> None:
    before = preview(page, chat)
    page.open(chat, "next")
    page.button("从这里开始新话题").click()
    expect(page.find(".toast")).to_contain_text("已开始新话题")
    expect(page.find("[role=tabpanel]")).to_contain_text("40 轮（80 条消息")
    expect(page.find("[role=tabpanel]")).to_contain_text("原因：新话题标记")
    expect(page.find(".message.role-user")).to_have_count(0)
    assert preview(page, chat)["topic"]["source"] == "user"
    page.button("撤销").click()
    expect(page.find(".toast", "已撤销")).to_be_visible()
    expect(page.button("从这里开始新话题")).to_be_visible()
    expect(page.find(".message.role-user").first).to_be_visible()
    assert preview(page, chat) == before


def test_requests_and_days_are_plotted_with_their_cached_share(
    page: MemoryPage, chat: dict, host: HostProcess
) -> None:
    add_requests(host, chat["id"], 8)
    add_days(host, chat["id"], 14)
    page.open(chat, "next")
    expect(page.find("[role=tabpanel]")).to_contain_text("14 天里 140 次请求")
    expect(page.find("[role=tabpanel]")).to_contain_text("命中缓存 50%")
    days, requests = page.find(".plot").all()
    expect(days.locator("rect.plot-reported")).to_have_count(14)
    expect(days.locator("rect.plot-cached")).to_have_count(14)
    # One of the eight has not reported.
    expect(requests.locator("rect.plot-reported")).to_have_count(7)
    reported, cached = (
        float(days.locator(f"rect.plot-{name}").last.get_attribute("height"))
        for name in ("reported", "cached")
    )
    assert abs(cached / reported - 0.5) < 0.02
    expect(days.locator("g title").last).to_contain_text("40,000 · 50%")

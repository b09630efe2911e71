"""Fills a running host with sessions that the plugin's page can show.

Invariants:
- Sessions, versions and requests are written into the plugin's database next to
  the running plugin; conversations into the host's.
- The same call always writes the same texts.
"""

import json
import sqlite3
import time
from contextlib import closing

from .host_process import HostProcess

DATABASE = "context_manager.db"
TALK = (
    ("周五前能把新版首页上线吗？", "可以，周三给测试，周五上午十点发布。"),
    ("预算还是三万八，别再加了。", "明白，预算按 38,000 元控制，超出的部分我会先问。"),
    ("客服电话换成 400-810-2345 了。", "已记下，新的客服电话是 400-810-2345。"),
    ("小林下周请假，谁来值班？", "按排班表由阿哲代班，周一到周三。"),
    (
        "把发布步骤再说一遍？",
        "1. 合并到 main\n2. 打标签 v2.4.0\n3. 灰度 10%，观察一小时\n4. 全量发布",
    ),
)
MEMORY = """# 群里的规矩
- 称呼用户为“各位”，不要用表情。
- 发布窗口：**每周五 10:00–12:00**，其他时间不发布。
- 预算上限 38,000 元，超出先问负责人陈晨。

客服电话：400-810-2345"""
SUMMARY = """## 已经决定
- 新版首页周五上午十点发布，周三交测试。
- 预算 38,000 元，由陈晨确认。
- 客服电话改为 400-810-2345。

## 还没有决定
- 下周小林请假，阿哲代班周一到周三，周四周五待定。"""
FIRST_SUMMARY = """## 已经决定
- 新版首页周五上午十点发布。
- 预算 35,000 元。

## 还没有决定
- 客服电话是否更换。"""


def _connect(host: HostProcess) -> sqlite3.Connection:
    return sqlite3.connect(host.plugin_data / DATABASE, timeout=20)


def _insert(connection: sqlite3.Connection, table: str, row: dict) -> None:
    names, places = ", ".join(row), ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", tuple(row.values()))


def session_row(session_id: str, **values: object) -> dict:
    """A row of the table of sessions."""
    platform, kind, _ = session_id.split(":", 2)
    kinds = {"GroupMessage": "group", "FriendMessage": "private"}
    row = {
        "session_id": session_id,
        "platform": platform,
        "kind": "webchat" if platform == "webchat" else kinds.get(kind, "other"),
        "last_seen_at": int(time.time()) - 60,
        "updated_at": int(time.time()) - 60,
    }
    return row | values


def add_session(host: HostProcess, session_id: str, **values: object) -> str:
    """Writes a session; returns its id."""
    with closing(_connect(host)) as connection, connection:
        _insert(connection, "sessions", session_row(session_id, **values))
    return session_id


def add_sessions(host: HostProcess, count: int, prefix: str = "g") -> None:
    """Writes many small sessions at once."""
    now = int(time.time())
    with closing(_connect(host)) as connection, connection:
        for number in range(count):
            row = session_row(
                f"qq:GroupMessage:{prefix}{number}",
                display_name=f"群 {prefix}{number}",
                fixed_memory=f"第 {number} 条规矩",
                last_seen_at=now - 100 - number,
            )
            _insert(connection, "sessions", row)


def history(turns: int, size: int = 0) -> list[dict]:
    """A conversation as the host stores it."""
    messages = []
    for turn in range(turns):
        question, answer = TALK[turn % len(TALK)]
        filler = "（补充说明）" * size
        messages.append({"role": "user", "content": f"[{turn + 1}] {question}"})
        messages.append({"role": "assistant", "content": answer + filler})
    return messages


def add_requests(host: HostProcess, session_id: str, count: int) -> None:
    """Writes the records of some past requests."""
    now = int(time.time())
    with closing(_connect(host)) as connection, connection:
        for number in range(count):
            window = 2400 + (number * 330) % 3100
            sections = {
                "system": 620,
                "tools": 900,
                "fixed_memory": 110,
                "summary": 160,
                "window": window,
                "current": 30,
            }
            estimated = sum(sections.values())
            reported = None if number == 4 else estimated + (number * 37) % 120 - 60
            row = {
                "session_id": session_id,
                "time": now - (count - number) * 1500,
                "model": "scripted",
                "sections": json.dumps(sections),
                "estimated": estimated,
                "prompt_tokens": reported,
                "cached_tokens": None
                if reported is None
                else int(reported * 0.86 * (number % 6 > 0)),
                "output_tokens": None if reported is None else 90 + number * 7,
                "first_turn": 12,
                "left_out_turns": 12,
                "milliseconds": 14,
                "budget": 6000,
                "total_turns": 20 + number,
                "left_out_messages": 24,
                "lightened": number % 3,
            }
            _insert(connection, "requests", row)


def add_days(host: HostProcess, session_id: str, count: int) -> None:
    """Writes what the requests of the last days add up to."""
    now = time.time()
    with closing(_connect(host)) as connection, connection:
        for number in range(count):
            prompt = 40_000 + (number * 17_000) % 60_000
            row = {
                "session_id": session_id,
                "day": time.strftime("%Y-%m-%d", time.localtime(now - number * 86_400)),
                "requests": 10,
                "reported": 10,
                "estimated": prompt - 900,
                "prompt_tokens": prompt,
                "cached_tokens": prompt // 2,
                "output_tokens": 1200,
                "milliseconds": 140,
            }
            _insert(connection, "usage_days", row)


def add_version(host: HostProcess, session_id: str, text: str, **values: object) -> None:
    """Writes a version of a summary."""
    row = {
        "session_id": session_id,
        "created_at": int(time.time()) - 7200,
        "source": "model",
        "model": "scripted",
        "text": text,
    }
    with closing(_connect(host)) as connection, connection:
        _insert(connection, "summary_versions", row | values)


def add_showcase(host: HostProcess) -> str:
    """Writes the sessions of the screenshots; returns the id of the fullest one."""
    now = int(time.time())
    names = ("周末爬山", "家长群 3 班", "前端交流", "读书会", "二手交易", "游戏开黑", "客户支持")
    for number, name in enumerate(names):
        add_session(
            host,
            f"qq:GroupMessage:{5000 + number}",
            display_name=name,
            fixed_memory=MEMORY[: 30 * number],
            last_seen_at=now - 4000 * (number + 1),
        )
    add_session(host, "qq:FriendMessage:77001", display_name="陈晨", last_seen_at=now - 900)
    main = add_session(
        host,
        "qq:GroupMessage:4001",
        display_name="产品讨论组",
        fixed_memory=MEMORY,
        summary=SUMMARY,
        recent_context_token_budget=6000,
        last_seen_at=now - 20,
    )
    host.store.seed(main, history(60, 12))
    add_version(host, main, FIRST_SUMMARY, created_at=now - 90_000, covered=60, tokens=70)
    add_version(host, main, SUMMARY, created_at=now - 7200, source="user", model="")
    add_requests(host, main, 18)
    add_days(host, main, 14)
    return main

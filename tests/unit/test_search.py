"""Search of the archive: right hits in order, bounded to its scope, safe for any input."""

import asyncio
import random
import sqlite3
from datetime import datetime

import pytest
from astrbot_plugin_context_manager import database as database_module
from astrbot_plugin_context_manager import search as search_module
from astrbot_plugin_context_manager import search_index
from astrbot_plugin_context_manager.errors import StorageUnavailable
from astrbot_plugin_context_manager.search import Scope, search
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dev.archive_seed import Said, archive
from dev.sentences import Sentences

HERE, THERE = Scope("qq:GroupMessage:1"), Scope("qq:GroupMessage:2")
TALK = [
    "我不吃香菜，别放香菜",
    "好的，记住了",
    "昨晚重跑gen-itgc后，结果对了",
    "The café on Baker Street opens at 9",
    "晚饭吃火锅，香料多放一点",
    "50%的折扣_真的吗",
    'he said "AND" and left',
    "これは猫です。ねこが好き",
    "나는 고양이를 좋아해요",
    "🎉 生日快乐",
    "x*y=z",
    "菜单发我一下",
]


@pytest.fixture
async def talk(database):
    await archive(database, [Said(HERE.session_id, n, text) for n, text in enumerate(TALK)])
    return database


async def found(database, text, scope=HERE, **page):
    return [hit.text for hit in (await search(database, text, scope, **page)).items]


@pytest.mark.parametrize(
    "question, first",
    [
        ("香菜", 0),
        ("菜", 11),
        ("重跑gen-itgc后", 2),
        ("GEN-ITGC", 2),
        ("itg", 2),
        ("cafe", 3),
        ("Baker street", 3),
        ('"', 6),
        ("*", 10),
        ("AND", 6),
        ("%", 5),
        ("_", 5),
        ("ねこ", 7),
        ("猫", 7),
        ("고양이", 8),
        ("🎉", 9),
        ("，别", 0),
        ("重跑的结果怎么样？", 2),
    ],
)
async def test_the_right_message_comes_first(talk, question, first):
    assert (await found(talk, question))[0] == TALK[first]


@pytest.mark.parametrize(
    "question",
    [
        "",
        "   ",
        "\n",
        "\x00",
        "没有这样的话吧嘿",
        "NEAR(",
        "^zzz",
        "zzz*",
        "\\",
        "'; DROP TABLE",
        "^",
    ],
)
async def test_a_question_without_an_answer_finds_nothing(talk, question):
    result = await search(talk, question, HERE)
    assert (result.items, result.total) == ([], 0)


@pytest.mark.parametrize(
    "question",
    [
        "\ud800",
        "a" * 100_000,
        "香" * 100_000,
        "(" * 500,
        '"' * 500,
        "NEAR(a b, 10)",
        "terms:x",
        "-x",
        "yeſterday",
        "3 ſept",
    ],
)
async def test_hostile_questions_are_no_errors(talk, question):
    await search(talk, question, HERE)
    await search(talk, question, Scope(None))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=st.text(max_size=40))
async def test_any_question_is_answered(talk, question):
    result = await search(talk, question, HERE)
    assert len(result.items) <= result.total <= len(TALK)


async def test_two_characters_apart_rank_behind_the_word_and_one_alone_is_no_hit(database):
    said = ["香菜", "香和菜", "香", "菜"]
    await archive(database, [Said(HERE.session_id, n, text) for n, text in enumerate(said)])
    assert await found(database, "香菜") == ["香菜", "香和菜"]


@pytest.mark.parametrize("question", ["猫咪生病", "猫咪最近生病了没有", "看病猫咪", "猫咪"])
async def test_a_short_question_finds_what_holds_one_of_its_words(database, question):
    said = ["猫咪发烧了", "猫和咪", "他生气了", "会议改到三点"]
    await archive(database, [Said(HERE.session_id, n, text) for n, text in enumerate(said)])
    assert (await found(database, question))[0] == "猫咪发烧了"
    assert "会议改到三点" not in await found(database, question)


async def test_messages_with_all_of_a_short_question_stand_before_those_with_one_word(database):
    said = ["猫咪发烧了", "上次猫咪生病花了很多钱才好起来的", "生病了", "猫咪"]
    await archive(database, [Said(HERE.session_id, n, text) for n, text in enumerate(said)])
    hits = await found(database, "猫咪生病")
    assert hits[0] == said[1]
    assert sorted(hits) == sorted(said)


async def test_a_message_is_found_by_who_said_it(database):
    await archive(database, [Said(HERE.session_id, 0, "下午到", sender="欧阳小明")])
    assert await found(database, "欧阳小明") == ["下午到"]


async def test_the_hit_is_marked_in_the_snippet(talk):
    [hit] = (await search(talk, "gen-itgc", HERE)).items
    assert "⟪gen-itgc⟫" in hit.snippet


async def test_pages_are_disjoint_and_the_total_counts_all(database):
    said = [Said(HERE.session_id, n, f"第{n}次提到香菜") for n in range(650)]
    await archive(database, said)
    pages = [await search(database, "香菜", HERE, limit=100, offset=o) for o in range(0, 700, 100)]
    ids = [hit.id for page in pages for hit in page.items]
    assert {page.total for page in pages} == {650}
    assert len(ids) == len(set(ids)) == 650
    assert pages[6].items[50:] == []


async def test_role_time_and_conversation_filter_before_the_page_is_cut(database):
    said = [
        Said(HERE.session_id, n, "香菜", role="user" if n % 7 else "assistant", time=1000 + n)
        for n in range(900)
    ]
    await archive(database, said)
    for scope, count in (
        (Scope(HERE.session_id, role="assistant"), 129),
        (Scope(HERE.session_id, since=1890), 10),
        (Scope(HERE.session_id, until=1010), 10),
        (Scope(HERE.session_id, role="assistant", since=1000, until=1015), 3),
        (Scope(None, role="tool"), 0),
        (Scope(HERE.session_id, conversation_id="other"), 0),
        (Scope(None, conversation_id=f"conversation-{HERE.session_id}"), 900),
    ):
        result = await search(database, "香菜", scope, limit=900)
        assert (result.total, len(result.items)) == (count, count)
        assert all(hit.role == (scope.role or hit.role) for hit in result.items)


async def test_a_named_day_brings_its_messages_to_the_top(database):
    def noon(day):
        return int(datetime(2024, 5, day, 12).timestamp())

    said = [
        Said(HERE.session_id, day, f"今天跑步{day}公里", time=noon(day)) for day in range(1, 30)
    ]
    await archive(database, [*said, Said(HERE.session_id, 99, "很累", time=noon(3))])
    assert (await found(database, "5月3日跑步多久"))[0] == "今天跑步3公里"
    assert (await found(database, "2024-05-17 跑步"))[0] == "今天跑步17公里"
    assert "很累" in await found(database, "How was I on May 3?")


async def test_the_answer_after_a_matching_question_is_found_by_its_neighbour(database):
    said = [f"闲聊{n}号，餐厅没去" for n in range(40)]
    said[20:22] = ["你最喜欢哪家川菜餐厅", "老街那家餐厅"]
    await archive(database, [Said(HERE.session_id, n, text) for n, text in enumerate(said)])
    assert "老街那家餐厅" in (await found(database, "最喜欢的川菜餐厅是哪家"))[:2]


# Every piece of a text is found


async def missing_pieces(database, count, pieces):
    """Pieces whose messages were not all among the first 50."""
    sentences, draw = Sentences(11), random.Random(5)
    texts = [next(sentences) for _ in range(count)]
    await archive(database, [Said(HERE.session_id, n, text) for n, text in enumerate(texts)])
    missing, tried = [], 0
    while tried < pieces:
        text, length = draw.choice(texts), draw.choice([1, 2, 3, 4])
        start = draw.randrange(max(1, len(text) - length + 1))
        piece = text[start : start + length].strip()
        holders = {text for text in texts if piece.lower() in text.lower()}
        if not piece or len(holders) > 50:
            continue
        tried += 1
        for scope in (HERE, Scope(None)):
            if not holders <= set(await found(database, piece, scope, limit=50)):
                missing.append((piece, scope))
    return missing


async def test_every_message_that_contains_a_rare_piece_is_in_the_first_fifty(database):
    assert await missing_pieces(database, 1500, 150) == []


@pytest.mark.full
async def test_every_message_of_ten_thousand_that_contains_a_rare_piece_is_found(database):
    assert await missing_pieces(database, 10_000, 1000) == []


async def test_common_words_are_found_in_an_archive_too_large_to_read_them_all(
    database, monkeypatch
):
    monkeypatch.setattr(search_module, "_COMMON", 64)
    monkeypatch.setattr(search_module, "_READ", 100)
    said = [Said(HERE.session_id, n, f"我们的项目第{n}天") for n in range(300)]
    await archive(database, [*said, Said(HERE.session_id, 300, "我们的项目写了蜥蜴")])
    for scope in (HERE, Scope(None)):
        assert len(await found(database, "我们的项目", scope)) == 20
        assert len(await found(database, "项目", scope)) == 20
        assert (await found(database, "我们的项目写了什么蜥蜴", scope))[0] == "我们的项目写了蜥蜴"


# Scope


async def test_a_session_never_finds_the_messages_of_another(database):
    secret = [Said(THERE.session_id, n, f"暗号是{n}号苹果") for n in range(30)]
    await archive(database, [*secret, Said(HERE.session_id, 0, "苹果好吃")])
    assert await found(database, "暗号是苹果") == ["苹果好吃"]
    assert await found(database, "暗号", Scope(HERE.session_id, role="user")) == []
    assert len(await found(database, "暗号", Scope(None), limit=50)) == 30


async def test_sessions_whose_tokens_collide_still_stay_apart(database, monkeypatch):
    monkeypatch.setattr(search_index, "_session_token", lambda _: "\ue000same")
    monkeypatch.setattr(search_index, "_bucket", lambda _: "\ue100")
    await archive(database, [Said(THERE.session_id, 0, "暗号"), Said(HERE.session_id, 0, "早安")])
    assert await found(database, "暗号") == []
    assert await found(database, "早安") == ["早安"]


@pytest.mark.parametrize("session_id", ["", "%", "qq:GroupMessage:", "qq:GroupMessage:1' OR 1=1"])
async def test_a_session_id_is_compared_as_a_whole(talk, session_id):
    assert await found(talk, "香菜", Scope(session_id)) == []


# Failures


async def test_a_search_sees_the_last_commit_while_another_transaction_runs(talk):
    async with talk.writing() as db:
        await db.execute("DELETE FROM archived_messages")
        assert await found(talk, "香菜", limit=1) == [TALK[0]]


async def test_a_search_that_takes_too_long_is_ended(talk, monkeypatch, caplog):
    monkeypatch.setattr(database_module, "_SEARCH_SECONDS", -1)
    said = [Said(HERE.session_id, n, "香菜" * 20) for n in range(20, 2000)]
    await archive(talk, said, step=2000)
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await search(talk, "香菜", HERE)
    assert caplog.text.count("no search") == 1
    monkeypatch.setattr(database_module, "_SEARCH_SECONDS", 10)
    assert (await search(talk, "香菜", HERE)).total > 0
    assert talk.problem is None


async def test_a_closed_database_is_storage_unavailable(talk):
    await talk.close()
    with pytest.raises(StorageUnavailable):
        await search(talk, "香菜", HERE)


async def test_a_database_that_is_gone_is_storage_unavailable_and_not_created_anew(talk):
    gone = talk.path.with_name("gone.db")
    talk.path = gone
    with pytest.raises(StorageUnavailable):
        await search(talk, "香菜", HERE)
    assert not gone.exists()


async def test_a_damaged_index_is_storage_unavailable(talk):
    async with talk.writing() as db:
        await db.execute("UPDATE message_index_data SET block = x'00' WHERE id > 10")
    with pytest.raises(StorageUnavailable):
        await search(talk, "香菜", HERE)


async def test_many_searches_at_once_all_answer(talk):
    results = await asyncio.gather(*(found(talk, text) for text in TALK * 5))
    assert all(TALK[n % len(TALK)] in texts for n, texts in enumerate(results))


# The index


async def rows_of(database):
    async with database.reading() as db:
        rows = await db.execute_fetchall(
            "SELECT id, session_id, sender, text FROM archived_messages ORDER BY id"
        )
    return [tuple(row) for row in rows]


async def remove_rows(database, rows):
    async with database.writing() as db:
        await search_index.remove(db, rows)
        await db.executemany("DELETE FROM archived_messages WHERE id = ?", [r[:1] for r in rows])


def index_bytes(path):
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT block FROM message_index_data").fetchall()
    return b"".join(row[0] for row in rows)


async def test_removed_rows_are_not_found_and_the_others_are(talk):
    await remove_rows(talk, (await rows_of(talk))[:1])
    assert await found(talk, "香菜") == []
    assert await found(talk, "火锅") == [TALK[4]]


async def test_compacting_leaves_nothing_of_removed_rows(talk):
    for number in range(50):
        await archive(talk, [Said(THERE.session_id, number, f"暗号qwxzk{number}")], step=1)
    assert b"qwxzk" in index_bytes(talk.path)
    secret = [row for row in await rows_of(talk) if row[1] == THERE.session_id]
    await remove_rows(talk, secret)
    await search_index.compact(talk)
    assert b"qwxzk" not in index_bytes(talk.path)
    assert await found(talk, "香菜", limit=1) == [TALK[0]]


async def test_a_rolled_back_transaction_leaves_the_index_as_it_was(talk):
    with pytest.raises(ZeroDivisionError):
        async with talk.writing() as db:
            await search_index.add(db, [(999, HERE.session_id, "", "香菜")])
            raise ZeroDivisionError
    assert (await search(talk, "香菜", HERE)).total == 1


async def test_rows_older_than_the_index_are_indexed_once(talk):
    async with talk.writing() as db:
        await db.execute("INSERT INTO message_index (message_index) VALUES ('delete-all')")
        await db.execute("DELETE FROM message_index_state")
    assert await found(talk, "火锅") == []
    assert await search_index.index_pending(talk) == len(TALK)
    assert await search_index.index_pending(talk) == 0
    assert await found(talk, "火锅") == [TALK[4]]


async def test_terms_of_another_version_are_replaced(talk, monkeypatch):
    await search_index.index_pending(talk)
    monkeypatch.setattr(search_index, "_VERSION", "next")
    monkeypatch.setattr(search_index, "index_terms", lambda text: ["新词"])
    assert await search_index.index_pending(talk) == len(TALK)
    with sqlite3.connect(talk.path) as db:
        [(holders,)] = db.execute(
            "SELECT count(*) FROM message_index(?)",
            (f'"{search_index._bucket(HERE.session_id)}新词"',),
        )
    assert holders == len(TALK)


async def test_indexing_that_fails_half_way_goes_on_from_there(talk, monkeypatch):
    monkeypatch.setattr(search_index, "STEP", 5)
    add, calls = search_index.add, []

    async def failing(db, rows):
        calls.append(len(rows))
        if len(calls) == 2:
            raise sqlite3.OperationalError("disk I/O error")
        await add(db, rows)

    async with talk.writing() as db:
        await db.execute("DELETE FROM message_index_state")
    monkeypatch.setattr(search_index, "add", failing)
    with pytest.raises(StorageUnavailable):
        await search_index.index_pending(talk)
    assert await search_index.index_pending(talk) == len(TALK) - 5
    for text in TALK[:1] + TALK[4:5]:
        assert (await found(talk, text[:3]))[0] == text


async def test_rows_that_come_and_go_while_others_are_pending_are_right(talk, monkeypatch):
    await search_index.prepare(talk)
    monkeypatch.setattr(search_index, "_VERSION", "next")
    await search_index.prepare(talk)
    rows = await rows_of(talk)
    await remove_rows(talk, rows[:1])
    await archive(talk, [Said(HERE.session_id, 50, "新来的香菜")])
    await remove_rows(talk, rows[-1:])
    await search_index.index_pending(talk)
    assert await found(talk, "香菜") == ["新来的香菜"]
    assert await found(talk, "菜单") == []
    with sqlite3.connect(talk.path) as db:
        db.execute("INSERT INTO message_index (message_index) VALUES ('integrity-check')")

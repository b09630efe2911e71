"""Generated texts of many kinds, for measuring token counts.

Invariants:

* The same random generator state gives the same text, on every machine.
* Every text is made here from word lists; source code is this Python's own
  standard library, which differs a little between versions.
"""

import inspect
import json
import json.decoder
import textwrap
from argparse import ArgumentParser
from email.message import Message
from random import Random
from urllib.parse import urlsplit


def _words(text: str) -> list[str]:
    return text.split("|")


_ZH_NAMES = _words("小林|阿宇|王老师|陈默|思思|老周|Kevin|北北|沈工|团子|猫猫|张姐|群主|大刘|一一")
_ZH_PLACES = [
    "杭州",
    "火车站",
    "三楼会议室",
    "人民广场",
    "食堂",
    "图书馆",
    "成都",
    "地铁口",
    "操场",
    "医院",
    "公司楼下",
    "云南",
    "老家",
]
_ZH_TIMES = [
    "昨天晚上",
    "下周三",
    "刚才",
    "今天早上八点",
    "月底",
    "国庆期间",
    "2025年3月12日",
    "两个小时后",
    "去年冬天",
]
_ZH_THINGS = _words(
    "测试环境的数据库|那本推理小说|新买的机械键盘|项目进度表|红烧排骨的做法|电脑显卡驱动|"
    "期末考试的范围|报销发票|猫粮|服务器证书|体检报告|群里的投票|演唱会门票|"
    "毕业论文第二章|聊天机器人的插件|空调遥控器"
)
_ZH_VERBS = [
    "整理",
    "修好",
    "发给大家",
    "重新部署",
    "翻译成英文",
    "打印",
    "确认",
    "取消",
    "对比一下",
    "备份",
    "讨论",
    "退掉",
    "研究",
]
_ZH_FEELINGS = _words("挺着急的|特别开心|有点担心|没什么感觉|快崩溃了|觉得很值|还在犹豫|哭笑不得")
_ZH_SENTENCES = (
    "{name}说{time}要把{thing}{verb}，你还记得吗？",
    "我{time}在{place}等了{n}分钟，{name}才到，{feeling}。",
    "帮我{verb}{thing}，顺便提醒{name}{time}去{place}。",
    "其实{thing}这件事，关键不在于快慢，而在于有没有人愿意认真地{verb}。",
    "根据目前的情况，建议先{verb}{thing}，再考虑{time}去{place}的安排。",
    "哈哈哈哈{name}太搞笑了吧，居然把{thing}忘在{place}了",
    "如果预算只有{n}元，可以优先{verb}{thing}；其余的部分等{time}再说。",
    "第{n}步：打开设置页面，找到“{thing}”这一项，然后点击{verb}按钮。",
    "为什么会这样呢？原因有三：一是时间太紧，二是{thing}没人负责，三是{name}{feeling}。",
    "好的，已经记下来了：{time}，{place}，{name}负责{verb}{thing}。",
    "窗外的雨下了一整夜，{name}坐在{place}的灯下，忽然想起{time}那件没有说完的事。",
    "总的来说，这种方案的优点是稳定，缺点是需要人工{verb}{thing}，维护成本偏高。",
)
_EN_NAMES = _words("Alice|Marcus|Priya|Jonathan|Mei|Oleg|Fatima|Sam|Beatrice|Dr.Nguyen")
_EN_PLACES = [
    "the office",
    "Barcelona",
    "our staging cluster",
    "the library",
    "Gate 14",
    "my parents' house",
]
_EN_TIMES = _words("yesterday|next Tuesday|at 9:30 am|in about two weeks|last winter|tonight")
_EN_THINGS = _words(
    "the quarterly report|a broken coffee machine|our database migration|"
    "the travel itinerary|that mystery novel|the authentication middleware|"
    "a birthday present|the insurance paperwork|an asynchronous job queue|"
    "the vegetable garden|his old motorcycle|the budget spreadsheet"
)
_EN_VERBS = [
    "review",
    "postpone",
    "refactor",
    "double-check",
    "translate",
    "summarize",
    "cancel",
    "explain",
    "archive",
]
_EN_SENTENCES = (
    "{name} told me {time} that we should {verb} {thing} before anyone notices.",
    "Could you {verb} {thing} and send the result to {name} {time}?",
    "I waited for {n} minutes at {place}, but nobody showed up.",
    "Honestly, {thing} isn't the problem; it's that nobody wants to {verb} it.",
    "Here's a short plan: first {verb} {thing}, then meet {name} at {place}.",
    "According to the documentation, you can {verb} {thing} only from version {n}.{n} on.",
    "lol ok, idk why {name} would even {verb} that",
    "The trade-off between latency and throughput depends on how often you {verb} {thing}.",
    "It was raining when {name} arrived at {place}, carrying {thing} under one arm.",
    "Sure! I've noted it down: {time}, {place}, {name} will {verb} {thing}.",
)
_JA_NAMES = _words("田中さん|美咲|佐藤先生|ケンジ|部長|ゆき")
_JA_THINGS = _words("会議の資料|新しいパソコン|旅行の計画|テストの結果|お弁当|サーバーの設定")
_JA_PLACES = _words("東京駅|図書館|会社|カフェ|京都|公園")
_JA_SENTENCES = (
    "{name}は昨日{place}で{thing}を確認したそうです。",
    "すみません、{thing}について教えていただけますか？",
    "来週の月曜日までに{thing}を準備しておかなければなりません。",
    "{place}に着いたら、{name}に連絡してくださいね。",
    "えっ、本当に？{thing}ってそんなに難しいの？",
    "ありがとうございます！とても助かりました。{n}時頃にまた伺います。",
    "先月の売上は{n}万円でしたが、{thing}の影響で来月は少し下がる見込みです。",
    "{name}って{place}に住んでるんだっけ？今度{thing}の話、聞かせてよ。",
    "エラーが出て動きません。もう一度{thing}を見直したほうがいいと思います。",
    "桜が咲くころになると、{name}はいつも{place}までゆっくり歩いていくのだった。",
)
_EMOJI = _words("😀|😂|🤣|😭|👍|🙏|🎉|❤️|🔥|🐱|👨‍👩‍👧|🇨🇳|✨|😅|🤔|💻|🍜|🏃‍♀️|😡|👀")
_HOSTS = [
    "github.com",
    "www.bilibili.com",
    "docs.python.org",
    "example.org",
    "mp.weixin.qq.com",
    "arxiv.org",
]
_SLUGS = _words("issues|releases|video|article|wiki|search|v2|abs|detail|archive|image")
_TYPES = ("string", "integer", "boolean")
_SOURCES = (json.decoder, textwrap, inspect, ArgumentParser, Message, urlsplit)


def _filled(random: Random, sentences: tuple, **words: list) -> str:
    values = {name: random.choice(choices) for name, choices in words.items()}
    return random.choice(sentences).format(n=random.randint(2, 400), **values)


def chinese(random: Random) -> str:
    """One Chinese sentence."""
    return _filled(
        random,
        _ZH_SENTENCES,
        name=_ZH_NAMES,
        place=_ZH_PLACES,
        time=_ZH_TIMES,
        thing=_ZH_THINGS,
        verb=_ZH_VERBS,
        feeling=_ZH_FEELINGS,
    )


def english(random: Random) -> str:
    """One English sentence and a space."""
    sentence = _filled(
        random,
        _EN_SENTENCES,
        name=_EN_NAMES,
        place=_EN_PLACES,
        time=_EN_TIMES,
        thing=_EN_THINGS,
        verb=_EN_VERBS,
    )
    return sentence + " "


def japanese(random: Random) -> str:
    """One Japanese sentence."""
    return _filled(random, _JA_SENTENCES, name=_JA_NAMES, place=_JA_PLACES, thing=_JA_THINGS)


def emoji(random: Random) -> str:
    """One to four emoji."""
    return "".join(random.choices(_EMOJI, k=random.randint(1, 4)))


def url(random: Random) -> str:
    """A link with numbers and a random id."""
    path = "/".join(random.choices(_SLUGS, k=random.randint(1, 3)))
    token = "".join(
        random.choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=11)
    )
    return f" https://{random.choice(_HOSTS)}/{path}/{random.randint(1, 99999)}?id={token}&p=2 "


def code(random: Random) -> str:
    """Ten to forty lines of Python in a fence."""
    lines = inspect.getsource(random.choice(_SOURCES)).splitlines()
    start = random.randrange(max(1, len(lines) - 40))
    picked = "\n".join(lines[start : start + random.randint(10, 40)])
    return f"\n```python\n{picked}\n```\n"


def json_text(random: Random) -> str:
    """A tool's answer as JSON: numbers, ids, times, mixed languages."""
    items = [
        {
            "id": random.getrandbits(40),
            "title": chinese(random) if random.random() < 0.5 else english(random).strip(),
            "score": round(random.random() * 100, 3),
            "created_at": f"2025-0{random.randint(1, 9)}-1{random.randint(0, 9)}T08:30:00Z",
            "tags": random.choices(_SLUGS, k=2),
            "ok": random.random() < 0.5,
        }
        for _ in range(random.randint(1, 6))
    ]
    return json.dumps(items, ensure_ascii=False, indent=random.choice((None, 2)))


# Shares of the kinds of pieces in a message, by kind of conversation.
_MIXES = {
    "chinese": {chinese: 20, emoji: 1, url: 0.3},
    "english": {english: 20, emoji: 0.5, url: 0.5},
    "japanese": {japanese: 20, emoji: 2},
    "group": {chinese: 10, emoji: 4, url: 1, english: 1},
    "programming": {chinese: 4, english: 4, code: 2, json_text: 0.5},
    "data": {chinese: 2, json_text: 3, url: 2},
    "mixed": {chinese: 5, english: 5, japanese: 2, code: 0.3, json_text: 0.3, emoji: 1, url: 1},
}
KINDS = tuple(_MIXES)


def text(random: Random, kind: str, pieces: int) -> str:
    """A message of so many pieces of one kind of conversation."""
    mix = _MIXES[kind]
    makers = random.choices(list(mix), weights=list(mix.values()), k=pieces)
    return "".join(make(random) for make in makers).strip()


def tool_schema(random: Random, number: int) -> dict:
    """A tool in the OpenAI format with a description and parameters."""
    names = random.sample(_SLUGS, random.randint(1, 4))
    describe = english if random.random() < 0.6 else chinese
    properties = {
        name: {"type": random.choice(_TYPES), "description": describe(random)} for name in names
    }
    return {
        "type": "function",
        "function": {
            "name": f"{names[0]}_{number}",
            "description": "".join(describe(random) for _ in range(random.randint(1, 4))),
            "parameters": {"type": "object", "properties": properties, "required": names[:1]},
        },
    }

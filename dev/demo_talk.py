"""What is said in the demo, and a model that knows only what its requests hold.

Invariants:
- An answer about the cat is read out of the request; so is every line of a summary.
- The same request always gets the same answer.
"""

import json
import re

from .script import Reply, last_user_text

FIXED_MEMORY = "用户叫小明，称呼他“老板”。回答用中文，语气轻松，不超过三句话。"
HELLO = "你好，我们认识一下吧。"
FACT = "我的猫叫团子，生日是3月14日。"
QUESTION = "你还记得我家猫的名字和生日吗？"
UNKNOWN = "我看到的内容里没有这件事。"
TOPICS = (
    "周末想去爬山，应该带些什么？",
    "我住在杭州，附近有什么好走的路线？",
    "上次走了12公里，膝盖有点疼。",
    "晚饭想吃面，有什么简单的做法？",
    "家里只有鸡蛋、番茄和青菜。",
    "最近在读《三体》，第二部比第一部好看。",
    "有没有风格接近的小说？",
    "阳台上的薄荷叶子发黄了。",
    "我大概三天浇一次水。",
    "想学吉他，从哪里开始比较好？",
    "每天能练习的时间不多。",
    "手机空间总是不够用，怎么清理？",
    "照片有一万多张，不舍得删。",
    "下个月要出差去成都，住在哪里方便？",
    "航班是CA4113，早上8点起飞。",
    "早起总是很困难，有什么办法？",
    "咖啡喝多了晚上睡不着。",
    "想换一把椅子，久坐腰疼。",
    "预算是800元左右。",
    "朋友结婚送什么礼物合适？",
    "他们两个都喜欢露营。",
    "怎样拍出好看的夜景？",
    "三脚架有点重，不想背。",
    "最近想开始记账，用什么方法？",
    "主要花在吃饭和交通上。",
    "谢谢，聊了很多，今天就到这里吧。",
)
TURNS = (FACT, *TOPICS, "对了，再问一件以前说过的事。", QUESTION)

_ADVICE = (
    "先从最小的一步开始，试一两次，再看看哪里不合适，不用一下子做到完美。",
    "如果时间不多，把它放在每天固定的时刻，做完就打个勾，慢慢会变成习惯。",
    "可以先列一个清单，分成必须的和可有可无的，然后只准备必须的那一半。",
    "这件事因人而异，多留意自己的感觉，不舒服就停下来，第二天再决定要不要继续。",
    "附近有经验的朋友往往比网上的攻略可靠，问一句能省下很多来回折腾的工夫。",
)


def _everything(body: dict) -> str:
    return json.dumps(body["messages"], ensure_ascii=False)


def answer_about_the_cat(body: dict) -> str:
    """Answers the question from what the request holds, or says that it cannot."""
    found = re.search(r"猫叫(\w+?)，生日是(\d+月\d+日)", _everything(body))
    return f"记得，{found[1]}，{found[2]}。" if found else UNKNOWN


def chat_reply(body: dict) -> Reply | None:
    """The model's answers in the chat; passes on whatever is not part of the talk."""
    said = next((t for t in (HELLO, *TURNS) if t in last_user_text(body)), None)
    if said is None or not body.get("tools"):
        return None
    if said == QUESTION:
        return Reply(answer_about_the_cat(body))
    if said == FACT:
        return Reply("好的，老板，我记住了。")
    first = len(said) % len(_ADVICE)
    advice = _ADVICE[first] + _ADVICE[(first + 2) % len(_ADVICE)]
    return Reply(f"老板，你说“{said.rstrip('。？')}”，我的想法是：{advice}")


def summarise(body: dict) -> Reply:
    """A summary: of the people's words, every statement with a number or a name."""
    prompt = last_user_text(body)
    earlier = re.findall(r"^- .+$", _between(prompt, "summary_so_far"), re.MULTILINE)
    messages = _between(prompt, "messages")
    said = re.findall(r"^\[\d+\] user: (.+)$", messages, re.MULTILINE)
    sentences = [s for text in said for s in re.findall(r"[^。？！]+[。？！]?", text)]
    facts = [
        f"- {sentence.strip()}"
        for sentence in sentences
        if not sentence.endswith("？") and re.search(r"\d|叫|《|我住", sentence)
    ]
    lines = dict.fromkeys([*earlier, *facts])
    return Reply("\n".join(["## 事实与人物 / Facts and people", *lines]))


def _between(prompt: str, tag: str) -> str:
    found = re.search(rf"^<{tag}>\n(.*?)\n^</{tag}>", prompt, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""

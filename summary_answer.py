"""What of a model's answer may be kept as a summary.

Pure. An answer is either a summary or a ``CompressionRefused`` with the reason; it
is never shortened or repaired beyond taking off wrappers and the line that announces
a summary. Reasoning is never kept.

Refusals, errors and answers to the chat are recognised only where they open a short
answer: a summary may well quote one, and a summary that is thrown away by mistake
costs a call, while an error text that is stored replaces everything the model knew.
"""

import re
from collections.abc import Sequence

from .context_logic import FIXED_FRAME, SUMMARY_FRAME
from .errors import CompressionRefused
from .message_text import beginning, clean_text

SHORT_ANSWER = 400
_MAX_WRAPPERS = 8
_CUT_OFF = ("length", "max_tokens", "max_output_tokens")
_FILTERED = ("content_filter", "safety", "refusal")

# Tags in backticks are talked about, not used.
_NAME = (
    r"(?:think(?:ing)?|thoughts?|thought_process|ant_?thinking|reason(?:ing)?|analysis"
    r"|reflection|scratchpad)"
)
# What is captured tells a closing tag.
_TAG = re.compile(
    rf"(?<!`)(?:[<◁＜](/?)(?:seed:)?{_NAME}(?:\s[^>▷＞\n]{{0,200}})?[>▷＞]|&lt;(/?){_NAME}&gt;"
    rf"|<\|(/?){_NAME}\|>|<\|(?:begin|(end))_of_thought\|>|(?-i:\[(/?)THINK\]))",
    re.IGNORECASE,
)
# Channels of a model's raw output; only the last one is meant for a reader.
_CHANNEL = re.compile(r"<\|channel\|>(\w+)[^<]{0,100}<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|start)\|>.*\Z", re.DOTALL)
_ONE_LINE_FENCE = re.compile(r"\A```([^`\n]+)```\Z")
_OPENING_FENCE = re.compile(r"\A(`{3,}|~{3,})[^\n`]*(?:\n|\Z)")
# A tag round the whole answer.
_ENVELOPE = re.compile(
    r"\A<(summary|answer|output|response|final|final_answer)>(.*)</\1>\Z"
    r"|\A<\|begin_of_(solution)\|>(.*)<\|end_of_solution\|>\Z",
    re.IGNORECASE | re.DOTALL,
)
_WRAPPER = re.compile(
    r"^[#*_> \t]*(?:[=-]+[ \t]*(?:AI Summary|Fixed Memory)[ \t]*[=-]+[*_]*"
    r"|</?(?:summary|summary_so_far|messages|assistant_role)>"
    rf"|{re.escape(SUMMARY_FRAME)}|{re.escape(FIXED_FRAME)})[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)

_HEADING = re.compile(r"#{1,6}\s")
_NOTHING = re.compile(r"无|暂无|没有|none|n/?a|nothing|empty|null", re.IGNORECASE)
_MARKUP = " \t-*•·()（）.。"


def _opening(*alternatives: str, before: str = "") -> re.Pattern[str]:
    """Matches a text that begins with one of the alternatives, whatever its markup."""
    return re.compile(rf"\A\W*{before}(?:{'|'.join(alternatives)})", re.IGNORECASE)


_SUMMARISE = r"(?:总结|摘要|概括|归纳|压缩)"
_LOG = r"(?:对话|聊天|历史|记录|消息|内容|文本)"
_TO_SUMMARISE = r"(?:to|worth) (?:be )?(?:summar|compress|condens)"
_MATERIAL = r"(?:conversation|messages?|content|history|chat|text|dialogue|transcript|information)"

_NOTHING_TO_DO = (
    _opening(
        rf"nothing (?:\w+ ){{0,3}}{_TO_SUMMARISE}",
        rf"(?:no|any|not enough) (?:\w+ ){{0,3}}{_MATERIAL}\b(?: \w+){{0,3}} "
        rf"(?:{_TO_SUMMARISE}|provided|given|supplied)",
        r"(?:is|was|appears to be|seems to be) empty",
        rf"please (?:provide|share|send|paste)\b.{{0,50}}{_MATERIAL}",
        before=r"(?:(?:well|ok|okay|actually|currently|it (?:seems|looks like|appears)(?: that)?"
        r"|there(?:'s| is| are| was)|(?:this|the) (?:conversation|chat|history)(?: history)?"
        r"|contains?|has|i see|i (?:do not|don't) see|really)[\s,]+)*",
    ),
    _opening(
        r"(?:没有|没什么|暂无|并无|无)[^，。\n]{0,10}?[可需能值来](?:以|要|供|被|得|进行)*"
        + _SUMMARISE,
        rf"(?:没有|暂无|并无|无)[^，。\n]{{0,8}}{_LOG}[。.!！]?\s*\Z",
        r"为空|是空的",
        rf"(?:没有|未|并未)(?:提供|收到|看到|找到|检测到)[^，。\n]{{0,10}}{_LOG}",
        rf"请[您你]?先?(?:提供|发送|粘贴|给出|输入)[^。\n]{{0,15}}{_LOG}",
        before=r"(?:目前|当前|这里|暂时|以上|上述|提供的|系统|[该本此这您你我段次中里的，,])*"
        rf"(?:{_LOG}|[中里的，,])*",
    ),
)
_REFUSAL = _opening(
    r"unfortunately\b",
    r"apologies\b",
    r"i apologi[sz]e\b",
    r"as an? (?:ai|large language|language)\b",
    r"(?:i(?:'m| am) )?(?:very |so |really )?sorry\b",
    r"i(?:'m| am) (?:unable|not able)\b",
    r"i (?:cannot|can't|can not|won't|will not|do not|don't|could not|couldn't) (?:have|see|find"
    r"|help|assist|provide|comply|summar|create|generate|produce|do|fulfil|process|complete"
    r"|access|answer|continue|discuss|engage)",
    r"(?:[您你]好[，,！!。\s]*)?(?:非常|很|十分|实在)?(?:抱歉|对不起|不好意思)",
    r"(?:[您你]好[，,！!。\s]*)?(?:这个问题)?我?(?:暂时|目前|现在|还)?"
    r"(?:无法|不能|没法|没有学会|没学会)[^，。\n]{0,12}"
    rf"(?:{_SUMMARISE}|回答|协助|帮助|给到|(?:提供|完成)(?:[该此这您你]|相关|任何))",
    r"作为(?:一个|一名)?[^，。\n]{0,6}(?:AI|人工智能|语言模型)",
)
_ERROR = _opening(
    r"an? (?:\w+ )?error (?:has )?occurred\b",
    r"[a-z_.]*(?:error|exception|timeout)\s*[:(]",
    r"(?:(?:api|http|internal|server|model|llm|request|network|connection|provider|unknown) )*"
    r"error\b\s*(?:code)?\s*(?:[:\d(-]|[.!]?\s*\Z)",
    r"(?:the )?(?:api |llm |model )?(?:request|connection|call) "
    r"(?:failed|timed out|timeout|refused|error|aborted|reset)\b",
    r"rate limit (?:reached|exceeded)",
    r"too many requests",
    r"quota exceeded",
    r"insufficient (?:quota|balance|credit)",
    r"(?:http[/\d. ]*)?(?:status(?: code)? )?[45]\d\d[\s:,-]*(?:(?:client|server|internal) )*"
    r"(?:error|unauthori|forbidden|bad (?:request|gateway)|not found|too many|service unavail"
    r"|gateway|payment)",
    r"(?:this model's )?maximum context length",
    r"context length exceeded",
    r"(?:the )?(?:server|service|model|engine) is (?:currently |temporarily )*"
    r"(?:overloaded|busy|unavailable)",
    r"service (?:temporarily )?unavailable",
    r"(?:[a-z]{2,10}|模型|接口|阿里云百炼)?\s?(?:请求|调用|连接)(?:失败|超时|出错|异常)",
    r"(?:错误|异常|出错了?|报错)(?:代码|码|信息)?\s*[:：]",
    r"(?:发生|出现|遇到)了?(?:未知|内部|网络|服务器|系统)(?:错误|异常)",
    r"(?:服务器|系统|网络)(?:内部)?(?:错误|异常)[，,。.!！]?\s*(?:请|稍后|\Z)",
    r"(?:服务器?|系统|网络|模型)[^，。\n]{0,4}(?:繁忙|不可用|过载)",
    r"(?:账户|账号)(?:余额|额度)[^，。\n]{0,4}(?:不足|用完|用尽)",
)
_ERROR_OF_ANY_LENGTH = re.compile(
    r"\A\s*(?:llm 响应错误|all (?:available )?chat models (?:failed|are unavailable)|error code: \d"
    r"|traceback \(most recent call last\)|\{\s*[\"'](?:error|detail|code)[\"']\s*:"
    r"|<!doctype html|<html)",
    re.IGNORECASE,
)
# "Sure, here is the summary:" before the summary itself.
_ANNOUNCED = re.compile(
    r"\A(?:(?:sure|certainly|of course|okay|ok|here)\b|(?:好的|好|当然|没问题|以下|下面))"
    r"[^\n]{0,80}[:：][ \t*]*\n+(?=\s*\S)",
    re.IGNORECASE,
)
# Said to somebody, not about somebody.
_SPOKEN_TO = re.compile(
    r"\A\s*(?:"
    r"(?:sure|certainly|of course|absolutely|okay|ok|yes|no problem|hello|hi|hey|thanks|thank you"
    r"|great question|good question|got it|understood)(?: \w+)?\s*[,!.]"
    r"|you(?:'re| are) welcome\b|(?:i'd|i would) be (?:happy|glad)\b|(?:happy|glad) to help\b"
    r"|(?:好的|好呀|好啊|好嘞|当然(?:可以)?|没问题|明白了?|收到|知道了|记住了|可以的|嗯嗯?|[您你]好|哈哈+|谢谢)"
    r"\s*[呀啊的了]?[，,！!。~～]"
    r"|不客气|很高兴(?:能|为)"
    r"|(?:assistant|ai|助手|机器人)\s*[:：]"
    r")",
    re.IGNORECASE,
)
# An offer or a question to the reader at the very end.
_OFFER = re.compile(
    r"(?:(?:let me know if|feel free to|how can i (?:help|assist)|would you like(?: me)? to"
    r"|do you (?:want|need) me to|anything else i can)[^\n]{0,80}"
    r"|(?:需要我|要不要我|要我)[^。\n]{0,30}吗"
    r"|(?:还有什么|有什么)[^，。\n]{0,12}(?:可以帮|能帮|需要)[^，。\n]{0,10}[?？]"
    r"|请(?:随时)?告诉我[^。\n]{0,20})[?？!！。.]*\s*\Z",
    re.IGNORECASE,
)
_STRUCTURE = re.compile(r"^\s*(?:#{1,6}\s|[-*•]\s|\d+[.)、]\s)", re.MULTILINE)
# Shorter messages may well be all that there is to say about a chat.
_REPEATED_LEAST = 40


def clean_answer(
    text: str,
    *,
    role: str = "assistant",
    reasoning: str = "",
    finish: str | None = None,
    spoken: Sequence[str] = (),
) -> str:
    """The summary in a model's answer.

    Args:
        text: The answer's text.
        role: The answer's role as the host reports it; ``err`` is a failure.
        reasoning: Reasoning that the provider reported apart; never kept.
        finish: The provider's finish reason, if known.
        spoken: What the assistant said in the chat; a repetition is no summary.

    Raises:
        CompressionRefused: There is no summary in it.
    """
    text = clean_text(text or "").strip()
    if role == "err":
        raise CompressionRefused("model_failed", error=excerpt(text) or "?")
    ending = (finish or "").lower()
    if ending in _CUT_OFF:
        raise CompressionRefused("answer_cut_off")
    if ending in _FILTERED:
        raise CompressionRefused("answer_refused", excerpt=excerpt(text, 80) or ending)
    cleaned = _without_wrappers(text)
    if not cleaned:
        only_reasoning = reasoning.strip() or without_reasoning(text) != text
        raise CompressionRefused("answer_reasoning_only" if only_reasoning else "answer_empty")
    if says_nothing(cleaned):
        raise CompressionRefused("answer_refused", excerpt=excerpt(cleaned, 80))
    if answers_chat(cleaned, spoken):
        raise CompressionRefused("answer_to_chat", excerpt=excerpt(cleaned, 80))
    return cleaned


def answers_chat(text: str, spoken: Sequence[str] = ()) -> bool:
    """Whether a cleaned answer goes on with the chat instead of summarising it."""
    line = " ".join(text.split())
    if len(line) >= _REPEATED_LEAST and any(line == " ".join(said.split()) for said in spoken):
        return True
    if len(text) > SHORT_ANSWER or _STRUCTURE.search(text):
        return False
    return bool(_SPOKEN_TO.match(text.replace("’", "'")) or _OFFER.search(text))


def says_nothing(text: str) -> bool:
    """Whether a cleaned answer is a stock refusal, an error or an empty form."""
    if _ERROR_OF_ANY_LENGTH.match(text):
        return True
    text = text.replace("’", "'")
    body, gaps = _body(text)
    if gaps and not body:
        return True
    if len(text) <= SHORT_ANSWER and (_REFUSAL.match(text) or _ERROR.match(text)):
        return True
    if len(body) > SHORT_ANSWER:
        return False
    if any(pattern.match(body) for pattern in _NOTHING_TO_DO):
        return True
    return bool(_REFUSAL.match(body) and re.search(rf"{_SUMMARISE}|summar", body))


def unwrapped(text: str) -> str:
    """A summary without the lines that the plugin or a model puts around it."""
    return _WRAPPER.sub("", text).strip()


def without_reasoning(text: str) -> str:
    """A text without reasoning: closed, never closed, or closed without a start."""
    text = _final_channel(text)
    kept, position, inside = [], 0, False
    for tag in _TAG.finditer(text):
        closing = _closes(tag)
        if inside and not closing:
            continue
        if closing and not inside:
            # All before it was reasoning whose start the provider took away.
            kept.clear()
        elif not closing:
            kept.append(text[position : tag.start()])
        position, inside = tag.end(), not closing
    return "".join([*kept, "" if inside else text[position:]]).strip()


def _closes(tag: re.Match[str]) -> bool:
    return any(tag.groups())


def _final_channel(text: str) -> str:
    """What stands in the last channel, if it is the final one; nothing if there is none."""
    channels = list(_CHANNEL.finditer(text))
    if not channels:
        return text
    last = channels[-1]
    return _CHANNEL_END.sub("", text[last.end() :]).strip() if last[1] == "final" else ""


def without_leading_reasoning(text: str) -> str:
    """A message without the closed reasoning block that it begins with."""
    text = text.strip()
    first = _TAG.match(text)
    if first is None or _closes(first):
        return text
    closing = next((tag for tag in _TAG.finditer(text) if _closes(tag)), None)
    return text[closing.end() :].strip() if closing else text


def excerpt(text: str, length: int = 200) -> str:
    """The beginning of a text, on one line and fit to be shown."""
    return beginning(" ".join(clean_text(text).split()), length)


def _body(text: str) -> tuple[str, bool]:
    """The lines that say something, and whether lines say that there is nothing."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _HEADING.match(line)]
    body = [line for line in lines if not _NOTHING.fullmatch(line.strip(_MARKUP))]
    return "\n".join(body), len(body) < len(lines)


def _without_wrappers(text: str) -> str:
    # Wrappers come in any order: reasoning inside a fence, a fence inside a tag.
    for _ in range(_MAX_WRAPPERS):
        previous, text = text, unwrapped(_without_fence(without_reasoning(text)))
        text = _ENVELOPE.sub(lambda tag: tag[2] or tag[4] or "", text)
        text = _ANNOUNCED.sub("", text).strip()
        if text == previous:
            break
    return text


def _without_fence(text: str) -> str:
    """Takes off a code fence that holds the whole text; other code stays."""
    if one_line := _ONE_LINE_FENCE.match(text):
        return one_line[1].strip()
    opening = _OPENING_FENCE.match(text)
    if opening is None:
        return text
    fence = opening[1]
    lines = text[opening.end() :].split("\n")
    inner = [line.strip() for line in lines[:-1] if line.strip().startswith(fence)]
    closed = lines[-1].strip() == fence
    if closed and not (inner and inner[0] == fence):
        return "\n".join(lines[:-1]).strip()
    if not closed and not inner:
        return "\n".join(lines).strip()
    return text

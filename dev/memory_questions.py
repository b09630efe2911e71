"""The written set of memories and questions, and how many of them are found.

``data/recall_zh.tsv`` and ``data/recall_en.tsv`` hold one memory a line, with the
question that should call it up; memories without a question are distractors. A part of
the questions shares no word with its memory and can only be found by meaning.
"""

from dataclasses import dataclass
from pathlib import Path

from astrbot_plugin_context_manager.memory_recall import keyword_scores, ranked
from astrbot_plugin_context_manager.memory_store import Memory

from .scripted_embeddings import embedded

LANGUAGES = ("zh", "en")
TOP = 3
_DATA = Path(__file__).parent / "data"
# Small talk that no memory of the set has to do with.
UNRELATED = {
    "zh": (
        "今天天气怎么样",
        "讲个笑话吧",
        "帮我写一首关于秋天的诗",
        "1+1等于几",
        "推荐一部电影",
        "你好",
        "谢谢你的帮助",
        "为什么天空是蓝色的",
        "帮我总结一下这篇文章",
        "早上好呀",
    ),
    "en": (
        "What is the weather like today?",
        "Tell me a joke",
        "Write a poem about autumn",
        "What is one plus one",
        "Translate this into French",
        "Recommend a film",
        "Hello there",
        "Why is the sky blue?",
        "Summarise this article",
        "Good morning",
    ),
}


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The memories of one language, and the id that each question should find."""

    memories: list[Memory]
    questions: list[tuple[str, int]]


def load(language: str) -> QuestionSet:
    """Reads the set of a language."""
    memories: list[Memory] = []
    questions = []
    for line in (_DATA / f"recall_{language}.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        text, _, question = line.partition("\t")
        number = len(memories) + 1
        memories.append(Memory(number, "s", text, (), "", "user", False, False, 0, None))
        if question:
            questions.append((question, number))
    return QuestionSet(memories, questions)


def found(memories: list[Memory], question: str, with_embeddings: bool) -> list[int]:
    """Ids of the best memories for a question, at most ``TOP``."""
    cosines = None
    if with_embeddings:
        asked = embedded(question)
        cosines = {
            m.id: sum(a * b for a, b in zip(asked, embedded(m.text), strict=True)) for m in memories
        }
    best = ranked(memories, keyword_scores(question, memories), cosines)
    return [one.memory.id for one in best[:TOP]]


def recall(questions: QuestionSet, with_embeddings: bool) -> float:
    """Share of the questions whose memory is among the best ``TOP``."""
    hits = [
        expected in found(questions.memories, question, with_embeddings)
        for question, expected in questions.questions
    ]
    return sum(hits) / len(hits)

"""Prints how well memories are recalled, and how long it takes.

The test embeddings know a small table of words that belong together and nothing else:
their figure shows that keywords and embeddings are joined as they should be, not how
well a real provider does.
"""

import time

from .importable import keep_astrbot_out_of_the_checkout, make_plugin_importable

make_plugin_importable()
keep_astrbot_out_of_the_checkout()

from astrbot_plugin_context_manager.memory_recall import keyword_scores  # noqa: E402

from .memory_questions import LANGUAGES, TOP, UNRELATED, found, load, recall  # noqa: E402


def main() -> None:
    """Prints one line a language."""
    print(f"long-term memory: recall@{TOP}, own questions among all memories of the language")
    for language in LANGUAGES:
        questions = load(language)
        chatter = UNRELATED[language]
        called = sum(bool(found(questions.memories, text, False)) for text in chatter)
        start = time.perf_counter()
        for question, _ in questions.questions:
            keyword_scores(question, questions.memories)
        milliseconds = (time.perf_counter() - start) / len(questions.questions) * 1000
        print(
            f"  {language}: {len(questions.questions)} questions,"
            f" {len(questions.memories)} memories"
            f" | keywords {recall(questions, False):.1%}"
            f" | with test embeddings {recall(questions, True):.1%}"
            f" | small talk that recalls something {called}/{len(chatter)}"
            f" | {milliseconds:.1f} ms a question"
        )


if __name__ == "__main__":
    main()

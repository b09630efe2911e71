"""A host whose model answers by list, and jobs that run on it."""

import asyncio
import contextlib

from astrbot_plugin_context_manager.host import ChatProvider, LLMAnswer

SESSION = "qq:GroupMessage:1"
HISTORY = [
    {"role": "user", "content": "我叫小明，住在广州天河路12号"},
    {"role": "assistant", "content": "记住了"},
    {"role": "_checkpoint", "content": {"id": "x"}},
]


def talk(count, start=0, size=0):
    """Stored messages, question and answer by turns, each with a mark of its own."""
    roles = ("user", "assistant")
    return [
        {"role": roles[n % 2], "content": f"<m{n}>".ljust(size, "字")}
        for n in range(start, start + count)
    ]


class ScriptedHost:
    """The host's side of a compression, with a scripted model.

    ``answers`` are given in order, the last one for good: texts, answers, exceptions,
    or functions of the prompt.
    """

    def __init__(self):
        self.history = {SESSION: list(HISTORY)}
        self.conversations = {}
        self.answers = ["## 事实\n- 小明住在广州天河路12号"]
        self.prompts = []
        self.sent = []
        self.said = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.provider = ChatProvider("p", "model-x", 0)
        self.providers = {}
        self.role = ""

    async def load_history(self, session_id):
        return self.conversation(session_id), list(self.history.get(session_id, []))

    def conversation(self, session_id):
        if session_id not in self.history:
            return None
        return self.conversations.get(session_id, f"conv-{session_id}")

    async def current_chat_provider(self, session_id):
        return self.provider

    def chat_provider(self, provider_id):
        return self.providers.get(provider_id)

    async def persona(self, session_id, conversation_id):
        return self.role

    async def send_text(self, session_id, text):
        self.said.append((session_id, text))
        return True

    async def generate(self, session_id, provider, system_prompt, prompt):
        self.prompts.append((session_id, prompt))
        self.sent.append((provider.provider_id, system_prompt + prompt))
        self.asked.set()
        await self.gate.wait()
        answer = self.answers[min(len(self.prompts), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, LLMAnswer):
            return answer
        text = answer(prompt) if callable(answer) else answer
        return LLMAnswer(text, "assistant", "", 120, 30, "stop")


async def finished(compressor, session_id=SESSION, focus="", rebuild=False):
    """A job that has ended."""
    job = compressor.start(session_id, focus, rebuild)
    await job.wait()
    return job


@contextlib.asynccontextmanager
async def running(compressor, host):
    """A job that is waiting for its model; it goes on when the block ends."""
    host.gate.clear()
    job = compressor.start(SESSION)
    await host.asked.wait()
    yield job
    host.gate.set()
    await job.wait()


def lines_about(caplog, session_id):
    """The log lines that name a session."""
    return [r for r in caplog.records if session_id in r.getMessage()]

"""Does what other plugins do to a request, by keywords in the user's text.

``nb-add`` adds text to the system prompt and the user message, ``nb-temp`` a part
that is not saved, ``nb-begin`` messages at the agent's start, ``nb-stop-response``
and ``nb-stop-done`` stop the event in that hook, ``nb-raise`` raises in every hook.
The command ``own`` makes a request without a conversation.
"""

from astrbot.api.event import AstrMessageEvent, filter
from astrbot.api.star import Star
from astrbot.core.agent.message import Message, TextPart


class Neighbour(Star):
    """One plugin for all tests; without a keyword it does nothing."""

    @filter.on_llm_request()
    async def on_request(self, event: AstrMessageEvent, req):
        """Adds text, or raises."""
        self._maybe_raise(event)
        if "nb-add" in event.message_str:
            req.system_prompt += "\nneighbour's rule\n===== Fixed Memory =====\nnot a section"
            req.prompt += " neighbour's words"
        if "nb-temp" in event.message_str:
            part = TextPart(text="neighbour's passing note")
            req.extra_user_content_parts.append(part.mark_as_temp())

    @filter.on_agent_begin()
    async def on_begin(self, event: AstrMessageEvent, run_context):
        """Adds a message to the history, or raises."""
        self._maybe_raise(event)
        if "nb-begin" in event.message_str:
            run_context.messages.insert(-1, Message(role="system", content="neighbour's note"))

    @filter.on_llm_response()
    async def on_response(self, event: AstrMessageEvent, response):
        """Stops the event, or raises."""
        self._maybe_raise(event)
        if "nb-stop-response" in event.message_str:
            event.stop_event()

    @filter.on_agent_done()
    async def on_done(self, event: AstrMessageEvent, run_context, response):
        """Stops the event, or raises."""
        self._maybe_raise(event)
        if "nb-stop-done" in event.message_str:
            event.stop_event()

    @filter.command("own")
    async def own(self, event: AstrMessageEvent):
        """Asks the model without a conversation."""
        contexts = [
            {"role": "user", "content": "own question 1: earlier"},
            {"role": "assistant", "content": "own answer 1: earlier"},
        ]
        yield event.request_llm(
            prompt=f"own request {event.message_str}",
            contexts=contexts,
            system_prompt="own system prompt",
        )

    @staticmethod
    def _maybe_raise(event: AstrMessageEvent) -> None:
        if "nb-raise" in event.message_str:
            raise RuntimeError("neighbour fails on purpose")

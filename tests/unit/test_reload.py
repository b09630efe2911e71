"""A request that one instance of the plugin prepared may be built by the next."""

import asyncio
from types import SimpleNamespace

import pytest
from astrbot_plugin_context_manager.context_logic import FIXED_MARKER
from astrbot_plugin_context_manager.message_text import Draft
from astrbot_plugin_context_manager.request_flow import RequestFlow

from .test_memory_bounds import Event, flow  # noqa: F401  a fixture

MEMORY = "the cat is called Momo"


def instance_like(flow: RequestFlow) -> RequestFlow:  # noqa: F811
    """Another instance of the plugin, on the same host and database."""
    return RequestFlow(flow.host, flow.tokens, flow.settings, flow.storage, flow.clock, flow.log)


@pytest.fixture
async def prepared(flow):  # noqa: F811
    """An event whose request has passed the first hook of ``flow``, and the run to come."""
    event = Event(1)
    conversation = SimpleNamespace(cid="c1", token_usage=9000)
    request = SimpleNamespace(conversation=conversation, func_tool=None)
    await flow.see_session(event)
    await flow.storage.update_session(event.unified_msg_origin, {"fixed_memory": MEMORY}, None, 1)
    await flow.prepare(event, request)
    return event, request, SimpleNamespace(messages=[flow.host.make_message(Draft("user", "now"))])


async def test_a_request_prepared_before_a_reload_is_built_after_it(flow, prepared):  # noqa: F811
    event, request, run = prepared
    flow.close()
    new = instance_like(flow)
    await new.build(event, run)
    assert FIXED_MARKER in run.messages[0].content
    assert request.conversation.token_usage == 0
    await new.finish(event, run)
    assert [message.content for message in run.messages] == ["now"]


async def test_a_run_that_was_built_before_a_reload_is_not_built_again(flow, prepared):  # noqa: F811
    event, _, run = prepared
    await flow.build(event, run)
    sent = list(run.messages)
    flow.close()
    await instance_like(flow).build(event, run)
    assert run.messages == sent
    await asyncio.sleep(0)

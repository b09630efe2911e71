"""The page's calls about requests: what the last ones were, what the next one sends."""

from dataclasses import asdict
from typing import Any

from .api_models import PreviewQuery, RequestsQuery, TopicBody
from .api_sessions import required_session
from .errors import STARTING, StorageUnavailable
from .preview import kept_answers, preview
from .request_flow import RequestFlow
from .status import change_topic

# Days of sums that the page shows.
DAYS = 60
CHANGED = ("topic_started", "topic_undone")


class RequestApi:
    """The handlers; ``plugin`` offers storage and flow."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin
        self._previews = kept_answers()

    @property
    def _flow(self) -> RequestFlow:
        if self._plugin.flow is None:
            raise StorageUnavailable(STARTING)
        return self._plugin.flow

    async def requests(self, query: RequestsQuery) -> dict[str, Any]:
        await required_session(self._plugin, query.session_id)
        records = await self._flow.log.newest(query.session_id, query.limit)
        items = [asdict(record) for record in records]
        for item in items:
            del item["session_id"]
        days = await self._flow.log.days(query.session_id, DAYS)
        return {"items": items, "days": [asdict(day) for day in days]}

    async def topic(self, body: TopicBody) -> dict[str, Any]:
        await required_session(self._plugin, body.session_id)
        key = await change_topic(self._flow, body.session_id, body.undo)
        return {"changed": key in CHANGED, "message": self._plugin.texts.get(key)}

    async def preview(self, query: PreviewQuery) -> dict[str, Any]:
        session = await required_session(self._plugin, query.session_id)
        return await preview(self._flow, session, query.limit, self._previews)

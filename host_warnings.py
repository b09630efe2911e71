"""Settings of the host that work against the plugin, and how the user is told.

Pure: reads configurations, by their keys and never by a version.
"""

from typing import Any


def context_settings(config: Any) -> tuple[Any, Any]:
    """Strategy and turn limit, from whichever place this host keeps them in."""
    runner = (config.get("agent_runner") or {}).get("config") or {}
    compression = runner.get("compression")
    if isinstance(compression, dict):
        return compression.get("overflow_strategy"), compression.get("max_turns")
    settings = config.get("provider_settings") or {}
    return settings.get("context_limit_reached_strategy"), settings.get("max_context_length")


_WARNINGS = {
    "host_strategy": (
        "{where}AstrBot 的“历史超限或上下文接近上限时的处理方式”现在是“{value}”，",
        "它会在本插件之外再压缩或改写历史。请改为“按对话轮数截断”(truncate_by_turns)。",
        " / {where}AstrBot's own overflow strategy is '{value}'; set it to truncate_by_turns.",
    ),
    "host_turn_limit": (
        "{where}AstrBot 的“压缩前最多保留对话轮数”现在是 {value}，",
        "超出的轮次会被 AstrBot 自己丢掉。请改为 -1（不限制）。",
        " / {where}AstrBot's own turn limit is {value}; set it to -1.",
    ),
    "host_features": (
        "这个 AstrBot 版本缺少插件需要的接口（{value}），",
        "插件不再裁剪请求，仍会注入固定记忆和摘要。",
        " / This AstrBot lacks {value}; requests are not cut.",
    ),
}


def warning(code: str, value: Any, profile: str = "") -> dict[str, str]:
    """A warning as the page and the log show it; ``profile`` names a configuration."""
    where = f"[{profile}] " if profile else ""
    message = "".join(_WARNINGS[code]).format(value=value, where=where)
    return {"code": code, "message": message}

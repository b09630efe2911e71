"""The hosts that the tests share: version and context settings.

A profile also says what history a session of it gets, so that the plugin has to
leave turns out and, where the host cuts by itself, the host gets its reason to.
"""

from dataclasses import dataclass, field
from pathlib import Path

from dev.host_process import HostConfig

VERSIONS = ("4.26.7", "4.29.3")


@dataclass(frozen=True)
class Profile:
    """Context settings of a host, and the history its sessions start with."""

    name: str
    strategy: str = "truncate_by_turns"
    max_turns: int = -1
    max_context_tokens: int = 0
    budget: int = 4000
    turns: int = 20
    turn_size: int = 1000
    tool: str = "lookup"
    host_cuts: bool = False
    with_plugin: bool = True
    with_embeddings: bool = False
    extra: dict = field(default_factory=dict, hash=False)
    plugins: tuple[Path, ...] = ()

    def config(self, version: str) -> HostConfig:
        """How to start this profile's host in one version."""
        return HostConfig(
            version=version,
            strategy=self.strategy,
            max_turns=self.max_turns,
            max_context_tokens=self.max_context_tokens,
            with_plugin=self.with_plugin,
            with_embeddings=self.with_embeddings,
            plugin_config={"recent_context_token_budget": self.budget},
            settings=self.extra,
            plugins=self.plugins,
        )


BARE = Profile("bare", with_plugin=False)
NONE = Profile("none")
EMBEDDINGS = Profile("embeddings", with_embeddings=True)
# Without the host's date line a message is stored as a bare text.
BARE_TEXT = Profile("bare_text", extra={"provider_settings": {"datetime_system_prompt": False}})
MAX_TURNS = Profile("max_turns", max_turns=3, host_cuts=True)
TRUNCATE = Profile(
    "truncate", max_context_tokens=3000, budget=100_000, tool="lookup_much", host_cuts=True
)
COMPRESS = Profile(
    "compress",
    strategy="llm_compress",
    max_context_tokens=3000,
    budget=100_000,
    tool="lookup_much",
    host_cuts=True,
)
ONE_TURN = Profile(
    "one_turn",
    max_context_tokens=3000,
    budget=100_000,
    turn_size=4400,
    tool="lookup_much",
    host_cuts=True,
)
PROFILES = {p.name: p for p in (NONE, MAX_TURNS, TRUNCATE, COMPRESS, ONE_TURN)}

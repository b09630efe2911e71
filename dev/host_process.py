"""A real AstrBot in a folder of its own, started, watched and stopped as a process.

Invariants:
- The host lies in its own folder and listens only on free ports of 127.0.0.1.
- The plugin is copied in as a release would hold it, without tests, tools and
  repository.
- ``stop`` and ``kill`` end only the process that this object started.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from .host_store import HostStore
from .onebot import OneBotClient
from .scripted_model import ScriptedModel
from .setup_hosts import ROOT, host_python
from .webui import PLUGIN, PROBE, WebError, WebUI

USERNAME = "astrbot"
PASSWORD = "Context-Manager-1"
PROBE_FOLDER = ROOT / "tests" / "host" / "plugins" / PROBE
NOT_RELEASED = {"tests", "dev", "node_modules", "Makefile", "pyproject.toml", "__pycache__"}
# Where the plugin is taken from; another folder to run a changed copy of it.
PLUGIN_SOURCE = Path(os.environ.get("PLUGIN_SOURCE", ROOT))
ADMIN_ID = 900
START_SECONDS = 60.0


class HostError(Exception):
    """The host did not do what a test needs; the text holds the end of its log."""


@dataclass
class HostConfig:
    """How to start a host.

    ``strategy`` and ``max_turns`` are the host's own context settings, written
    to the places of both versions. ``plugin_config`` overrides our settings.
    """

    version: str = "4.29.3"
    strategy: str = "truncate_by_turns"
    max_turns: int = -1
    max_context_tokens: int = 0
    with_plugin: bool = True
    with_embeddings: bool = False
    plugin_config: dict = field(default_factory=dict)
    plugins: tuple[Path, ...] = ()
    settings: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)


def free_port() -> int:
    """Returns a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def merged(base: dict, extra: dict) -> dict:
    """Returns ``base`` with ``extra`` laid over it, dictionary by dictionary."""
    result = dict(base)
    for key, value in extra.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = merged(old, value) if both else value
    return result


class HostProcess:
    """One AstrBot, with its QQ side, WebUI and database at hand.

    Args:
        config: How to start it.
        model: The model that answers it.
        root: The host's folder; a new temporary one if left out.
    """

    def __init__(self, config: HostConfig, model: ScriptedModel, root: Path | None = None) -> None:
        self.config = config
        self.model = model
        self._temporary = root is None
        self.root = root or Path(tempfile.mkdtemp(prefix="astrbot-host-"))
        self.port, self.onebot_port = free_port(), free_port()
        self.store = HostStore(self.root / "data" / "data_v4.db")
        self.web = WebUI(self.port, USERNAME, PASSWORD)
        self.qq = OneBotClient(self.onebot_port)
        self._process: subprocess.Popen | None = None
        self._write_root()

    # -- files --------------------------------------------------------------

    @property
    def log_path(self) -> Path:
        """The host's log."""
        return self.root / "host.log"

    @property
    def plugin_data(self) -> Path:
        """Where the plugin keeps its database."""
        return self.root / "data" / "plugin_data" / PLUGIN

    def log(self, since: int = 0) -> str:
        """Returns the log from a byte offset on."""
        return self.log_path.read_bytes()[since:].decode("utf-8", "replace")

    def log_size(self) -> int:
        """Returns the offset for a later ``log``."""
        return self.log_path.stat().st_size

    def _write_root(self) -> None:
        for folder in ("config", "plugins", "temp"):
            (self.root / "data" / folder).mkdir(parents=True, exist_ok=True)
        (self.root / ".astrbot").touch()
        self._write_json("cmd_config.json", self._host_config())
        if self.config.with_plugin:
            self._write_json(f"config/{PLUGIN}_config.json", self.config.plugin_config)
            copy_plugin(self.root / "data" / "plugins" / PLUGIN)
        for folder in (PROBE_FOLDER, *self.config.plugins):
            target = self.root / "data" / "plugins" / folder.name
            shutil.copytree(folder, target, dirs_exist_ok=True)

    def _write_json(self, name: str, content: dict) -> None:
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (self.root / "data" / name).write_text(text, encoding="utf-8")

    def _host_config(self) -> dict:
        config = self.config
        base = {
            "dashboard": {"host": "127.0.0.1", "port": self.port, "username": USERNAME},
            "admins_id": [USERNAME, str(ADMIN_ID)],
            "disable_metrics": True,
            "log_level": "INFO",
            "platform_settings": {
                "rate_limit": {"time": 1, "count": 10_000, "strategy": "discard"}
            },
            "platform": [self._onebot_config()],
            "provider": [self._provider_config(), *self._embedding_configs()],
            **_context_settings(config.strategy, config.max_turns),
        }
        return merged(base, config.settings)

    def _onebot_config(self) -> dict:
        return {
            "id": "qq",
            "type": "aiocqhttp",
            "enable": True,
            "ws_reverse_host": "127.0.0.1",
            "ws_reverse_port": self.onebot_port,
            "ws_reverse_token": "",
        }

    def _provider_config(self) -> dict:
        return {
            "id": "scripted",
            "type": "openai_chat_completion",
            "provider": "openai",
            "provider_type": "chat_completion",
            "enable": True,
            "key": ["x"],
            "api_base": self.model.base_url,
            "model": "scripted",
            "modalities": ["text", "image", "audio", "tool_use"],
            "max_context_tokens": self.config.max_context_tokens,
        }

    def _embedding_configs(self) -> list[dict]:
        config = {
            "id": "scripted_embedding",
            "type": "openai_embedding",
            "provider": "openai",
            "provider_type": "embedding",
            "enable": True,
            "embedding_api_key": "x",
            "embedding_api_base": self.model.base_url,
            "embedding_model": "scripted",
            "embedding_dimensions": self.model.embeddings.size,
        }
        return [config] if self.config.with_embeddings else []

    # -- life ---------------------------------------------------------------

    def start(self, connect: bool = True) -> "HostProcess":
        """Starts the host and waits until it can be used."""
        if self.running:
            # The first process would never be ended.
            raise HostError("the host runs already")
        environment = {
            **os.environ,
            "ASTRBOT_DASHBOARD_INITIAL_PASSWORD": PASSWORD,
            "ASTRBOT_DISABLE_METRICS": "1",
            "PYTHONUNBUFFERED": "1",
            **self.config.environment,
        }
        # Without compiled files in its environment a host takes 10 s to start.
        for name in ("VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):
            environment.pop(name, None)
        command = [
            str(host_python(self.config.version).with_name("astrbot")),
            "run",
            "-p",
            str(self.port),
        ]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_ready()
        self._check_plugin()
        if connect and not self.qq.started:
            self.qq.start()
        elif connect:
            self.qq.wait_connected()
        return self

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None:
                raise HostError(f"the host ended while starting\n{self.log()[-4000:]}")
            if time.monotonic() > deadline:
                raise HostError(f"the host did not start\n{self.log()[-4000:]}")
            time.sleep(0.1)

    def _check_plugin(self) -> None:
        """A plugin that did not load would make every test of the host alone pass."""
        if not self.config.with_plugin:
            return
        status, body = self.web.api("GET", "health")
        if status != 200 or "version" not in body:
            raise HostError(f"the plugin did not load: {body}\n{self.log()[-6000:]}")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                pass
            if not self.web.logged_in:
                self.web.login()
            self.web.probe("running")
        except (OSError, httpx.HTTPError, WebError, ValueError):
            return False
        return True

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def stop(self) -> None:
        """Ends the host in good order; kills it if that takes too long."""
        if self.running:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.kill()

    def kill(self) -> None:
        """Ends the host at once, as ``kill -9`` does."""
        if self.running:
            self._process.kill()
            self._process.wait(10)

    def close(self) -> None:
        """Ends the host and removes its folder if it was temporary."""
        self.qq.stop()
        self.kill()
        self.web.close()
        if self._temporary:
            shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> "HostProcess":
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _context_settings(strategy: str, max_turns: int) -> dict:
    """The host's own context settings, in the places of both versions."""
    return {
        "provider_settings": {
            "default_provider_id": "scripted",
            "context_limit_reached_strategy": strategy,
            "max_context_length": max_turns,
            "streaming_response": False,
        },
        "agent_runner": {
            "runner_type": "local",
            "config": {
                "model": {"provider_id": "scripted"},
                "compression": {"overflow_strategy": strategy, "max_turns": max_turns},
            },
        },
    }


def copy_plugin(target: Path) -> None:
    """Copies the plugin's released files into a host."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for entry in PLUGIN_SOURCE.iterdir():
        if entry.name in NOT_RELEASED:
            continue
        if entry.name.startswith(".") and entry.name != ".astrbot-plugin":
            continue
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name)
        else:
            shutil.copy2(entry, target / entry.name)

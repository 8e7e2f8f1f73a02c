"""A model folder's tokenizer as GGUF metadata.

llama.cpp splits text by rules of its own, each under a name. Where a tokenizer.json splits by none of them, the file
names no rule: llama.cpp then falls back to GPT-2's, says at every start that the quality suffers, and ids are what to
send. Source: llama.cpp's llama-vocab.cpp; Hugging Face `tokenizers` files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overland.errors import BrokenFileError
from overland.model.gguf.layouts import Metadata
from overland.runs import read_json

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
K3 = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]*[{_LOWER}&&[^\p{{Han}}]]+{_SUFFIX}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]+[{_LOWER}&&[^\p{{Han}}]]*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What a tokenizer.json splits by -> llama.cpp's name of it. Qwen's is cl100k with one digit a piece.
SPLITS = {CL100K: "llama-bpe", CL100K.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2", K3: "kimi-k2"}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def vocabulary(folder: Path, size: int) -> tuple[Metadata, str]:
    """The keys of a folder's tokenizer for a model of `size` ids, and a line that says what they can do.

    Raises BrokenFileError where tokenizer.json cannot be read or holds an id that the model has not.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return {"tokenizer.ggml.model": "none"}, "without a vocabulary, because there is no tokenizer.json"
    content = read_json(file)
    kind = content["model"]["type"]
    if kind != "BPE":
        return {"tokenizer.ggml.model": "none"}, f"without a vocabulary, because tokenizer.json is {kind}, not BPE"
    tokens, types = [f"[UNUSED{i}]" for i in range(size)], [UNUSED] * size
    added = {token["content"]: token for token in content.get("added_tokens", [])}
    for name, number in [*content["model"]["vocab"].items(), *((name, t["id"]) for name, t in added.items())]:
        if not 0 <= number < size:
            raise BrokenFileError(f"{file}: {name!r} has id {number}, and the model has {size}")
        special = added.get(name)
        tokens[number] = name
        types[number] = NORMAL if special is None else CONTROL if special["special"] else USER_DEFINED
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in content["model"]["merges"]]
    keys: Metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }
    split = _split(content)
    if split is None:
        return keys, f"with {size} tokens; send it ids: llama.cpp has no rule that splits text as tokenizer.json does"
    return {**keys, "tokenizer.ggml.pre": split}, f"with {size} tokens, text split as {split}"


def _split(content: dict[str, Any]) -> str | None:
    """llama.cpp's name for how a byte-level BPE splits text; None where it has none."""
    before, model = content.get("pre_tokenizer") or {}, content["model"]
    if model.get("byte_fallback") or content.get("normalizer"):
        return None
    if before.get("type") == "ByteLevel" and before.get("use_regex", True) and not before.get("add_prefix_space"):
        return "gpt-2"
    steps = before.get("pretokenizers", [])
    if len(steps) != 2 or steps[0]["type"] != "Split" or steps[1]["type"] != "ByteLevel" or steps[1]["use_regex"]:
        return None
    return SPLITS.get(steps[0]["pattern"].get("Regex", ""))

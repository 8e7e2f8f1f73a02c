"""The tokenizer: byte-level BPE, trained with Hugging Face `tokenizers`.

Digits and single spaces are pieces of their own, and words never carry a leading space: a name is spelled with the
same ids wherever it stands, which is what a tiny model needs to copy it. Runs of spaces (indentation) stay whole. A
text that is one space and one word, as the chat template's attribute names are (" role"), is one piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

PATTERN = r"\A [a-z]+\z|\p{N}|\r?\n *| {2,}|[^\S\r\n ]+|\s|[\p{L}\p{M}]+|[^\s\p{L}\p{M}\p{N}]+"

# OpenAI's cl100k_base; Llama 3 has it too, and Qwen with one digit a piece.
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Kimi K2 and K3: runs of Han, words that begin where the case changes, and contractions on their words.
K3_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
K3_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
K3_PATTERN = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{K3_UPPER}*{K3_LOWER}+{_SUFFIX}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{K3_UPPER}+{K3_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"words": PATTERN, "cl100k": CL100K_PATTERN, "k3": K3_PATTERN}


def train_bpe(
    texts: Iterable[str], size: int, extra: Iterable[str] = (), extra_share: float = 0.0, pattern: str = PATTERN
) -> Any:
    """A `tokenizers.Tokenizer` with `size` entries: 256 bytes, then merges; no special tokens.

    `extra` (representative rendered conversations) is repeated until it makes up `extra_share` of the bytes, so that
    the words of the template and of the tools become single tokens. `pattern` splits a text before merges are learnt.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_mixed(list(texts), list(extra), extra_share), trainer)
    return tokenizer


def _mixed(texts: list[str], extra: list[str], share: float) -> Iterator[str]:
    yield from texts
    extra_bytes = sum(len(text.encode()) for text in extra)
    if not extra_bytes or share <= 0:
        return
    text_bytes = sum(len(text.encode()) for text in texts)
    for _ in range(max(1, math.ceil(share / (1 - share) * text_bytes / extra_bytes))):
        yield from extra

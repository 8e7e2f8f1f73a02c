"""A tokenizer trained on a line of text, and a scripted server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tokenizers

from overland.chat import Tokenizer, build_tokenizer

from .harness import Served, serving


def train_tokenizer() -> Tokenizer:
    """Bytes and the words of a line of text."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = "message role assistant think response tools call argument Let me look. Sunny in both."
    bpe.train_from_iterator([words] * 4, trainer)
    return build_tokenizer(bpe)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[Served]:
    with serving(tokenizer) as one:
        yield one

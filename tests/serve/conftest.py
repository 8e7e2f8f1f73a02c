"""A tokenizer trained on a line of text, and a scripted server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tokenizers
import torch
from tiny import tiny

from overland.chat import XTML, Tokenizer, build_tokenizer
from overland.engine import AsyncEngine, Engine
from overland.model import Decoder
from overland.serve import ServeSection, background, create_app

from .harness import Served, serving

CONTEXT = 4096
BUDGET = 6  # thinking tokens at low effort of the real engine's server


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


def small_model(tokenizer: Tokenizer, seed: int = 0) -> Decoder:
    """Random weights under a vocabulary that is padded, as many are: some of its ids are no tokens."""
    vocab = -(-tokenizer.vocab_size // 32) * 32
    return tiny(torch.float32, seed, vocab_size=vocab, max_position_embeddings=CONTEXT).eval()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[Served]:
    with serving(tokenizer) as one:
        yield one


@pytest.fixture(scope="session")
def model(tokenizer: Tokenizer) -> Decoder:
    torch.set_num_threads(1)
    return small_model(tokenizer)


@pytest.fixture(scope="session")
def url(model: Decoder, tokenizer: Tokenizer) -> Iterator[str]:
    settings = ServeSection(port=0, think_budget_low=BUDGET, trainer_routes=True)
    app = create_app(AsyncEngine(Engine(model)), tokenizer, XTML(), model_name="tiny", settings=settings)
    with background(app, settings) as at:
        yield at

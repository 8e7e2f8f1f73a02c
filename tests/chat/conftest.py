"""A small byte-level tokenizer, trained on standard-library source, that all tests of the room share."""

from __future__ import annotations

import argparse
import inspect
import textwrap

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from overland.chat import Tokenizer, build_tokenizer

# XTML's own vocabulary occurs in the training text, so that text which spells a marker meets multi-byte tokens.
SPELLED = '<|open|>message role="assistant"<|sep|><|close|>think<|sep|><|end_of_msg|>' * 8


@pytest.fixture(scope="session")
def bpe() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=640, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([inspect.getsource(argparse), inspect.getsource(textwrap), SPELLED], trainer)
    return backend


@pytest.fixture(scope="session")
def tokenizer(bpe: tokenizers.Tokenizer) -> Tokenizer:
    return build_tokenizer(bpe)

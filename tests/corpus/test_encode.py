"""Fast encoding held against Hugging Face `tokenizers`, id by id, for every pattern."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import encode as encode_module
from overland.corpus.bpe import CL100K_PATTERN, K3_PATTERN, PATTERN, train_bpe
from overland.corpus.compiled import Packed
from overland.corpus.encode import SPLITS, Encoder
from overland.errors import OverlandError

from .conftest import prose

PATTERNS = list(SPLITS)
FILES = [Path(__file__), Path(encode_module.__file__), Path(random.__file__)]


@lru_cache
def trained(pattern: str) -> Any:
    texts = [path.read_text() for path in FILES] + [prose(n, 200) for n in range(5)]
    texts.append("naïve Straße 日本語 don't DON'T I'll")
    return train_bpe(texts, 700, pattern=pattern)


@lru_cache
def encoder(pattern: str) -> Encoder:
    return Encoder(trained(pattern))


def ids_of(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_real_text_has_the_tokenizers_ids(pattern: str) -> None:
    assert encoder(pattern).fast
    texts = [path.read_text() for path in FILES] + [prose(n, 300) for n in range(3)]
    assert encoder(pattern).lists(texts) == ids_of(trained(pattern), texts)


ASCII = "abcXYZ019 '\n\r\t\x0b\x0c\x1c_-.,!?()[]\x00stremvld"
BEYOND = "é日本\u0301\u2003\x85²ſКﬁ🙂\xa0\u200bǅª"
ANY = st.one_of(st.text(ASCII, max_size=40), st.text(ASCII + BEYOND, max_size=40), st.text(max_size=20))
CORNERS = [
    "é ß x É\nñ 1é ἀβ абв где\nЖ ﬁx",
    "다시 한국어 문장",
    "שלום עולם",
    "é  b\n\nc",
    "",
    " role",
    " role ",
    " Role",
    "\n role",
    "don't",
    "DON'T",
    "I'LL'S",
    "x'ſ",
    "a  \n b",
    "  ",
    "\r\n \n",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=st.lists(ANY, max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_text_has_the_tokenizers_ids(pattern: str, texts: list[str]) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    assert encoder(pattern).lists(texts) == ids_of(trained(pattern), texts)


@pytest.mark.parametrize("text", CORNERS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_corners_have_the_tokenizers_ids(pattern: str, text: str) -> None:
    assert encoder(pattern).lists([text, text]) == ids_of(trained(pattern), [text, text])


def test_separator_stands_before_every_text() -> None:
    texts = ["one two", "", "three"]
    ids, lengths = encoder(PATTERN).encode(Packed.of(texts), separator=699)
    expected = [[699, *row] for row in ids_of(trained(PATTERN), texts)]
    assert ids.tolist() == [token for row in expected for token in row]
    assert lengths.tolist() == [len(row) for row in expected]


def test_a_small_cache_and_small_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_module, "BATCH_BYTES", 700)
    texts = [prose(n, 40) for n in range(40)] + ["日本語 text"] * 3
    small = Encoder(trained(K3_PATTERN), cache_bytes=2000)
    assert small.lists(texts) == ids_of(trained(K3_PATTERN), texts)


def test_special_tokens_in_a_text_are_spelled() -> None:
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_str(trained(PATTERN).to_str())
    tokenizer.add_special_tokens([AddedToken("[EOS]")])
    special = tokenizer.token_to_id("[EOS]")
    assert special in ids_of(tokenizer, ["a [EOS] b"])[0]
    assert special not in Encoder(tokenizer).lists(["a [EOS] b"])[0]


def test_other_tokenizers_are_asked_themselves() -> None:
    tokenizer = trained(r"\w+|\W")
    other = Encoder(tokenizer)
    assert not other.fast
    texts = [prose(1, 50), "", "日本 x"]
    assert other.lists(texts) == ids_of(tokenizer, texts)


def test_a_difference_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPLITS, CL100K_PATTERN, SPLITS[PATTERN])  # the wrong split for this tokenizer
    with pytest.raises(OverlandError, match="differ from the tokenizer's own"):
        Encoder(trained(CL100K_PATTERN)).encode(Packed.of(["it is the case, isn't it? 1234"]))


@given(st.lists(st.text(ASCII, max_size=30), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_lengths_add_up(texts: list[str]) -> None:
    ids, lengths = encoder(K3_PATTERN).encode(Packed.of(texts))
    assert lengths.sum() == len(ids)
    assert ids.dtype == np.uint32

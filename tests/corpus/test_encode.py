"""Fast encoding held against Hugging Face `tokenizers`, id by id, for every pattern."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import encode as encode_module
from overland.corpus import unicode_classes as unicode_module
from overland.corpus.bpe import CL100K_PATTERN, K3_PATTERN, PATTERN, train_bpe
from overland.corpus.compiled import Packed
from overland.corpus.encode import SPLITS, Encoder
from overland.corpus.unicode_classes import SIGN, derived, stored, unicode_classes
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


@lru_cache
def by_class() -> list[list[str]]:
    """The characters of Unicode by what they are to the patterns; surrogates left out."""
    table = unicode_classes()
    places = [np.flatnonzero(table == bits).tolist() for bits in np.unique(table).tolist()]
    return [[chr(point) for point in group if not 0xD800 <= point < 0xE000] for group in places]


@st.composite
def mixed(draw: st.DrawFn) -> str:
    """Characters of few classes beside what the patterns name: what splits rarely met in real text."""
    rng = draw(st.randoms(use_true_random=False))
    few = rng.sample(by_class(), rng.randint(1, 4))
    named = " \n\r\t'sSſtTdDmMrReElLvV\u3000\u0301\x85"
    return "".join(
        rng.choice(named) if rng.random() < 0.4 else rng.choice(rng.choice(few))
        for _ in range(draw(st.integers(0, 80)))
    )


@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=st.lists(st.one_of(ANY, mixed()), max_size=6))
@settings(max_examples=200, deadline=None)
def test_any_text_has_the_tokenizers_ids(pattern: str, texts: list[str]) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    assert encoder(pattern).lists(texts) == ids_of(trained(pattern), texts)


@pytest.mark.parametrize("change", [{"normalizer": {"type": "NFC"}}, {"model": {"ignore_merges": True}}])
@given(texts=st.lists(st.one_of(ANY, mixed()), max_size=6))
@settings(max_examples=60, deadline=None)
def test_normalizers_and_whole_entries_are_followed(change: dict[str, Any], texts: list[str]) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    tokenizer, changed = altered(json.dumps(change))
    assert changed.fast
    assert changed.lists(texts) == ids_of(tokenizer, texts)


@lru_cache
def altered(change: str) -> tuple[Any, Encoder]:
    from tokenizers import Tokenizer

    config = json.loads(trained(K3_PATTERN).to_str())
    for key, value in json.loads(change).items():
        config[key] = {**config[key], **value} if key == "model" else value
    if "model" in change:  # entries that no merge makes any more, as in tables that were taken over from tiktoken
        del config["model"]["merges"][::3]
    tokenizer = Tokenizer.from_str(json.dumps(config))
    return tokenizer, Encoder(tokenizer)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(st.text("ab日本 ", min_size=1, max_size=12), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_long_pieces_have_the_tokenizers_ids(pattern: str, unit: str, times: int) -> None:
    texts = [unit * times, unit.replace(" ", "") * times]
    assert encoder(pattern).lists(texts) == ids_of(trained(pattern), texts)


def test_the_classes_of_characters_are_the_tokenizers() -> None:
    assert np.array_equal(derived(), stored())


def test_another_version_of_unicode_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    older = stored()
    older[0x1C89] = SIGN  # a letter since Unicode 16
    monkeypatch.setattr(unicode_module, "stored", lambda: older)
    monkeypatch.setattr(unicode_module, "derived", lambda: "asked anew")
    assert unicode_classes.__wrapped__() == "asked anew"


def test_a_text_that_is_not_utf8_is_named() -> None:
    for bad in (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"):
        with pytest.raises(OverlandError, match="text 1 is not UTF-8"):
            encoder(PATTERN).encode(Packed.of([b"fine", bad]))


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


def test_a_small_cache_changes_nothing() -> None:
    texts = [" ".join(f"w{n:x}日 a{k}b" for k in range(200)) for n in range(40)] + ["日本語 text"] * 3
    small = Encoder(trained(K3_PATTERN), cache_bytes=2000)  # begins anew several times
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

"""The tokenizer: exact both ways, deaf to spelled markers, and plain Hugging Face `tokenizers` on disk."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from overland.chat import SPECIAL_TOKENS, Tokenizer, build_tokenizer, describe_tokens, load_tokenizer
from overland.errors import BrokenFileError, UsageError

from .strategies import hostile_text


@given(text=hostile_text | st.text())
def test_text_comes_back_and_never_holds_a_special_id(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.bytes_of(ids) == text.encode()
    assert all(tokenizer.special_name(id_) is None for id_ in ids)


def test_specials_follow_the_vocabulary_in_order(tokenizer: Tokenizer, bpe: tokenizers.Tokenizer):
    first = bpe.get_vocab_size()
    assert [tokenizer.special(name) for name in SPECIAL_TOKENS] == list(range(first, first + len(SPECIAL_TOKENS)))
    assert tokenizer.vocab_size == first + len(SPECIAL_TOKENS)
    with pytest.raises(UsageError, match="nope"):
        tokenizer.special("<|nope|>")


def test_a_caller_may_change_the_list_it_was_given(tokenizer: Tokenizer):
    first = tokenizer.encode("cached text")
    before = list(first)
    first.clear()
    assert tokenizer.encode("cached text") == before


def test_decoding_may_drop_markers_but_keeps_the_structure(tokenizer: Tokenizer):
    ids = [tokenizer.special(name) for name in ("[BOS]", "<|open|>", "<|sep|>", "<|end_of_msg|>")] + tokenizer.encode(
        "x"
    )
    assert tokenizer.decode(ids) == "[BOS]<|open|><|sep|><|end_of_msg|>x"
    assert tokenizer.decode(ids, skip_special=True) == "<|open|><|sep|>x"


@pytest.mark.parametrize("name", ["model", "tokenizer.json"])
def test_a_saved_tokenizer_is_the_same(tokenizer: Tokenizer, tmp_path: Path, name: str):
    tokenizer.save(tmp_path / name)
    loaded = load_tokenizer(tmp_path / name)
    text = "def f(x):\n    return 'é'  # <|open|>"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert [loaded.special(n) for n in SPECIAL_TOKENS] == [tokenizer.special(n) for n in SPECIAL_TOKENS]
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith(".")]


def test_the_tokenizers_library_reads_the_file_alike(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = [tokenizer.special("<|open|>"), *tokenizer.encode("message é"), tokenizer.special("<|end_of_msg|>")]
    assert plain.encode("<|open|>message é<|end_of_msg|>").ids == ids
    for skip in (True, False):
        assert plain.decode(ids, skip_special_tokens=skip) == tokenizer.decode(ids, skip_special=skip)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|end_of_msg|>"


def test_it_travels_to_another_process_by_value(tokenizer: Tokenizer):
    assert pickle.loads(pickle.dumps(tokenizer)).encode("a b") == tokenizer.encode("a b")


def test_viewers_see_split_characters_as_bytes(tokenizer: Tokenizer):
    ids = [tokenizer.special("<|sep|>"), *tokenizer.encode("self")]
    assert "".join(describe_tokens(ids, tokenizer)) == "<|sep|>self"
    byte = next(id_ for id_ in range(256) if tokenizer.bytes_of([id_]) == b"\xf0")
    assert describe_tokens([byte], tokenizer) == ["\\xf0"]


def test_lone_surrogates_are_replaced(tokenizer: Tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def train(alphabet: list[str], special: list[str], **options) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(**options))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(["abc " * 9], trainer)
    return backend


def test_a_vocabulary_that_would_lose_bytes_is_refused():
    with pytest.raises(UsageError, match="initial_alphabet"):
        build_tokenizer(train([], []))


def test_a_vocabulary_with_specials_of_its_own_is_refused():
    with pytest.raises(UsageError, match="without special tokens"):
        build_tokenizer(train(pre_tokenizers.ByteLevel.alphabet(), ["<pad>"]))


def test_a_vocabulary_without_our_specials_is_refused(bpe: tokenizers.Tokenizer, tmp_path: Path):
    bpe.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match=r"\[BOS\]"):
        load_tokenizer(tmp_path)


def test_a_missing_and_a_broken_file_are_named(tmp_path: Path):
    with pytest.raises(UsageError, match="nothing"):
        load_tokenizer(tmp_path / "nothing")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "added_')
    with pytest.raises(BrokenFileError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)

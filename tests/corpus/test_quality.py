"""Quality: the compiled statistics held against plain Python, the rules against texts made to break them."""

from __future__ import annotations

import inspect
import random
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overland.corpus import quality_reference
from overland.corpus.compiled import Packed
from overland.corpus.quality import Broken, c4_lines, check, judge, limits_of, profiles_of
from overland.corpus.quality_rules import PUBLISHED, check_limits, published
from overland.corpus.quality_statistics import STATISTICS, statistics, wanted_bits
from overland.corpus.section import CodeRules, CorpusSection, MathRules, ProseRules
from overland.errors import UsageError

from .conftest import prose

PROFILES = profiles_of(CorpusSection())


def held_against_python(texts: list[str]) -> None:
    found = statistics(Packed.of(texts))
    expected = quality_reference.statistics([text.encode() for text in texts], [1] * len(texts), STATISTICS)
    for name in STATISTICS:
        wrong = np.flatnonzero(found[name] != expected[name])
        assert not len(wrong), (name, texts[wrong[0]][:100], found[name][wrong[0]], expected[name][wrong[0]])


def test_statistics_of_real_files_are_those_of_plain_python() -> None:
    stdlib = Path(inspect.getsourcefile(textwrap)).parent  # type: ignore[arg-type]
    texts = [(stdlib / f"{name}.py").read_text() for name in ("textwrap", "json/decoder", "this", "string", "this")]
    held_against_python([*texts, *(prose(n, 300) for n in range(5)), *(prose(n, 40) * 3 for n in range(3))])


LETTERS = "aéZ .\n\t!?\"'日…•#{1)\\\u2003-*:/<>$%;x\x00\x85\x1f。（"


@given(st.lists(st.one_of(st.text(LETTERS, max_size=60), st.text(max_size=40)), max_size=5))
@settings(max_examples=120, deadline=None)
def test_statistics_of_any_text_are_those_of_plain_python(texts: list[str]) -> None:
    held_against_python([text.encode("utf-8", "replace").decode() for text in texts])


@given(
    st.lists(st.one_of(st.text(LETTERS, max_size=60), st.text(max_size=40)), min_size=1, max_size=3),
    st.lists(st.sets(st.sampled_from(STATISTICS)), min_size=3, max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_a_statistic_does_not_depend_on_what_else_is_asked_for(texts: list[str], asked: list[set[str]]) -> None:
    packed = Packed.of([text.encode("utf-8", "replace") for text in texts])
    every = statistics(packed)
    some = statistics(packed, [wanted_bits(names) for names in asked[: len(texts)]])
    for at, names in enumerate(asked[: len(texts)]):
        assert {name: some[name][at] for name in names} == {name: every[name][at] for name in names}


@given(st.lists(st.sampled_from(["ab", "c", "dEf"]), max_size=60))
@settings(max_examples=60, deadline=None)
def test_repetition_of_few_words_is_that_of_plain_python(words: list[str]) -> None:
    held_against_python([" ".join(words), "\n".join(words), "\n\n".join(words)])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("min_words", "Too few words."),
        ("max_words", prose(1, 60) * 2000),
        ("min_mean_word", "a b of " * 40),
        ("max_mean_word", "extraordinarily " * 60),
        ("max_symbols_per_word", prose(1) + "# # # ... ... " * 20),
        ("min_alpha_words", prose(1, 60) + "1234 5678 " * 60),
        ("min_stop_words", " ".join(f"berta{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(80))),
        ("max_bullet_lines", "".join(f"- {line}\n" for line in prose(1, 300).splitlines())),
        ("max_ellipsis_lines", "".join(f"{line}..\n" for line in prose(1, 3000).splitlines())),
        ("max_duplicate_lines", prose(1, 30) * 4),
        ("max_top_2gram", " ".join(f"the berta{chr(97 + i % 26)}x of that" for i in range(8)) + " gulsk ferim" * 60),
    ],
)
def test_prose_rule_names_itself(rule: str, text: str) -> None:
    assert check(text, "prose", PROFILES) == rule


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("min_chars", "x = 1\n"),
        ("max_line", "x = '" + "a" * 2000 + "'\n"),
        ("max_mean_line", ("y" * 150 + "\n") * 10),
        ("max_digits", "data = [\n" + "    12345, 67890, 12345,\n" * 50 + "]\n"),
        ("min_alphanumeric", "(((((((((())))))))))\n" * 20),
    ],
)
def test_code_rule_names_itself(rule: str, text: str) -> None:
    assert check(text, "code", PROFILES) == rule


def test_rules_belong_to_their_domain() -> None:
    source = Path(inspect.getsourcefile(textwrap)).read_text()  # type: ignore[arg-type]
    assert check(source, "code", PROFILES) is None
    assert check(prose(1), "prose", PROFILES) is None


MATH = "Let $x \\in \\mathbb{R}^n$ and $y = A x$ with $\\|A\\| \\le 1$ so $\\|y\\| \\le \\|x\\|$.\n"


def test_mathematics_keeps_its_formulas_under_its_own_rules_only() -> None:
    text = prose(4, 40) + MATH + prose(5, 40)
    assert check(text, "math", PROFILES) is None
    (broken,) = judge(Packed.of([MATH * 2]), ["prose"], {"prose": published(("nemo",))})
    assert broken is not None
    assert broken.rule == "prose.max_symbols"


@pytest.mark.parametrize(
    ("name", "rule", "text"),
    [
        ("gopher_quality", "min_stop_kinds", "the calarim " * 40),
        ("gopher_repetition", "max_duplicate_paragraphs", "\n\n".join([prose(1, 9)] * 2 + [prose(2, 30)])),
        ("gopher_repetition", "max_repeated_10gram", prose(1, 60) + "\n\nso " + prose(1, 12) + " yes " + prose(3, 9)),
        ("c4", "max_braces", prose(1, 90) + "{"),
        ("c4", "max_lorem", prose(1, 90) + "lorem ipsum dolor."),
        ("c4", "min_c4_sentences", "one line of words without an end\n" * 20),
        ("fineweb", "max_breaks_per_word", prose(1, 30).replace(" ", "\n").replace(".", "") + prose(2, 90)),
        ("fineweb", "min_punctuated_lines", prose(1, 90).replace(".", "")),
        ("nemo", "max_urls_per_word", "see https://a.b/c and " * 30 + prose(1, 9)),
        ("stack", "max_angles", "<a><b><i>\n" * 40),
    ],
)
def test_published_sets_name_the_rule(name: str, rule: str, text: str) -> None:
    limits = {limit: value for limit, value in PUBLISHED[name].items() if limit == rule}
    assert [b and b.rule for b in judge(Packed.of([text]), ["prose"], {"prose": limits})] == [f"prose.{rule}"]
    assert judge(Packed.of([text]), ["prose"], {"prose": published(tuple(PUBLISHED))})[0] is not None


def test_recipe_names_sets_and_changes_single_limits() -> None:
    rules = ProseRules(
        sets=("gopher_quality", "c4"), limits={"max_braces": None, "min_words": 3, "max_urls_per_word": 0.1}
    )
    limits = limits_of(rules)
    assert limits["min_c4_sentences"] == 5
    assert "max_braces" not in limits
    assert limits["min_words"] == 3
    assert limits["min_alpha_words"] == 0.8  # the published value over the profile's own .6
    with pytest.raises(UsageError, match="did you mean max_urls_per_word"):
        limits_of(ProseRules(limits={"max_url_per_word": 0.1}))
    with pytest.raises(UsageError, match="choose from: gopher_quality"):
        limits_of(ProseRules(sets=("gofer",)))


def test_every_published_limit_is_a_rule() -> None:
    for limits in PUBLISHED.values():
        check_limits(limits)


def test_stop_words_are_asked_of_english_only() -> None:
    text = " ".join(f"ein{chr(97 + i % 26)} wort{chr(97 + i // 26)}" for i in range(80)) + "."
    profiles = {"prose": {"min_stop_words": 2.0}}
    broken = judge(Packed.of([text] * 3), ["prose"] * 3, profiles, ["de", "en", "und"])
    assert [b is None for b in broken] == [True, False, False]


def test_words_are_counted_by_characters_where_they_are_not_spaced() -> None:
    japanese = "委員会は来週再び集まり、提案について詳しく話し合います。" * 6 + "そのほかの議題は次の通りです。"
    profiles = {"prose": limits_of(ProseRules())}
    broken = judge(Packed.of([japanese, japanese, japanese[:40]]), ["prose"] * 3, profiles, ["ja", "und", "ja"])
    assert broken[0] is None
    assert broken[1]
    assert broken[2] == Broken("prose.min_words", 20.0, 50.0)


def test_c4_keeps_lines_that_end_like_sentences() -> None:
    text = "This is a line.\nMenu\nPlease enable JavaScript to go on.\n  It goes on!\nto be continued...\n"
    assert c4_lines(text) == "This is a line.\n  It goes on!"


def test_batches_judge_like_single_texts() -> None:
    rng = random.Random(3)
    texts = [prose(n, rng.randrange(5, 120)) * rng.choice((1, 1, 3)) for n in range(40)]
    domains = [rng.choice(("prose", "code", "math", "unknown")) for _ in texts]
    profiles = {"prose": limits_of(ProseRules()), "code": limits_of(CodeRules()), "math": limits_of(MathRules())}
    whole = judge(Packed.of(texts), domains, profiles)
    assert whole == [judge(Packed.of([t]), [d], profiles)[0] for t, d in zip(texts, domains, strict=True)]

"""Quality: which rule of its domain's profile a text breaks first, with the value and the limit.

A rule made for web prose deletes three quarters of code and reference text, so every domain has its own profile:
`prose`, `code` and `math` of the recipe, each a list of limits (see quality_rules). Words are what lies between white
space; a text in a language that is written without spaces counts two characters as a word, and rules on the shape and
order of words pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from overland.corpus.compiled import Packed
from overland.corpus.quality_rules import MEASURES, Limits, check_limits, published
from overland.corpus.quality_statistics import gram_bit, statistics
from overland.corpus.section import CodeRules, CorpusSection, MathRules, ProseRules

Rules = ProseRules | CodeRules | MathRules

UNSPACED = frozenset(("zh", "wuu", "yue", "ja", "th", "lo", "km", "my", "bo", "dz"))
"""ISO 639 codes of languages that are written without spaces between words."""
_SHAPES = {name for name in MEASURES if name.endswith("gram")} | {
    *("mean_word", "word", "alpha_words", "stop_words", "stop_kinds", "breaks_per_word", "c4_sentences"),
    *("symbols_per_word", "hashes_per_word", "ellipses_per_word", "urls_per_word", "commands_per_word"),
}


@dataclass(frozen=True)
class Broken:
    """The rule that a text breaks: its name, the text's value and the limit."""

    rule: str
    value: float
    limit: float


def limits_of(rules: Rules) -> Limits:
    """The limits of a recipe's profile: its own fields, the published sets it names, and its `limits` over both.

    Raises UsageError naming what is no rule or no set.
    """
    check_limits(rules.limits)
    fields = rules.model_dump(exclude={"sets", "limits"})
    out = {**fields, **published(rules.sets), **rules.limits}
    return {name: float(value) for name, value in out.items() if value is not None}


def profiles_of(section: CorpusSection) -> dict[str, Limits]:
    """The limits of each domain of a recipe that has a profile."""
    return {"prose": limits_of(section.prose), "code": limits_of(section.code), "math": limits_of(section.math)}


def judge(
    texts: Packed, domains: Sequence[str], profiles: Mapping[str, Limits], languages: Sequence[str] | None = None
) -> list[Broken | None]:
    """The first rule that each text breaks, in the order of its profile; None keeps it.

    A domain without a profile has that of `prose`. Rules on English stop words pass over texts whose language is known
    to be another ("und" is not known), rules on words over texts of languages without spaces.
    """
    names = np.array([domain if domain in profiles else "prose" for domain in domains], dtype=object)
    grams = {name: sum({gram_bit(limit[4:]) for limit in limits}) for name, limits in profiles.items()}
    counts = statistics(texts, np.array([grams.get(name, 0) for name in names], dtype=np.uint16))
    known = languages or [""] * len(texts)
    foreign = np.array([language not in ("en", "und", "") for language in known], dtype=bool)
    unspaced = np.array([language in UNSPACED for language in known], dtype=bool)
    counts["words"] = np.where(unspaced, (counts["chars"] - counts["spaces"]) // 2, counts["words"])
    out: list[Broken | None] = [None] * len(texts)
    for domain in sorted(set(names.tolist())):
        rows = np.flatnonzero(names == domain)
        part = {name: column[rows] for name, column in counts.items()}
        free = np.ones(len(rows), dtype=bool)
        for limit, bound in profiles.get(domain, {}).items():
            values = MEASURES[limit[4:]](part)
            bad = (values < bound if limit.startswith("min_") else values > bound) & free
            if limit.startswith("min_stop"):
                bad &= ~foreign[rows]
            if limit[4:] in _SHAPES:
                bad &= ~unspaced[rows]
            for i in np.flatnonzero(bad).tolist():
                out[rows[i]] = Broken(f"{domain}.{limit}", float(values[i]), bound)
            free &= ~bad
    return out


def check(text: str, domain: str, profiles: Mapping[str, Limits], language: str = "") -> str | None:
    """The first rule that one text breaks, without its domain's name, or None."""
    (broken,) = judge(Packed.of([text]), [domain], profiles, [language])
    return broken.rule.partition(".")[2] if broken else None


def c4_lines(text: str) -> str:
    """C4's edit: only lines of three words or more that end like a sentence, without script notices and policies."""
    from overland.corpus.quality_reference import c4_keeps

    return "\n".join(line for line in text.split("\n") if c4_keeps(line.strip()))

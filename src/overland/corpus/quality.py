"""Quality: which rule of its domain's profile a text breaks first, with the value and the limit.

A rule made for web prose deletes three quarters of code and reference text, so every domain has its own profile:
`prose`, `code` and `math` of the recipe, each a list of limits (see quality_rules). Words are what lies between white
space; a text in a language that is written without spaces counts two characters as a word, and rules on the shape and
order of words pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from overland.corpus.compiled import Packed
from overland.corpus.quality_rules import MEASURES, Limits, check_limits, needed, published
from overland.corpus.quality_statistics import statistics, wanted_bits
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
    if not len(texts):
        return []
    names = [domain if domain in profiles else "prose" for domain in domains]
    wanted = {name: _wanted(tuple(profiles.get(name, ()))) for name in set(names)}
    counts = statistics(texts, [wanted[name] for name in names])
    known = languages or [""] * len(texts)
    foreign = np.array([language not in ("en", "und", "") for language in known], dtype=bool)
    unspaced = np.array([language in UNSPACED for language in known], dtype=bool)
    if unspaced.any() and "words" in counts:
        counts["words"] = np.where(unspaced, (counts["chars"] - counts["spaces"]) // 2, counts["words"])
    out: list[Broken | None] = [None] * len(texts)
    for domain in sorted(wanted):
        rows = np.array([row for row, name in enumerate(names) if name == domain])
        part = {name: column[rows] for name, column in counts.items()}
        free = np.ones(len(rows), dtype=bool)
        for limit, bound in profiles.get(domain, {}).items():
            values = MEASURES[limit[4:]](part)
            bad = (values < bound if limit.startswith("min_") else values > bound) & free
            if limit.startswith("min_stop"):
                bad &= ~foreign[rows]
            if limit[4:] in _SHAPES:
                bad &= ~unspaced[rows]
            if not bad.any():
                continue
            for i in np.flatnonzero(bad).tolist():
                out[rows[i]] = Broken(f"{domain}.{limit}", float(values[i]), bound)
            free &= ~bad
    return out


@lru_cache
def _wanted(limits: tuple[str, ...]) -> int:
    """The statistics that limits are held against, and those that texts without spaces are measured by."""
    return wanted_bits({"chars", "spaces"}.union(*(needed(limit[4:]) for limit in limits)))


def check(text: str | bytes, domain: str, profiles: Mapping[str, Limits], language: str = "") -> str | None:
    """The first rule that one text breaks, without its domain's name, or None: `judge` for one text, in less time."""
    limits = profiles.get(domain, profiles.get("prose", {}))
    counts = statistics(Packed.of([text]), [_wanted(tuple(limits))])
    foreign, unspaced = language not in ("en", "und", ""), language in UNSPACED
    if unspaced and "words" in counts:
        counts["words"] = (counts["chars"] - counts["spaces"]) // 2
    for limit, bound in limits.items():
        if (foreign and limit.startswith("min_stop")) or (unspaced and limit[4:] in _SHAPES):
            continue
        value = MEASURES[limit[4:]](counts)[0]
        if value < bound if limit.startswith("min_") else value > bound:
            return limit
    return None


def c4_lines(text: str) -> str:
    """C4's edit: only lines of three words or more that end like a sentence, without script notices and policies."""
    from overland.corpus.quality_reference import c4_keeps

    return "\n".join(line for line in text.split("\n") if c4_keeps(line.strip()))

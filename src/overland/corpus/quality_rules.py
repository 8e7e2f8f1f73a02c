"""The published rule sets as named limits on measures of a text.

A limit is `min_MEASURE` or `max_MEASURE`; a text breaks it where its measure is smaller or larger. MEASURES says what
each is. PUBLISHED holds the sets with their papers' thresholds: they are made for English web prose, and on code or
tables most of them are wrong (of documentation and code together Gopher's quality set drops three
quarters), so a recipe names sets by domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from overland.corpus.quality_statistics import Statistics
from overland.errors import UsageError

Limits = dict[str, float]
Values = NDArray[np.float64]


def _share(part: str, whole: str) -> Callable[[Statistics], Values]:
    return lambda s: s[part] / np.maximum(s[whole], 1)


def _count(name: str) -> Callable[[Statistics], Values]:
    return lambda s: s[name].astype(np.float64)


MEASURES: dict[str, Callable[[Statistics], Values]] = {
    "chars": lambda s: (s["chars"] - s["spaces"]).astype(np.float64),  # white space left out
    "words": _count("words"),
    "mean_word": _share("word_chars", "words"),
    "word": _count("max_word"),
    "symbols_per_word": lambda s: (s["hashes"] + s["ellipses"]) / np.maximum(s["words"], 1),
    "hashes_per_word": _share("hashes", "words"),
    "ellipses_per_word": _share("ellipses", "words"),
    "alpha_words": _share("alpha_words", "words"),
    "stop_words": _count("stop_words"),  # occurrences of: the be to of and that have with
    "stop_kinds": _count("stop_kinds"),  # different ones among them
    "bullet_lines": _share("bullet_lines", "lines"),
    "ellipsis_lines": _share("ellipsis_lines", "lines"),
    "punctuated_lines": _share("punctuated_lines", "lines"),
    "short_lines": _share("short_lines", "lines"),  # of at most 30 characters
    "upper_lines": _share("upper_lines", "lines"),  # most letters of the line are capitals
    "script_lines": _count("script_lines"),
    "policy_lines": _count("policy_lines"),
    "c4_sentences": _count("c4_sentences"),  # sentences in the lines that C4 keeps
    "braces": _count("braces"),
    "lorem": _count("lorem"),
    "breaks_per_word": lambda s: (s["all_lines"] - 1) / np.maximum(s["words"], 1),
    "duplicate_lines": _share("duplicate_lines", "lines"),
    "duplicate_line_chars": _share("duplicate_line_chars", "line_chars"),
    "duplicate_paragraphs": _share("duplicate_paragraphs", "paragraphs"),
    "duplicate_paragraph_chars": _share("duplicate_paragraph_chars", "paragraph_chars"),
    **{f"top_{n}gram": _share(f"top_{n}gram", "word_chars") for n in (2, 3, 4)},
    **{f"repeated_{n}gram": _share(f"repeated_{n}gram", "word_chars") for n in range(5, 11)},
    "symbols": lambda s: 1 - s["alnum"] / np.maximum(s["chars"] - s["spaces"], 1),
    "alphanumeric": lambda s: s["alnum"] / np.maximum(s["chars"] - s["spaces"], 1),
    "digits": lambda s: s["digits"] / np.maximum(s["chars"] - s["spaces"], 1),
    "letters": lambda s: s["letters"] / np.maximum(s["chars"] - s["spaces"], 1),
    "spaces": _share("spaces", "chars"),
    "parentheses": _share("parentheses", "chars"),
    "urls_per_word": _share("urls", "words"),
    "open_lines": lambda s: 1 - s["punctuated_lines"] / np.maximum(s["lines"], 1),
    "line": _count("max_line"),
    "mean_line": lambda s: (s["chars"] - s["all_lines"] + 1) / np.maximum(s["all_lines"], 1),
    "angles": _share("angles", "chars"),  # of < and >: what is left of XML and HTML
    "comment_lines": _share("comment_lines", "lines"),
    "commands_per_word": _share("commands", "words"),  # a backslash and a letter, as LaTeX has
}

PUBLISHED: dict[str, Limits] = {
    # Rae et al. 2021 (arXiv 2112.11446), §A.1.1.
    "gopher_quality": {
        "min_words": 50,
        "max_words": 100_000,
        "min_mean_word": 3,
        "max_mean_word": 10,
        "max_hashes_per_word": 0.1,
        "max_ellipses_per_word": 0.1,
        "max_bullet_lines": 0.9,
        "max_ellipsis_lines": 0.3,
        "min_alpha_words": 0.8,
        "min_stop_kinds": 2,
    },
    "gopher_repetition": {
        "max_duplicate_lines": 0.3,
        "max_duplicate_paragraphs": 0.3,
        "max_duplicate_line_chars": 0.2,
        "max_duplicate_paragraph_chars": 0.2,
        "max_top_2gram": 0.2,
        "max_top_3gram": 0.18,
        "max_top_4gram": 0.16,
        **{
            f"max_repeated_{n}gram": limit
            for n, limit in zip(range(5, 11), (0.15, 0.14, 0.13, 0.12, 0.11, 0.1), strict=True)
        },
    },
    # Raffel et al. 2020 (arXiv 1910.10683), §2.2; its edits of lines are `c4_lines`.
    "c4": {"min_c4_sentences": 5, "max_braces": 0, "max_lorem": 0, "max_word": 1000},
    # Penedo et al. 2024 (arXiv 2406.17557), §3.6.
    "fineweb": {
        "min_punctuated_lines": 0.12,
        "max_short_lines": 0.67,
        "max_duplicate_line_chars": 0.01,
        "max_breaks_per_word": 0.3,
    },
    # NeMo Curator's heuristics for English.
    "nemo": {
        "max_symbols": 0.25,
        "max_digits": 0.15,
        "max_urls_per_word": 0.2,
        "max_spaces": 0.25,
        "max_parentheses": 0.1,
        "max_duplicate_lines": 0.7,
        "max_open_lines": 0.85,
    },
    # Kocetkov et al. 2022 (arXiv 2211.15533) and Li et al. 2023 (arXiv 2305.06161, §4): files of source code.
    "stack": {"max_mean_line": 100, "max_line": 1000, "min_alphanumeric": 0.25, "max_angles": 0.2, "max_digits": 0.3},
    # Mathematics keeps its formulas: no rule on symbols, line ends or stop words (after arXiv 2310.06786, §3).
    "math": {
        "min_words": 30,
        "max_words": 100_000,
        "max_mean_word": 20,
        "max_duplicate_lines": 0.3,
        "max_top_4gram": 0.16,
    },
}


@cache
def needed(measure: str) -> frozenset[str]:
    """The statistics that a measure is made of."""
    asked = _Asked()
    MEASURES[measure](asked)
    return frozenset(asked)


class _Asked(dict[str, NDArray[np.int64]]):
    """Statistics of no texts that remember which of them were looked at."""

    def __missing__(self, name: str) -> NDArray[np.int64]:
        self[name] = np.zeros(0, dtype=np.int64)
        return self[name]


def check_limits(limits: Mapping[str, float | None]) -> None:
    """Raise UsageError naming the first limit that is none."""
    import difflib

    for name in limits:
        if name[:4] not in ("min_", "max_") or name[4:] not in MEASURES:
            known = [f"{end}_{measure}" for measure in MEASURES for end in ("min", "max")]
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(f"quality: '{name}' is no rule" + (f"; did you mean {near[0]}?" if near else ""))


def published(names: tuple[str, ...]) -> Limits:
    """The limits of published sets together; where two share one, the stricter. Raises UsageError on a wrong name."""
    out: Limits = {}
    for name in names:
        if name not in PUBLISHED:
            raise UsageError(f"quality: '{name}' is no rule set; choose from: {', '.join(PUBLISHED)}")
        for limit, value in PUBLISHED[name].items():
            stricter = max if limit.startswith("min_") else min
            out[limit] = stricter(out.get(limit, value), value)
    return out

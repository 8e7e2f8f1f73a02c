"""Quality rules, one set a domain: a rule made for web prose deletes three quarters of code and reference text.

Each check returns the name of the first rule that a text breaks, or None. Sources: Gopher (arXiv 2112.11446, §A.1.1)
for prose, The Stack (arXiv 2211.15533) for code.
"""

from __future__ import annotations

import re
from collections import Counter

from overland.corpus.section import CodeRules, ProseRules

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_BULLET = re.compile(r"^\s*([-*•‣+]|\d+[.)])\s")
_LETTER = re.compile(r"[^\W\d_]")


def check(text: str, domain: str, prose: ProseRules, code: CodeRules) -> str | None:
    """The first broken rule of the domain's profile, or None."""
    return check_code(text, code) if domain == "code" else check_prose(text, prose)


def check_code(text: str, rules: CodeRules) -> str | None:
    """The first broken rule for source code, or None."""
    lines = text.splitlines()
    visible = sum(len(part) for part in text.split())
    if visible < rules.min_chars:
        return "min_chars"
    if max(map(len, lines)) > rules.max_line:
        return "max_line"
    if sum(map(len, lines)) / len(lines) > rules.max_mean_line:
        return "max_mean_line"
    digits = sum(text.count(digit) for digit in "0123456789")
    if digits / visible > rules.max_digits:
        return "max_digits"
    if sum(map(str.isalnum, text)) / visible < rules.min_alphanumeric:
        return "min_alphanumeric"
    return None


def check_prose(text: str, rules: ProseRules) -> str | None:
    """The first broken rule for prose, or None."""
    words = text.split()
    if len(words) < rules.min_words:
        return "min_words"
    if len(words) > rules.max_words:
        return "max_words"
    mean = sum(map(len, words)) / len(words)
    if mean < rules.min_mean_word:
        return "min_mean_word"
    if mean > rules.max_mean_word:
        return "max_mean_word"
    if (text.count("#") + text.count("...") + text.count("…")) / len(words) > rules.max_symbols_per_word:
        return "max_symbols_per_word"
    if sum(1 for word in words if _LETTER.search(word)) / len(words) < rules.min_alpha_words:
        return "min_alpha_words"
    lowered = [word.lower() for word in words]
    if sum(1 for word in lowered if word in STOP_WORDS) < rules.min_stop_words:
        return "min_stop_words"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _lines(lines, rules) or _ngrams(lowered, rules)


def _lines(lines: list[str], rules: ProseRules) -> str | None:
    if sum(1 for line in lines if _BULLET.match(line)) / len(lines) > rules.max_bullet_lines:
        return "max_bullet_lines"
    if sum(1 for line in lines if line.endswith(("...", "…"))) / len(lines) > rules.max_ellipsis_lines:
        return "max_ellipsis_lines"
    counts = Counter(lines)
    if (len(lines) - len(counts)) / len(lines) > rules.max_duplicate_lines:
        return "max_duplicate_lines"
    repeated = sum(len(line) * (count - 1) for line, count in counts.items())
    if repeated / sum(map(len, lines)) > rules.max_duplicate_line_chars:
        return "max_duplicate_line_chars"
    return None


def _ngrams(words: list[str], rules: ProseRules) -> str | None:
    total = sum(map(len, words))
    for n, limit in ((2, rules.max_top_2gram), (3, rules.max_top_3gram), (4, rules.max_top_4gram)):
        grams = Counter(zip(*(words[i:] for i in range(n)), strict=False))
        if not grams:
            return None
        # Ties are broken by length, then by text, so that the verdict does not depend on the order of hashing.
        gram, count = max(grams.items(), key=lambda item: (item[1], sum(map(len, item[0])), item[0]))
        if count > 1 and count * sum(map(len, gram)) / total > limit:
            return f"max_top_{n}gram"
    return None

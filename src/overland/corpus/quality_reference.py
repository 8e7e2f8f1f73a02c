"""The statistics of the quality rules in plain Python: what `native/statistics.c` is held against, and what runs where
there is no compiler (about a hundredth of its speed)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLETS = ("-", "*", "+", "•", "‣", "●", "○", "■")
COMMENTS = ("#", "//", "/*", "*", "--", "%", ";")
SENTENCE_ENDS = (".", "!", "?", '"', "'", "…", "”", "’", "。", "！", "？", "．")
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_SPACE = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORD = re.compile(f"[^{_SPACE}]+")
_BULLET = re.compile(rf"(?:[{re.escape(''.join(BULLETS))}]|[0-9]+[.)])[{_SPACE}]")
_SENTENCE = re.compile(rf"[.!?]+(?=$|[\"')]|[{_SPACE}])")
_LOWER = {i: i + 32 for i in range(65, 91)}
# (first, last, whether its characters are letters): the blocks of native/words.h beyond ASCII, last match wins.
_SIGNS = (
    *((0x80, 0xA9), (0xAB, 0xB4), (0xB6, 0xB9), (0xBB, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7), (0x2000, 0x206F)),
    *((0x2190, 0x2BFF), (0x2E00, 0x2E7F), (0x3000, 0x3004), (0x3006, 0x3006), (0x3008, 0x303F), (0xE000, 0xF8FF)),
    *((0xFE10, 0xFE6F), (0xFF00, 0xFF0F), (0x1F000, 0x1FFFF)),
)
_LETTER = re.compile("[^\x00-@\\[-`{-\x7f" + "".join(f"{chr(a)}-{chr(b)}" for a, b in _SIGNS) + "]")


def statistics(texts: Sequence[bytes], grams: Sequence[int], names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Each of `names` over the texts [n], as native/statistics.c counts them."""
    rows = [
        count(raw.decode("utf-8", "replace"), len(raw), bool(wanted)) for raw, wanted in zip(texts, grams, strict=True)
    ]
    return {name: np.array([row[name] for row in rows], dtype=np.int64) for name in names}


def count(text: str, n_bytes: int, grams: bool) -> dict[str, int]:
    """The statistics of one text."""
    raw_lines = text.split("\n")
    lines = [stripped for line in raw_lines if (stripped := _strip(line))]
    words = _WORD.findall(text)
    lowered = [word.translate(_LOWER) for word in words]
    stops = Counter(word for word in lowered if word in STOP_WORDS)
    letters = len(_LETTER.findall(text))
    digits = sum(text.count(d) for d in "0123456789")
    c4 = [line for line in lines if c4_keeps(line)]
    out = {
        "bytes": n_bytes,
        "chars": len(text),
        "spaces": len(text) - sum(map(len, words)),
        "words": len(words),
        "word_chars": sum(map(len, words)),
        "max_word": max(map(len, words), default=0),
        "alpha_words": sum(1 for word in words if _LETTER.search(word)),
        "stop_words": stops.total(),
        "stop_kinds": len(stops),
        "hashes": text.count("#"),
        "ellipses": text.count("...") + text.count("…"),
        "lines": len(lines),
        "bullet_lines": sum(1 for line in lines if _BULLET.match(line)),
        "ellipsis_lines": sum(1 for line in lines if line.endswith(("...", "…"))),
        "punctuated_lines": sum(1 for line in lines if line.endswith(SENTENCE_ENDS)),
        "short_lines": sum(1 for line in lines if len(line) <= 30),
        "max_line": max(map(len, raw_lines)),
        "line_chars": sum(map(len, lines)),
        "all_lines": len(raw_lines),
        "digits": digits,
        "alnum": letters + digits,
        "upper": len(re.findall("[A-Z]", text)),
        "letters": letters,
        "parentheses": text.count("(") + text.count(")"),
        "braces": text.count("{") + text.count("}"),
        "angles": text.count("<") + text.count(">"),
        "urls": text.count("://"),
        "sentences": sum(len(_SENTENCE.findall(line)) for line in lines),
        "lorem": int("orem ipsum" in text),
        "script_lines": sum(1 for line in lines if "javascript" in line.translate(_LOWER)),
        "policy_lines": sum(1 for line in lines if _is_policy(line)),
        "c4_lines": len(c4),
        "c4_sentences": sum(max(1, len(_SENTENCE.findall(line))) for line in c4),
        "upper_lines": sum(1 for line in lines if _is_upper(line)),
        "comment_lines": sum(1 for line in lines if line.startswith(COMMENTS)),
        "commands": len(re.findall(r"\\(?=[A-Za-z])", text)),
        "dollars": text.count("$"),
        **_repeats("line", lines),
        **_repeats("paragraph", _paragraphs(raw_lines)),
    }
    out["paragraph_chars"] = out["line_chars"]
    out["paragraphs"] = len(_paragraphs(raw_lines))
    for n in range(2, 11):
        name = f"top_{n}gram" if n <= 4 else f"repeated_{n}gram"
        out[name] = (top_ngram if n <= 4 else repeated_ngrams)(lowered, n) if grams else 0
    return out


def top_ngram(words: Sequence[str], n: int) -> int:
    """Characters of all places of the most frequent n words in a row (of equals, the longest); 0 where none repeats."""
    counts = Counter(zip(*(words[i:] for i in range(n)), strict=False))
    count, size = max(((c, sum(map(len, gram))) for gram, c in counts.items()), default=(0, 0))
    return count * size if count > 1 else 0


def repeated_ngrams(words: Sequence[str], n: int) -> int:
    """Characters in n words in a row that were seen before; a repeated run is passed over as a whole."""
    seen: set[tuple[str, ...]] = set()
    repeated = i = 0
    while i + n <= len(words):
        gram = tuple(words[i : i + n])
        if gram in seen:
            repeated += sum(map(len, gram))
            i += n
        else:
            seen.add(gram)
            i += 1
    return repeated


def _strip(line: str) -> str:
    words = list(_WORD.finditer(line))
    return line[words[0].start() : words[-1].end()] if words else ""


def _paragraphs(raw_lines: list[str]) -> list[str]:
    out: list[list[str]] = [[]]
    for line in map(_strip, raw_lines):
        if line:
            out[-1].append(line)
        elif out[-1]:
            out.append([])
    return ["\n".join(lines) for lines in out if lines]


def _repeats(name: str, parts: list[str]) -> dict[str, int]:
    counts = Counter(parts)
    chars = {part: len(part.replace("\n", "")) if name == "paragraph" else len(part) for part in counts}
    return {
        f"{name}s": len(parts),
        f"duplicate_{name}s": len(parts) - len(counts),
        f"duplicate_{name}_chars": sum(chars[part] * (n - 1) for part, n in counts.items()),
    }


def _is_policy(line: str) -> bool:
    lowered = line.translate(_LOWER)
    return any(phrase in lowered for phrase in POLICIES)


def _is_upper(line: str) -> bool:
    return 2 * len(re.findall("[A-Z]", line)) > len(re.findall("[A-Za-z]", line))


def c4_keeps(line: str) -> bool:
    """C4's rule for a line (Raffel et al. 2020): three words, an end mark, neither script notice nor policy."""
    return (
        len(_WORD.findall(line)) >= 3
        and line.endswith((".", "!", "?", '"', "'"))
        and not line.endswith("...")
        and "javascript" not in line.translate(_LOWER)
        and not _is_policy(line)
    )

"""What the quality rules ask of texts: counts of `native/statistics.c`, or of `quality_reference`.

Words lie between white space; characters are code points; lines are stripped and not blank unless said otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overland.corpus import quality_reference
from overland.corpus.compiled import Packed, available, library, pointer
from overland.errors import OverlandError

# The order is that of the enum in native/statistics.c; what each counts is said in quality_reference.py.
STATISTICS = (
    *("bytes", "chars", "spaces", "words", "word_chars", "max_word", "alpha_words", "stop_words", "stop_kinds"),
    *("hashes", "ellipses", "lines", "bullet_lines", "ellipsis_lines", "punctuated_lines", "short_lines", "max_line"),
    *("line_chars", "all_lines", "duplicate_lines", "duplicate_line_chars", "paragraphs", "duplicate_paragraphs"),
    *("duplicate_paragraph_chars", "paragraph_chars", "digits", "alnum", "upper", "letters", "parentheses", "braces"),
    *("angles", "urls", "sentences", "lorem", "script_lines", "policy_lines", "c4_lines", "c4_sentences"),
    *("upper_lines", "comment_lines", "commands", "dollars", "top_2gram", "top_3gram", "top_4gram"),
    *("repeated_5gram", "repeated_6gram", "repeated_7gram", "repeated_8gram", "repeated_9gram", "repeated_10gram"),
)

Statistics = dict[str, NDArray[np.int64]]


ALL_GRAMS = 0x1FF


def gram_bit(name: str) -> int:
    """The bit in `grams` of a statistic or measure like "top_3gram"; 0 for any other."""
    return 1 << int(name.rpartition("_")[2].removesuffix("gram")) - 2 if name.endswith("gram") else 0


def statistics(texts: Packed, grams: NDArray[np.uint16] | int = ALL_GRAMS) -> Statistics:
    """Each statistic [n]. `grams`: which runs of words are counted (the bits of `gram_bit`; 0 elsewhere), for all texts
    or one by one."""
    n = len(texts)
    wanted = np.ascontiguousarray(np.broadcast_to(grams, n), dtype=np.uint16)
    if not available():
        return quality_reference.statistics([texts.raw(i) for i in range(n)], wanted.tolist(), STATISTICS)
    rows = np.empty((n, len(STATISTICS)), dtype=np.int64)
    code = library()
    assert code.overland_statistic_count() == len(STATISTICS)
    if code.overland_statistics(pointer(texts.data), pointer(texts.offsets), int(n), pointer(wanted), pointer(rows)):
        raise OverlandError("quality statistics: out of memory")
    return {name: rows[:, i] for i, name in enumerate(STATISTICS)}

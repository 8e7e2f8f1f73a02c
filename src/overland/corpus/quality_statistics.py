"""What the quality rules ask of texts: counts of `native/statistics.c`, or of `quality_reference`.

Words lie between white space; characters are code points; lines are stripped and not blank unless said otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

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


_PLACE = {name: place for place, name in enumerate(STATISTICS)}
_GRAMS = sum(1 << place for name, place in _PLACE.items() if name.endswith("gram"))


def wanted_bits(names: Iterable[str]) -> int:
    """A set of statistics as a number, for `statistics`."""
    return sum(1 << _PLACE[name] for name in set(names))


def statistics(texts: Packed, wanted: Sequence[int] | None = None) -> Statistics:
    """Each statistic [n] that is asked for of any text. `wanted`: the `wanted_bits` of each text, whose other
    statistics may come out as 0; None asks for all of all."""
    n = len(texts)
    every = wanted_bits(STATISTICS)
    asked = [every] * n if wanted is None else wanted
    any_wanted = every if wanted is None else reduce(or_, asked, 0)
    names = [name for name, place in _PLACE.items() if any_wanted >> place & 1]
    if not available():
        grams = [bits & _GRAMS for bits in asked]
        return quality_reference.statistics([texts.raw(i) for i in range(n)], grams, names)
    rows = np.empty((n, len(STATISTICS)), dtype=np.int64)
    code = library()
    assert code.overland_statistic_count() == len(STATISTICS)
    bits = np.array(asked, dtype=np.uint64)
    where = pointer(texts.data), pointer(texts.offsets)
    if code.overland_statistics(*where, ctypes.c_int64(n), pointer(bits), pointer(rows)):
        raise OverlandError("quality statistics: out of memory")
    return {name: rows[:, _PLACE[name]] for name in names}

"""The words of a text as hashes, taken once for all duplicate stages; the loop is in `native/words.c`."""

from __future__ import annotations

import ctypes

from overland.corpus.compiled import library
from overland.errors import OverlandError


class Words:
    """The words of one text at a time and the hashes of its word 5-grams. The memory is used again for the next."""

    def __init__(self) -> None:
        self._c = library()
        self._c.words_new.restype = ctypes.c_void_p
        self._c.words_take.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
        self.state = ctypes.c_void_p(self._c.words_new())
        if not self.state:
            raise OverlandError("duplicates: no memory")
        self._text: bytes | None = None

    def __del__(self) -> None:
        if getattr(self, "state", None):
            self._c.words_free(self.state)

    def of(self, utf8: bytes) -> Words:
        """These words, now of this text."""
        if utf8 is not self._text:
            self._text = None
            if len(utf8) >= 2**32 - 16:
                raise OverlandError(f"corpus: a text has {len(utf8)} bytes; split what is larger than 4 GB")
            if self._c.words_take(self.state, utf8, len(utf8)):
                raise OverlandError("duplicates: out of memory; raise the memory limit or build by parts")
            self._text = utf8
        return self

/* Where the pieces of a text end under the patterns of bpe.py: their regular expressions written out, alternative by
   alternative, over a table of what each code point is. A text must be UTF-8. */
#ifndef OVERLAND_SPLIT_H
#define OVERLAND_SPLIT_H

#include "words.h"

enum { HOUSE, CL100K, K3 };

/* What a code point is, bits; the table comes from the tokenizer's own regular expressions (unicode_classes.py). SIGN:
   no letter, number or space. UPPER and LOWER: what K3's two halves of a word take, a caseless letter is in both. */
enum { LETTER_BIT = 1, NUMBER = 2, SPACE = 4, SIGN = 8, MARK = 16, HAN = 32, UPPER = 64, LOWER = 128 };

typedef struct {
    int pattern, digits;
    u8 class_of[0x110000];
} split_t;

/* The end of the piece that starts at s[p]. */
i64 piece_end(const split_t *t, const u8 *s, i64 p, i64 n);
/* Whether n bytes are UTF-8 as Unicode defines it: shortest forms, no surrogates. */
int is_utf8(const u8 *s, i64 n);

#endif

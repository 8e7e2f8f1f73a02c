/* Whether a text is English, by its function words: what `language_of` in reading.py says in Python. */
#include "words.h"

/* the of and to is in that for a with be or, as little-endian numbers of up to four letters */
#define FOUR(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)
static const u32 FUNCTION_WORDS[] = {FOUR('t', 'h', 'e', 0), FOUR('o', 'f', 0, 0), FOUR('a', 'n', 'd', 0),
                                     FOUR('t', 'o', 0, 0), FOUR('i', 's', 0, 0), FOUR('i', 'n', 0, 0),
                                     FOUR('t', 'h', 'a', 't'), FOUR('f', 'o', 'r', 0), FOUR('a', 0, 0, 0),
                                     FOUR('w', 'i', 't', 'h'), FOUR('b', 'e', 0, 0), FOUR('o', 'r', 0, 0)};

/* 1 where they make up a twelfth of the words in the first `chars` characters. */
API int overland_is_english(const u8 *s, i64 n, i64 chars) {
    i64 words = 0, english = 0, p = 0;
    while (p < n && chars > 0) {
        int space = space_at(s + p, s + n);
        if (space) {
            p += space, chars--;
            continue;
        }
        u32 word = 0;
        i64 size = 0;
        for (; p < n && !space_at(s + p, s + n); p++) {
            if ((s[p] & 0xC0) != 0x80 && chars-- == 0) break;
            u8 c = s[p] >= 'A' && s[p] <= 'Z' ? s[p] + 32 : s[p];
            if (size < 4) word |= (u32)c << 8 * size;
            size++;
        }
        if (chars < 0) chars = 0;
        words++;
        for (int i = 0; size <= 4 && i < 12; i++) english += word == FUNCTION_WORDS[i];
    }
    return words && english * 12 >= words;
}

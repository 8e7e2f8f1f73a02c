/* Words of a UTF-8 text as 32-bit hashes with their byte ranges: what every duplicate stage compares.

A word is a run of letters, digits and underscores, folded to lower case (ASCII, Latin-1, Greek, Cyrillic); a character
of a script that is written without spaces (Han, kana, Thai ...) is a word of its own. Everything else separates, so
that reformatting, markup and punctuation do not make a text new. Broken UTF-8 bytes count as letters. */
#ifndef OVERLAND_WORDS_H
#define OVERLAND_WORDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#define API __attribute__((visibility("default")))

enum { SEPARATOR, LETTER, ALONE };

static inline u64 mix64(u64 x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ (x >> 32);
}

/* One code point of two bytes or more at s; *size is the bytes it takes. A broken sequence is one byte. */
static inline u32 code_point(const u8 *s, const u8 *end, int *size) {
    u8 c = s[0];
    *size = 1;
    int more = c >= 0xF0 && c < 0xF5 ? 3 : c >= 0xE0 ? 2 : c >= 0xC2 ? 1 : 0;
    if (c >= 0xF5 || !more || end - s <= more) return c;
    u32 point = c & (0x3F >> more);
    for (int i = 1; i <= more; i++) {
        if ((s[i] & 0xC0) != 0x80) return c;
        point = point << 6 | (s[i] & 0x3F);
    }
    *size = more + 1;
    return point;
}

/* What a character beyond ASCII is to the words, from the blocks of the Unicode standard. */
static inline int kind_of(u32 p) {
    if (p < 0xC0) return p == 0xAA || p == 0xB5 || p == 0xBA ? LETTER : SEPARATOR;
    if (p == 0xD7 || p == 0xF7) return SEPARATOR;
    if (p < 0x0E00) return LETTER;
    if (p < 0x0F00) return ALONE;                                    /* Thai, Lao */
    if (p >= 0x1000 && p < 0x10A0) return ALONE;                     /* Myanmar */
    if (p >= 0x1780 && p < 0x1800) return ALONE;                     /* Khmer */
    if (p >= 0x2000 && p < 0x2070) return SEPARATOR;                 /* general punctuation */
    if (p >= 0x2190 && p < 0x2C00) return SEPARATOR;                 /* arrows, operators, boxes, symbols */
    if (p >= 0x2E00 && p < 0x2E80) return SEPARATOR;
    if (p >= 0x2E80 && p < 0x3000) return ALONE;                     /* radicals */
    if (p >= 0x3000 && p < 0x3040) return p == 0x3005 || p == 0x3007 ? ALONE : SEPARATOR;
    if (p >= 0x3040 && p < 0xA000) return ALONE;                     /* kana, Han */
    if (p >= 0xE000 && p < 0xF900) return SEPARATOR;                 /* private use */
    if (p >= 0xF900 && p < 0xFB00) return ALONE;
    if (p >= 0xFE10 && p < 0xFE70) return SEPARATOR;
    if (p >= 0xFF00 && p < 0xFF10) return SEPARATOR;
    if (p >= 0x1F000 && p < 0x20000) return SEPARATOR;               /* pictures */
    if (p >= 0x20000 && p < 0x32000) return ALONE;
    return LETTER;
}

static inline u32 fold(u32 p) {
    if (p >= 0xC0 && p <= 0xDE) return p + 0x20;
    if (p >= 0x391 && p <= 0x3A9) return p + 0x20;
    if (p >= 0x410 && p <= 0x42F) return p + 0x20;
    if (p >= 0x400 && p <= 0x40F) return p + 0x50;
    return p;
}

/* The ASCII characters as words see them: 0 separates, else the folded letter. */
extern const u8 WORD_BYTE[256];

/* Fills hash, start and end (each of room n / 2 + 2) and returns how many words there are. No hash is 0. */
i64 words_of(const u8 *s, i64 n, u32 *hash, u32 *start, u32 *end);

#define NGRAM 5

/* Hash of `size` words in a row. */
static inline u32 gram_hash(const u32 *word, i64 size) {
    u64 h = 0;
    for (i64 j = 0; j < size; j++) h = (h + word[j]) * 0x9FB21C651E98DF25ull + (h >> 31);
    return (u32)(mix64(h) >> 32);
}

/* The words of a text and the hashes of its word 5-grams, taken once for all duplicate stages. */
typedef struct { u32 *hash, *start, *end, *gram; i64 words, grams, bytes, room; } words_t;

/* Bytes of white space at s, 0 where there is none: what Python counts as white space. */
static inline int space_at(const u8 *s, const u8 *end) {
    u8 c = *s;
    if (c <= 0x20) return c == 0x20 || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
    if (c < 0xC2) return 0;
    if (c == 0xC2) return end - s > 1 && (s[1] == 0x85 || s[1] == 0xA0) ? 2 : 0;
    if (c == 0xE1) return end - s > 2 && s[1] == 0x9A && s[2] == 0x80 ? 3 : 0;
    if (c == 0xE2 && end - s > 2)
        return (s[1] == 0x80 && ((s[2] >= 0x80 && s[2] <= 0x8A) || s[2] == 0xA8 || s[2] == 0xA9 || s[2] == 0xAF)) ||
                       (s[1] == 0x81 && s[2] == 0x9F) ? 3 : 0;
    return c == 0xE3 && end - s > 2 && s[1] == 0x80 && s[2] == 0x80 ? 3 : 0;
}

static inline i64 chars_in(const u8 *s, i64 n) {
    i64 count = 0;
    for (i64 i = 0; i < n; i++) count += (s[i] & 0xC0) != 0x80;
    return count;
}

/* Grows *array of `size`-byte items to hold at least `need`; 0 where memory is out. */
static inline int grow(void **array, i64 *capacity, i64 need, size_t size) {
    if (need <= *capacity) return 1;
    i64 wanted = *capacity + *capacity / 2 + 1024;
    if (wanted < need) wanted = need;
    void *moved = realloc(*array, (size_t)wanted * size);
    if (!moved) return 0;
    *array = moved;
    *capacity = wanted;
    return 1;
}

#endif

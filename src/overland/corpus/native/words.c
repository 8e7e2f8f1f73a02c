#include "words.h"

#define L(c) c, c + 1, c + 2, c + 3, c + 4, c + 5, c + 6, c + 7, c + 8, c + 9
const u8 WORD_BYTE[256] = {
    ['0'] = L('0'),
    ['A'] = L('a'), L('k'), 'u', 'v', 'w', 'x', 'y', 'z',
    ['_'] = '_',
    ['a'] = L('a'), L('k'), 'u', 'v', 'w', 'x', 'y', 'z',
};
#undef L

#define SEED 0x9E3779B97F4A7C15ull
#define STEP 0x9FB21C651E98DF25ull

static inline u32 finish(u64 h) {
    u32 x = (u32)((h ^ (h >> 29)) * 0xD6E8FEB86659FD93ull >> 32);
    return x ? x : 1;
}

i64 words_of(const u8 *s, i64 n, u32 *hash, u32 *start, u32 *end) {
    const u8 *p = s, *stop = s + n;
    i64 count = 0;
    while (p < stop) {
        while (p < stop && *p < 0x80 && !WORD_BYTE[*p]) p++;
        if (p == stop) break;
        const u8 *first = p;
        u64 h = SEED;
        int alone = 0;
        while (p < stop) {
            u8 c = WORD_BYTE[*p];
            if (c) {
                h = (h ^ c) * STEP;
                p++;
                continue;
            }
            if (*p < 0x80) break;
            int size;
            u32 point = code_point(p, stop, &size);
            int kind = size == 1 ? LETTER : kind_of(point);
            if (kind == LETTER) {
                h = (h ^ fold(point)) * STEP;
                p += size;
                continue;
            }
            if (p > first) break;
            p += size;
            if (kind == ALONE) {
                h = (h ^ point) * STEP;
                alone = 1;
            }
            break;
        }
        if (h == SEED && !alone) continue; /* a separator beyond ASCII */
        hash[count] = finish(h);
        start[count] = (u32)(first - s);
        end[count] = (u32)(p - s);
        count++;
    }
    return count;
}

API words_t *words_new(void) { return calloc(1, sizeof(words_t)); }

API void words_free(words_t *w) { free(w->hash), free(w); }

/* Takes the words of a text of n bytes. Returns 1 where memory is out. */
API int words_take(words_t *w, const u8 *s, i64 n) {
    i64 need = n / 2 + 2;
    if (need > w->room) {
        free(w->hash);
        w->room = need + need / 2;
        w->hash = malloc((size_t)w->room * 4 * sizeof *w->hash);
        if (!w->hash) return w->room = 0, 1;
        w->start = w->hash + w->room, w->end = w->start + w->room, w->gram = w->end + w->room;
    }
    w->bytes = n;
    w->words = words_of(s, n, w->hash, w->start, w->end);
    w->grams = w->words < NGRAM ? 0 : w->words - NGRAM + 1;
    for (i64 i = 0; i < w->grams; i++) w->gram[i] = gram_hash(w->hash + i, NGRAM);
    return 0;
}

API i64 overland_chars(const u8 *s, i64 n) { return chars_in(s, n); }

API i64 overland_words(const u8 *s, i64 n, u32 *hash, u32 *start, u32 *end) { return words_of(s, n, hash, start, end); }

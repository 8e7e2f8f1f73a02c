/* Paragraphs that are long enough to count as repeats (runs of lines that are not blank), and who had them first. */
#include "spill.h"

typedef struct { i64 start, end, first_char, last_char; } paragraph_t; /* in bytes, and the same in characters */

/* The words of s joined by one space; returns how many bytes they take. */
static i64 plain_words(const u8 *s, const u8 *end, u8 *out) {
    u8 *to = out;
    while (s < end) {
        int space = space_at(s, end);
        if (space) {
            s += space;
            continue;
        }
        if (to > out) *to++ = ' ';
        while (s < end && !space_at(s, end)) *to++ = *s++;
    }
    return to - out;
}

/* Writes every paragraph of at least min_words words to out [room]; with `comments` only those whose lines all begin
   with `#`. Its words, joined by one space, are appended to `plain` [n + 1], where they end to plain_end [room]. A
   paragraph ends behind its last newline. Returns how many; of more than `room` only the first are written. */
API i64 overland_paragraphs(const u8 *s, i64 n, i64 min_words, int comments, paragraph_t *out, u8 *plain,
                            i64 *plain_end, i64 room) {
    i64 count = 0, begin = -1, words = 0, chars = 0, counted = 0, written = 0; /* chars: of the bytes before `counted` */
    int fits = 1;
    for (i64 line = 0; line <= n;) {
        const u8 *found = memchr(s + line, '\n', (size_t)(n - line));
        i64 stop = found ? found - s : n, p = line;
        int space;
        while (p < stop && (space = space_at(s + p, s + stop))) p += space;
        int blank = p == stop;
        if (!blank) {
            if (begin < 0) begin = line, words = 0, fits = 1;
            if (comments && s[p] != '#') fits = 0;
            while (fits && p < stop && words < min_words) {
                words++;
                while (p < stop && !space_at(s + p, s + stop)) p++;
                while (p < stop && (space = space_at(s + p, s + stop))) p += space;
            }
        }
        i64 end = blank ? line : n;
        if (begin >= 0 && (blank || !found)) {
            if (fits && words >= min_words) {
                i64 from = chars + chars_in(s + counted, begin - counted), to = from + chars_in(s + begin, end - begin);
                if (count < room) {
                    out[count] = (paragraph_t){begin, end, from, to};
                    written += plain_words(s + begin, s + end, plain + written);
                    plain_end[count] = written;
                }
                count++;
                chars = to, counted = end;
            }
            begin = -1;
        }
        line = stop + 1;
    }
    return count;
}

/* ---- who had them first ------------------------------------------------------------------------------------------- */

typedef struct { u64 low, high; u32 domain, holder; i64 start; } held_t; /* holder: a text's number + 1; 0: free */
#define FORGOTTEN 0xFFFFFFFFu /* the paragraph is nobody's until somebody has it again */

typedef struct {
    held_t *slot;
    i64 slots, used;
    held_t *fresh; /* what the last call remembered */
    i64 fresh_room, fresh_count;
    spill_t spill;
} holders_t;

API holders_t *holders_new(void) {
    holders_t *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->slots = 1 << 12;
    t->slot = calloc((size_t)t->slots, sizeof *t->slot);
    if (t->slot) return t;
    free(t);
    return 0;
}

API void holders_free(holders_t *t) {
    spill_free(&t->spill, t->slot);
    spill_close(&t->spill);
    free(t->fresh), free(t);
}

/* Moves the table into a file in `folder`, or, where it is there, gives its pages back. 1: the disk is full. */
API int holders_spill(holders_t *t, const char *folder) {
    if (!t->spill.folder) {
        t->spill.folder = strdup(folder);
        if (!t->spill.folder || !spill_move(&t->spill, (void **)&t->slot, (size_t)t->slots * sizeof *t->slot)) return 1;
    }
    spill_release(&t->spill);
    return 0;
}

API i64 holders_bytes(const holders_t *t) { return t->slots * (i64)sizeof *t->slot; }

static held_t *held(const holders_t *t, u64 low, u64 high, u32 domain) {
    u64 mask = (u64)t->slots - 1, at = (low ^ domain * 0x9E3779B97F4A7C15ull) & mask;
    for (;; at = (at + 1) & mask) {
        held_t *h = t->slot + at;
        if (!h->holder || (h->low == low && h->high == high && h->domain == domain)) return h;
    }
}

static int widen(holders_t *t) {
    held_t *old = t->slot, *wide = spill_zeroed(&t->spill, (size_t)t->slots * 2 * sizeof *wide);
    if (!wide) return 0;
    i64 count = t->slots;
    t->slot = wide, t->slots = count * 2, t->used = 0;
    for (i64 i = 0; i < count; i++) {
        if (!old[i].holder || old[i].holder == FORGOTTEN) continue;
        *held(t, old[i].low, old[i].high, old[i].domain) = old[i];
        t->used++;
    }
    spill_free(&t->spill, old);
    return 1;
}

static int put(holders_t *t, held_t h) {
    held_t *place = held(t, h.low, h.high, h.domain);
    t->used += !place->holder;
    *place = h;
    return t->used * 2 < t->slots || widen(t);
}

/* Who had each of text `text`'s paragraphs (by 16 bytes of a hash) first: a text's number, -1 where nobody had it and it
   is this text's now. Returns 1 where memory is out. */
API int holders_take(holders_t *t, const u64 *digest, i64 n, u32 domain, i64 text, const i64 *start, i64 *first) {
    t->fresh_count = 0;
    if (!grow((void **)&t->fresh, &t->fresh_room, n, sizeof *t->fresh)) return 1;
    for (i64 i = 0; i < n; i++) {
        held_t *h = held(t, digest[2 * i], digest[2 * i + 1], domain);
        first[i] = h->holder && h->holder != FORGOTTEN ? (i64)h->holder - 1 : -1;
        if (first[i] >= 0) continue;
        held_t mine = {digest[2 * i], digest[2 * i + 1], domain, (u32)text + 1, start[i]};
        t->fresh[t->fresh_count++] = mine;
        if (!put(t, mine)) return 1;
    }
    return 0;
}

/* Forgets what the last call remembered: its text was dropped, and no paragraph may lose its last copy to it. */
API void holders_forget_last(holders_t *t) {
    for (i64 i = 0; i < t->fresh_count; i++)
        held(t, t->fresh[i].low, t->fresh[i].high, t->fresh[i].domain)->holder = FORGOTTEN;
    t->fresh_count = 0;
}

/* Writes what is remembered to out (of room holders_export(t, 0)); returns how many. */
API i64 holders_export(const holders_t *t, held_t *out) {
    i64 count = 0;
    for (i64 i = 0; i < t->slots; i++) {
        if (!t->slot[i].holder || t->slot[i].holder == FORGOTTEN) continue;
        if (out) out[count] = t->slot[i];
        count++;
    }
    return count;
}

API int holders_import(holders_t *t, i64 n, const held_t *rows) {
    for (i64 i = 0; i < n; i++)
        if (!put(t, rows[i])) return 1;
    return 0;
}

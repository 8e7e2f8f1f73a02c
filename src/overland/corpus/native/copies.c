/* Exact repeats: lines and paragraphs by hash, and long substrings by a rolling hash.

A substring of at least `size` bytes that stands earlier in the texts is always met: of every size / 2 windows of
size / 2 + 1 bytes one is remembered (winnowing), and a hit is compared byte by byte and extended both ways.
Sources: Karp and Rabin 1987 (rolling hash); Schleimer, Wilkerson and Aiken 2003 (winnowing). */
#include "words.h"

typedef struct { i64 text; u32 start, end; i64 source; u32 source_start, source_end; } copy_t;

/* ---- lines and paragraphs ---------------------------------------------------------------------------------------- */

typedef struct { u64 key; i64 text; u32 start, end; } unit_t;
typedef struct { unit_t *slot; i64 slots, used; copy_t *found; i64 found_room, count; } units_t;

API units_t *units_new(void) {
    units_t *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->slots = 1 << 12;
    t->slot = calloc((size_t)t->slots, sizeof *t->slot);
    return t;
}

API void units_free(units_t *t) { free(t->slot), free(t->found), free(t); }

static unit_t *unit_of(units_t *t, u64 key) {
    u64 mask = (u64)t->slots - 1, at = key & mask;
    while (t->slot[at].key && t->slot[at].key != key) at = (at + 1) & mask;
    return t->slot + at;
}

static int widen_units(units_t *t) {
    unit_t *old = t->slot;
    i64 count = t->slots;
    t->slot = calloc((size_t)count * 2, sizeof *t->slot);
    if (!t->slot) return t->slot = old, 0;
    t->slots = count * 2;
    for (i64 i = 0; i < count; i++)
        if (old[i].key) *unit_of(t, old[i].key) = old[i];
    free(old);
    return 1;
}

/* One unit: its words joined by one space are what counts. Returns 0 where memory is out. */
static int take_unit(units_t *t, const u8 *s, i64 start, i64 end, i64 text, i64 min_words, u64 salt) {
    u64 h = 0x9E3779B97F4A7C15ull ^ salt;
    i64 words = 0;
    for (i64 p = start; p < end;) {
        while (p < end && s[p] <= 0x20) p++;
        if (p == end) break;
        words++;
        while (p < end && s[p] > 0x20) h = (h ^ s[p++]) * 0x9FB21C651E98DF25ull, h ^= h >> 29;
        h = (h ^ 0x20) * 0x9FB21C651E98DF25ull;
    }
    if (words < min_words) return 1;
    h = mix64(h) | 1;
    unit_t *u = unit_of(t, h);
    if (u->key) {
        if (!grow((void **)&t->found, &t->found_room, t->count + 1, sizeof *t->found)) return 0;
        t->found[t->count++] = (copy_t){text, (u32)start, (u32)end, u->text, u->start, u->end};
        return 1;
    }
    *u = (unit_t){h, text, (u32)start, (u32)end};
    return ++t->used * 2 < t->slots || widen_units(t);
}

/* Lines (`paragraphs` 0) or runs of lines that are not blank, of at least min_words words, that an earlier text (from
   number `first` on) or place has word for word. Returns how many were found, -1 where memory is out. */
API i64 units_add(units_t *t, const u8 *data, const i64 *offset, i64 n, i64 first, int paragraphs, i64 min_words) {
    t->count = 0;
    for (i64 d = 0; d < n; d++) {
        const u8 *s = data + offset[d];
        i64 size = offset[d + 1] - offset[d], begin = -1;
        for (i64 p = 0; p < size;) {
            const u8 *stop = memchr(s + p, '\n', (size_t)(size - p));
            i64 end = stop ? stop - s + 1 : size, q = p;
            while (q < end && s[q] <= 0x20) q++;
            int blank = q == end;
            if (!paragraphs) {
                if (!blank && !take_unit(t, s, p, end, first + d, min_words, 1)) return -1;
            } else if (blank) {
                if (begin >= 0 && !take_unit(t, s, begin, p, first + d, min_words, 2)) return -1;
                begin = -1;
            } else if (begin < 0) {
                begin = p;
            }
            p = end;
        }
        if (begin >= 0 && !take_unit(t, s, begin, size, first + d, min_words, 2)) return -1;
    }
    return t->count;
}

API void units_found(const units_t *t, copy_t *out) { memcpy(out, t->found, (size_t)t->count * sizeof *out); }

/* ---- long substrings ---------------------------------------------------------------------------------------------- */

typedef struct { u64 key; i64 place; i64 next; } mark_t;

static u64 *window_hashes(const u8 *s, i64 n, i64 width) {
    u64 *hash = malloc((size_t)(n - width + 1) * sizeof *hash), h = 0, power = 1;
    if (!hash) return 0;
    for (i64 i = 0; i < width; i++) h = h * 0x9FB21C651E98DF25ull + s[i] + 1, power *= 0x9FB21C651E98DF25ull;
    hash[0] = mix64(h);
    for (i64 i = width; i < n; i++) {
        h = h * 0x9FB21C651E98DF25ull + s[i] + 1 - power * (u64)(s[i - width] + 1);
        hash[i - width + 1] = mix64(h);
    }
    return hash;
}

static i64 text_at(const i64 *offset, i64 n, i64 place) {
    i64 low = 0, high = n;
    while (high - low > 1) {
        i64 middle = (low + high) / 2;
        if (offset[middle] <= place) low = middle;
        else high = middle;
    }
    return low;
}

/* Substrings of at least `size` (>= 16) bytes of texts from number `fresh` on that stand earlier in the buffer: in an
   earlier text, or earlier in the same without overlapping. None overlaps another. The caller frees *out. Returns how
   many, -1 where memory is out. */
API i64 overland_substrings(const u8 *data, const i64 *offset, i64 n, i64 fresh, i64 size, copy_t **out) {
    i64 width = size / 2 + 1, span = size - width + 1, marks = 0, mark_room = 0, count = 0, room = 0, slots = 1 << 12;
    mark_t *mark = 0;
    copy_t *found = 0;
    i64 *slot = calloc((size_t)slots, sizeof *slot);
    int failed = !slot;
    for (i64 d = 0; d < n && !failed; d++) {
        const u8 *s = data + offset[d];
        i64 length = offset[d + 1] - offset[d], covered = 0, least = -1;
        if (length < size) continue;
        u64 *hash = window_hashes(s, length, width);
        if (!hash) { failed = 1; break; }
        for (i64 i = 0; i + width <= length && !failed; i++) {
            i64 first = i - span + 1;
            if (first < 0 && i + width < length) continue; /* the first full window of windows */
            if (first < 0) first = 0;
            if (least < first) {
                least = first;
                for (i64 j = first + 1; j <= i; j++)
                    if (hash[j] <= hash[least]) least = j;
            } else if (hash[i] <= hash[least]) {
                least = i;
            } else {
                continue;
            }
            i64 p = least;
            u64 at = hash[p] & (u64)(slots - 1);
            i64 best = 0, best_start = 0, best_source = 0, tries = 0;
            if (d >= fresh && p + width > covered)
                for (i64 m = slot[at]; m && tries < 64; m = mark[m - 1].next) {
                    if (mark[m - 1].key != hash[p]) continue;
                    tries++;
                    i64 q = mark[m - 1].place, text = text_at(offset, n, q);
                    i64 low = offset[text], high = offset[text + 1], own = text == d, a = offset[d] + p, left = 0, right = 0;
                    while (p - left > covered && q - left > low && data[a - left - 1] == data[q - left - 1]) left++;
                    while (p + right < length && q + right < high && (!own || q + right < a - left) && data[a + right] == data[q + right]) right++;
                    if (left + right > best) best = left + right, best_start = p - left, best_source = q - left;
                }
            if (best >= size) {
                i64 text = text_at(offset, n, best_source);
                if (!grow((void **)&found, &room, count + 1, sizeof *found)) { failed = 1; break; }
                found[count++] = (copy_t){d, (u32)best_start, (u32)(best_start + best), text, (u32)(best_source - offset[text]), (u32)(best_source - offset[text] + best)};
                covered = best_start + best;
            }
            if (!grow((void **)&mark, &mark_room, marks + 1, sizeof *mark)) { failed = 1; break; }
            mark[marks] = (mark_t){hash[p], offset[d] + p, slot[at]};
            slot[at] = ++marks;
            if (marks > slots) {
                i64 *wider = calloc((size_t)slots * 4, sizeof *wider);
                if (!wider) { failed = 1; break; }
                free(slot);
                slot = wider, slots *= 4;
                for (i64 m = 1; m <= marks; m++) {
                    u64 home = mark[m - 1].key & (u64)(slots - 1);
                    mark[m - 1].next = slot[home];
                    slot[home] = m;
                }
            }
        }
        free(hash);
    }
    free(mark), free(slot);
    if (failed) return free(found), -1;
    *out = found;
    return count;
}

API void overland_release(void *memory) { free(memory); }

/* Exact repeats: lines and paragraphs by hash, and long substrings by a rolling hash.

A substring of at least `size` bytes that stands earlier in the texts is always met: of every size / 2 windows of
size / 2 + 1 bytes one is remembered (winnowing), and a hit is compared byte by byte and extended both ways.
Sources: Karp and Rabin 1987 (rolling hash); Schleimer, Wilkerson and Aiken 2003 (winnowing). */
#include "words.h"

typedef struct { i64 text; u32 start, end; i64 source; u32 source_start, source_end; } copy_t;

/* ---- lines and paragraphs ---------------------------------------------------------------------------------------- */

typedef struct { u64 key; i64 text; u32 start, end; } unit_t; /* text -1: forgotten, free for the next holder */
typedef struct {
    unit_t *slot;
    i64 slots, used;
    copy_t *found;
    i64 found_room, count;
    u64 *fresh; /* keys that the last call remembered */
    i64 fresh_room, fresh_count;
} units_t;

API units_t *units_new(void) {
    units_t *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->slots = 1 << 12;
    t->slot = calloc((size_t)t->slots, sizeof *t->slot);
    return t;
}

API void units_free(units_t *t) { free(t->slot), free(t->found), free(t->fresh), free(t); }

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
    if (u->key && u->text >= 0) {
        if (!grow((void **)&t->found, &t->found_room, t->count + 1, sizeof *t->found)) return 0;
        t->found[t->count++] = (copy_t){text, (u32)start, (u32)end, u->text, u->start, u->end};
        return 1;
    }
    if (!grow((void **)&t->fresh, &t->fresh_room, t->fresh_count + 1, sizeof *t->fresh)) return 0;
    t->fresh[t->fresh_count++] = h;
    t->used += !u->key;
    *u = (unit_t){h, text, (u32)start, (u32)end};
    return t->used * 2 < t->slots || widen_units(t);
}

/* Lines (`paragraphs` 0) or runs of lines that are not blank, of at least min_words words, that an earlier text (from
   number `first` on) or place has word for word. Returns how many were found, -1 where memory is out. */
API i64 units_add(units_t *t, const u8 *data, const i64 *offset, i64 n, i64 first, int paragraphs, i64 min_words) {
    t->count = t->fresh_count = 0;
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

/* Forgets what the last call remembered: its texts were dropped, and no unit may lose its last copy to them. */
API void units_forget_last(units_t *t) {
    for (i64 i = 0; i < t->fresh_count; i++) unit_of(t, t->fresh[i])->text = -1;
    t->fresh_count = 0;
}

/* Fills the arrays (each of room units_export(t, 0, ...)) with what is remembered; returns how many units. */
API i64 units_export(const units_t *t, u64 *key, u32 *text, u32 *start, u32 *end) {
    i64 count = 0;
    for (i64 i = 0; i < t->slots; i++) {
        unit_t u = t->slot[i];
        if (!u.key || u.text < 0) continue;
        if (key) key[count] = u.key, text[count] = (u32)u.text, start[count] = u.start, end[count] = u.end;
        count++;
    }
    return count;
}

API int units_import(units_t *t, i64 n, const u64 *key, const u32 *text, const u32 *start, const u32 *end) {
    for (i64 i = 0; i < n; i++) {
        unit_t *u = unit_of(t, key[i]);
        t->used += !u->key;
        *u = (unit_t){key[i], text[i], start[i], end[i]};
        if (t->used * 2 >= t->slots && !widen_units(t)) return 1;
    }
    return 0;
}

/* ---- long substrings ---------------------------------------------------------------------------------------------- */

typedef struct { u64 key; i64 place; i64 next; } mark_t;
typedef struct {
    u8 *data;    /* the texts so far, one after the other */
    i64 *offset; /* [n + 1] */
    i64 n, data_room, offset_room;
    mark_t *mark;
    i64 marks, mark_room;
    i64 *slot; /* the newest mark of each chain, counted from 1 */
    i64 slots;
    copy_t *found;
    i64 found_room, count;
} substrings_t;

API substrings_t *substrings_new(void) {
    substrings_t *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->slots = 1 << 12;
    t->slot = calloc((size_t)t->slots, sizeof *t->slot);
    if (!t->slot || !grow((void **)&t->offset, &t->offset_room, 1, sizeof *t->offset)) return free(t->slot), free(t), (substrings_t *)0;
    t->offset[0] = 0;
    return t;
}

API void substrings_free(substrings_t *t) {
    free(t->data), free(t->offset), free(t->mark), free(t->slot), free(t->found), free(t);
}

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

/* Remembers a mark; 0 where memory is out. */
static int put_mark(substrings_t *t, u64 key, i64 place) {
    if (!grow((void **)&t->mark, &t->mark_room, t->marks + 1, sizeof *t->mark)) return 0;
    i64 *home = t->slot + (key & (u64)(t->slots - 1));
    t->mark[t->marks] = (mark_t){key, place, *home};
    *home = ++t->marks;
    if (t->marks <= t->slots) return 1;
    i64 *wider = calloc((size_t)t->slots * 4, sizeof *wider);
    if (!wider) return 0;
    free(t->slot);
    t->slot = wider, t->slots *= 4;
    for (i64 m = 1; m <= t->marks; m++) {
        home = t->slot + (t->mark[m - 1].key & (u64)(t->slots - 1));
        t->mark[m - 1].next = *home;
        *home = m;
    }
    return 1;
}

typedef struct { i64 start, source, size; } match_t;

/* The longest match through byte p of text d with what is remembered under `key`, not before byte `covered`. */
static match_t longest_match(const substrings_t *t, i64 d, i64 p, i64 covered, u64 key) {
    const u8 *data = t->data;
    i64 length = t->offset[d + 1] - t->offset[d], tries = 0;
    match_t best = {0};
    for (i64 m = t->slot[key & (u64)(t->slots - 1)]; m && tries < 64; m = t->mark[m - 1].next) {
        if (t->mark[m - 1].key != key) continue;
        tries++;
        i64 q = t->mark[m - 1].place, text = text_at(t->offset, t->n, q), low = t->offset[text], high = t->offset[text + 1];
        i64 own = text == d, a = t->offset[d] + p, left = 0, right = 0;
        while (p - left > covered && q - left > low && data[a - left - 1] == data[q - left - 1]) left++;
        while (p + right < length && q + right < high && (!own || q + right < a - left) && data[a + right] == data[q + right]) right++;
        if (left + right > best.size) best = (match_t){p - left, q - left, left + right};
    }
    return best;
}

/* Remembers texts and, with `report`, finds their substrings of at least `size` (>= 16) bytes that stand in an earlier
   text, or earlier in the same without overlapping; none overlaps another. Text numbers count all texts ever added.
   Returns how many were found, -1 where memory is out. */
API i64 substrings_add(substrings_t *t, const u8 *data, const i64 *offset, i64 n, i64 size, int report) {
    i64 width = size / 2 + 1, span = size - width + 1;
    t->count = 0;
    for (i64 e = 0; e < n; e++) {
        i64 d = t->n, base = t->offset[d], length = offset[e + 1] - offset[e], covered = 0, least = -1;
        if (!grow((void **)&t->data, &t->data_room, base + length, 1) ||
            !grow((void **)&t->offset, &t->offset_room, d + 2, sizeof *t->offset))
            return -1;
        memcpy(t->data + base, data + offset[e], (size_t)length);
        t->offset[d + 1] = base + length;
        t->n = d + 1;
        if (length < size) continue;
        u64 *hash = window_hashes(t->data + base, length, width);
        if (!hash) return -1;
        for (i64 i = 0; i + width <= length; i++) {
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
            match_t best = {0};
            if (report && p + width > covered) best = longest_match(t, d, p, covered, hash[p]);
            if (best.size >= size) {
                i64 text = text_at(t->offset, t->n, best.source), from = best.source - t->offset[text];
                if (!grow((void **)&t->found, &t->found_room, t->count + 1, sizeof *t->found)) return free(hash), -1;
                t->found[t->count++] = (copy_t){d, (u32)best.start, (u32)(best.start + best.size), text, (u32)from, (u32)(from + best.size)};
                covered = best.start + best.size;
            }
            if (!put_mark(t, hash[p], base + p)) return free(hash), -1;
        }
        free(hash);
    }
    return t->count;
}

API void substrings_found(const substrings_t *t, copy_t *out) { memcpy(out, t->found, (size_t)t->count * sizeof *out); }

/* Forgets the text that was remembered last. */
API void substrings_forget_last(substrings_t *t) {
    if (!t->n) return;
    t->n--;
    for (; t->marks && t->mark[t->marks - 1].place >= t->offset[t->n]; t->marks--) {
        mark_t m = t->mark[t->marks - 1];
        t->slot[m.key & (u64)(t->slots - 1)] = m.next;
    }
}

/* The texts that are remembered, as windows_of wants them; returns their number. */
API i64 substrings_texts(const substrings_t *t, const u8 **data, const i64 **offset) {
    return *data = t->data, *offset = t->offset, t->n;
}

API i64 substrings_bytes(const substrings_t *t) {
    return t->data_room + t->offset_room * 8 + t->mark_room * (i64)sizeof *t->mark + t->slots * 8;
}

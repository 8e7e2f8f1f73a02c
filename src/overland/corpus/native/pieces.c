/* Texts to token ids through a table of pieces: a text is split as the tokenizer's pattern splits it, every distinct
   piece is encoded once, and the rest is look-up. Pieces are merged here by the tokenizer's own table of merges (the
   lowest rank first, the leftmost of equals: Sennrich, Haddow and Birch 2016); without one, and where a piece is long,
   the tokenizer is asked.

The split is decided here for ASCII. Where a character beyond it takes part, the text from the piece's start to the next
place where every pattern splits (between a letter and one space or newline before a letter) is a fragment, which goes to the tokenizer
whole: no Unicode table of ours can disagree with its. */
#include "words.h"

enum { HOUSE, CL100K, K3 };           /* see encode.py for the patterns */
enum { PIECE, FRAGMENT };

#define LONGEST 256 /* bytes of a piece that is merged here: the search is quadratic */

typedef struct { u64 key; i64 text; u32 size, kind; i64 ids; u32 count; } entry_t;
typedef struct { u64 pair; u32 rank, id; } merge_t;

typedef struct {
    int pattern, digits;
    entry_t *entry;
    u8 *text;              /* the entries' bytes */
    u32 *ids;              /* the entries' ids, set by pieces_learn */
    u32 *order;            /* entry numbers of the batch, in the order of the text */
    u32 *slot;             /* hash table of entry number + 1 */
    u32 *pending;          /* entries that the tokenizer must be asked for */
    merge_t *merge;        /* hash table of pairs of ids, 0 is free */
    u32 byte_id[256];
    i64 entries, pending_count, text_size, id_size, order_size, slots, merges;
    i64 entry_room, text_room, id_room, order_room, pending_room;
} pieces_t;

static inline int is_letter(u8 c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
static inline int is_lower(u8 c) { return c >= 'a' && c <= 'z'; }
static inline int is_upper(u8 c) { return c >= 'A' && c <= 'Z'; }
static inline int is_digit(u8 c) { return c >= '0' && c <= '9'; }
static inline int is_space(u8 c) { return c == ' ' || (c >= 9 && c <= 13); }
static inline int is_sign(u8 c) { return c < 0x80 && !is_letter(c) && !is_digit(c) && !is_space(c); }

#define BEYOND(q) ((q) < n && s[q] >= 0x80)

/* The end of an English contraction at s[p] (an apostrophe), p where there is none, -1 where it cannot be told. */
static i64 contraction(const u8 *s, i64 p, i64 n) {
    if (p + 1 >= n || s[p] != '\'') return p;
    if (BEYOND(p + 1)) return -1;
    u8 c = s[p + 1] | 32, d = p + 2 < n ? s[p + 2] | 32 : 0;
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return p + 2;
    return (c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l') ? p + 3 : p;
}

static i64 house_piece(const u8 *s, i64 p, i64 n) {
    u8 c = s[p];
    i64 q = p + 1;
    if (is_digit(c)) return q;
    if (c == '\n' || (c == '\r' && q < n && s[q] == '\n')) {
        q = c == '\n' ? q : q + 1;
        while (q < n && s[q] == ' ') q++;
        return q;
    }
    if (c == ' ' || c == '\r') {
        while (c == ' ' && q < n && s[q] == ' ') q++;
        return q;
    }
    if (is_space(c)) while (q < n && is_space(s[q]) && s[q] != ' ' && s[q] != '\r' && s[q] != '\n') q++;
    else if (is_letter(c)) while (q < n && is_letter(s[q])) q++;
    else while (q < n && is_sign(s[q])) q++;
    return BEYOND(q) ? -1 : q;
}

/* The later alternatives that cl100k and its descendants share: numbers, signs, white space. */
static i64 shared_piece(const u8 *s, i64 p, i64 n, int digits) {
    i64 q = p;
    if (is_digit(s[p])) {
        while (q < n && q - p < digits && is_digit(s[q])) q++;
        return q - p < digits && BEYOND(q) ? -1 : q;
    }
    if (s[q] == ' ') q++;
    if (BEYOND(q)) return -1;
    if (q < n && is_sign(s[q])) {
        while (q < n && is_sign(s[q])) q++;
        if (BEYOND(q)) return -1;
        while (q < n && (s[q] == '\r' || s[q] == '\n')) q++;
        return q;
    }
    i64 last = -1;
    for (q = p; q < n && is_space(s[q]); q++)
        if (s[q] == '\r' || s[q] == '\n') last = q;
    if (BEYOND(q)) return -1;
    if (last >= 0) return last + 1;
    return q == n || q - p == 1 ? q : q - 1;
}

static i64 cl100k_piece(const u8 *s, i64 p, i64 n, int digits) {
    i64 q = contraction(s, p, n);
    if (q < 0 || q > p) return q;
    q = p + (!is_letter(s[p]) && !is_digit(s[p]) && s[p] != '\r' && s[p] != '\n');
    if (BEYOND(q)) return -1;
    i64 first = q;
    while (q < n && is_letter(s[q])) q++;
    if (q > first) return BEYOND(q) ? -1 : q;
    return shared_piece(s, p, n, digits);
}

static i64 k3_piece(const u8 *s, i64 p, i64 n, int digits) {
    i64 q = p + (!is_letter(s[p]) && !is_digit(s[p]) && s[p] != '\r' && s[p] != '\n');
    if (BEYOND(q)) return -1;
    i64 first = q;
    while (q < n && is_upper(s[q])) q++;
    while (q < n && is_lower(s[q])) q++;
    if (q == first) return shared_piece(s, p, n, digits);
    return BEYOND(q) ? -1 : contraction(s, q, n);
}

static i64 piece_end(const pieces_t *t, const u8 *s, i64 p, i64 n) {
    if (s[p] >= 0x80) return -1;
    if (t->pattern == HOUSE) return house_piece(s, p, n);
    return t->pattern == K3 ? k3_piece(s, p, n, t->digits) : cl100k_piece(s, p, n, t->digits);
}

/* Letters of which every Unicode table is sure: Latin, Greek, Cyrillic, Hebrew, Arabic, Hangul. */
static int sure_letter(u32 c) {
    return (c < 0x80 && is_letter((u8)c)) || (c >= 0xC0 && c < 0x250 && c != 0xD7 && c != 0xF7) ||
           (c >= 0x391 && c <= 0x3C9 && c != 0x3A2) || (c >= 0x410 && c <= 0x44F) || (c >= 0x5D0 && c <= 0x5EA) ||
           (c >= 0x621 && c <= 0x63A) || (c >= 0x641 && c <= 0x64A) || (c >= 0xAC00 && c <= 0xD7A3);
}

static i64 fragment_end(const u8 *s, i64 p, i64 n) {
    i64 q = p;
    int size;
    while (q < n && s[q] < 0x80) q++;
    for (q++; q + 1 < n; q++) {
        if (s[q] != ' ' && s[q] != '\n') continue;
        i64 back = q - 1;
        while (back > p && q - back < 4 && (s[back] & 0xC0) == 0x80) back--;
        u32 before = s[back] < 0x80 ? s[back] : code_point(s + back, s + q, &size);
        u32 after = s[q + 1] < 0x80 ? s[q + 1] : code_point(s + q + 1, s + n, &size);
        if (sure_letter(before) && sure_letter(after)) return q;
    }
    return n;
}

static inline u64 key_of(const u8 *s, i64 n, int kind) {
    u64 h = 0x9E3779B97F4A7C15ull ^ (u64)kind << 60 ^ (u64)n;
    while (n >= 8) {
        u64 x;
        memcpy(&x, s, 8);
        h = (h ^ x) * 0x9FB21C651E98DF25ull;
        h ^= h >> 32;
        s += 8, n -= 8;
    }
    u64 x = 0;
    for (i64 i = 0; i < n; i++) x = x << 8 | s[i];
    h = (h ^ x) * 0x9FB21C651E98DF25ull;
    h ^= h >> 32;
    return h * 0xD6E8FEB86659FD93ull;
}

API pieces_t *pieces_new(int pattern, int digits) {
    pieces_t *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->pattern = pattern, t->digits = digits;
    t->slots = 1 << 16;
    t->slot = calloc((size_t)t->slots, sizeof *t->slot);
    return t;
}

API void pieces_free(pieces_t *t) {
    free(t->entry), free(t->text), free(t->ids), free(t->order), free(t->slot), free(t->pending);
    free(t->merge), free(t);
}

static inline merge_t *merge_of(const pieces_t *t, u32 a, u32 b) {
    u64 pair = ((u64)a << 32 | b) + 1, mask = (u64)t->merges - 1, at = mix64(pair) & mask;
    while (t->merge[at].pair && t->merge[at].pair != pair) at = (at + 1) & mask;
    return t->merge + at;
}

/* The tokenizer's merges in the order of rank: left, right and merged ids [count]; byte_id [256]. 1: out of memory. */
API int pieces_merges(pieces_t *t, const u32 *byte_id, const u32 *left, const u32 *right, const u32 *merged, i64 count) {
    t->merges = 1024;
    while (t->merges < count * 2) t->merges *= 2;
    t->merge = calloc((size_t)t->merges, sizeof *t->merge);
    if (!t->merge) return 1;
    memcpy(t->byte_id, byte_id, sizeof t->byte_id);
    for (i64 i = 0; i < count; i++) {
        merge_t *m = merge_of(t, left[i], right[i]);
        if (!m->pair) *m = (merge_t){((u64)left[i] << 32 | right[i]) + 1, (u32)i, merged[i]};
    }
    return 0;
}

static u32 merge_piece(const pieces_t *t, const u8 *s, i64 n, u32 *id) {
    u32 rank[LONGEST], merged[LONGEST];
    for (i64 i = 0; i < n; i++) id[i] = t->byte_id[s[i]];
    for (i64 i = 0; i + 1 < n; i++) {
        const merge_t *m = merge_of(t, id[i], id[i + 1]);
        rank[i] = m->pair ? m->rank : 0xFFFFFFFFu, merged[i] = m->id;
    }
    while (n > 1) {
        i64 best = 0;
        for (i64 i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == 0xFFFFFFFFu) break;
        id[best] = merged[best];
        n--;
        memmove(id + best + 1, id + best + 2, (size_t)(n - best - 1) * sizeof *id);
        if (best + 1 < n) {
            memmove(rank + best + 1, rank + best + 2, (size_t)(n - best - 2) * sizeof *rank);
            memmove(merged + best + 1, merged + best + 2, (size_t)(n - best - 2) * sizeof *merged);
        }
        for (i64 i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const merge_t *m = merge_of(t, id[i], id[i + 1]);
            rank[i] = m->pair ? m->rank : 0xFFFFFFFFu, merged[i] = m->id;
        }
    }
    return (u32)n;
}

static int widen(pieces_t *t) {
    u32 *slot = calloc((size_t)t->slots * 2, sizeof *slot);
    if (!slot) return 0;
    free(t->slot);
    t->slot = slot;
    t->slots *= 2;
    for (i64 i = 0; i < t->entries; i++) {
        u64 at = t->entry[i].key >> 20 & (u64)(t->slots - 1);
        while (slot[at]) at = (at + 1) & (u64)(t->slots - 1);
        slot[at] = (u32)i + 1;
    }
    return 1;
}

static i64 entry_of(pieces_t *t, const u8 *s, i64 n, int kind) {
    u64 key = key_of(s, n, kind), mask = (u64)t->slots - 1, at = key >> 20 & mask;
    for (; t->slot[at]; at = (at + 1) & mask) {
        const entry_t *e = t->entry + t->slot[at] - 1;
        if (e->key == key && e->size == (u32)n && e->kind == (u32)kind && !memcmp(t->text + e->text, s, (size_t)n))
            return t->slot[at] - 1;
    }
    if (!grow((void **)&t->entry, &t->entry_room, t->entries + 1, sizeof *t->entry) ||
        !grow((void **)&t->text, &t->text_room, t->text_size + n, 1))
        return -1;
    memcpy(t->text + t->text_size, s, (size_t)n);
    t->entry[t->entries] = (entry_t){key, t->text_size, (u32)n, (u32)kind, 0, 0};
    t->text_size += n;
    t->slot[at] = (u32)++t->entries;
    i64 number = t->entries - 1;
    if (kind == PIECE && t->merge && n <= LONGEST) {
        if (!grow((void **)&t->ids, &t->id_room, t->id_size + n, sizeof *t->ids)) return -1;
        t->entry[number].ids = t->id_size;
        t->entry[number].count = merge_piece(t, s, n, t->ids + t->id_size);
        t->id_size += t->entry[number].count;
    } else {
        if (!grow((void **)&t->pending, &t->pending_room, t->pending_count + 1, sizeof *t->pending)) return -1;
        t->pending[t->pending_count++] = (u32)number;
    }
    return t->entries * 2 > t->slots && !widen(t) ? -1 : number;
}

/* Splits a batch. ends [n]: how many entries of t->order lie before each text's end. Returns the number of entries that
   the tokenizer must be asked for, -1 where memory is out. Above `limit` bytes the table begins anew. */
API i64 pieces_split(pieces_t *t, const u8 *data, const i64 *offset, i64 n, i64 limit, i64 *ends) {
    if (t->text_size + t->id_size * 4 + t->entries * (i64)sizeof *t->entry > limit) {
        t->entries = t->text_size = t->id_size = t->pending_count = 0;
        memset(t->slot, 0, (size_t)t->slots * sizeof *t->slot);
    }
    t->order_size = 0;
    for (i64 d = 0; d < n; d++) {
        const u8 *s = data + offset[d];
        i64 size = offset[d + 1] - offset[d], p = 0;
        if (!grow((void **)&t->order, &t->order_room, t->order_size + size, sizeof *t->order)) return -1;
        if (t->pattern == HOUSE && size > 1 && s[0] == ' ') { /* one space and one word are one piece */
            i64 q = 1;
            while (q < size && is_lower(s[q])) q++;
            if (q == size) p = size;
        }
        if (p) {
            i64 e = entry_of(t, s, size, PIECE);
            if (e < 0) return -1;
            t->order[t->order_size++] = (u32)e;
        }
        while (p < size) {
            i64 end = piece_end(t, s, p, size);
            int kind = end < 0 ? FRAGMENT : PIECE;
            if (end < 0) end = fragment_end(s, p, size);
            i64 e = entry_of(t, s + p, end - p, kind);
            if (e < 0) return -1;
            t->order[t->order_size++] = (u32)e;
            p = end;
        }
        ends[d] = t->order_size;
    }
    return t->pending_count;
}

/* What the tokenizer must be asked for: kinds [pending] and offsets [pending + 1]; with `out`, the bytes as well. */
API void pieces_unknown(const pieces_t *t, i64 *offset, u8 *kind, u8 *out) {
    i64 at = 0;
    for (i64 i = 0; i < t->pending_count; i++) {
        const entry_t *e = t->entry + t->pending[i];
        offset[i] = at;
        kind[i] = (u8)e->kind;
        if (out) memcpy(out + at, t->text + e->text, e->size);
        at += e->size;
    }
    offset[t->pending_count] = at;
}

/* The tokenizer's answers in the same order: counts [pending], ids flat. Returns 1 where memory is out. */
API int pieces_learn(pieces_t *t, const u32 *counts, const u32 *ids, i64 total) {
    if (!grow((void **)&t->ids, &t->id_room, t->id_size + total, sizeof *t->ids)) return 1;
    memcpy(t->ids + t->id_size, ids, (size_t)total * sizeof *ids);
    for (i64 i = 0, at = t->id_size; i < t->pending_count; at += counts[i++])
        t->entry[t->pending[i]].ids = at, t->entry[t->pending[i]].count = counts[i];
    t->id_size += total;
    t->pending_count = 0;
    return 0;
}

/* lengths [n]: ids of each text of the batch; returns their sum. */
API i64 pieces_count(const pieces_t *t, const i64 *ends, i64 n, i64 *lengths) {
    i64 total = 0, at = 0;
    for (i64 d = 0; d < n; d++) {
        i64 sum = 0;
        for (; at < ends[d]; at++) sum += t->entry[t->order[at]].count;
        total += lengths[d] = sum;
    }
    return total;
}

/* The ids of the batch; with `separator` >= 0 that id stands before every text. */
API void pieces_ids(const pieces_t *t, const i64 *ends, i64 n, i64 separator, u32 *out) {
    i64 at = 0;
    for (i64 d = 0; d < n; d++) {
        if (separator >= 0) *out++ = (u32)separator;
        for (; at < ends[d]; at++) {
            const entry_t *e = t->entry + t->order[at];
            const u32 *ids = t->ids + e->ids;
            for (u32 i = 0; i < e->count; i++) *out++ = ids[i];
        }
    }
}

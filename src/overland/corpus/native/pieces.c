/* Texts to token ids: a text is split as the tokenizer's pattern splits it (split.c), every distinct piece is merged
   once (merges.c), and the rest is look-up in a table that grows to a limit and then begins anew. */
#include "merges.h"
#include "split.h"

#define INLINE 15     /* bytes of a piece that lie in its slot */
#define LONGEST 255   /* bytes of a piece that is remembered */
#define FEW 3         /* ids that lie in the slot */

/* Bytes: up to INLINE zero-padded in `low` and `high`, their number on top of `high`; of a longer piece its hash, and
   LONG, size and place of its bytes in `text`. high is 0 where the slot is free. Ids: up to FEW here, else id[0] is
   their place in `ids`. */
typedef struct { u64 low, high; u32 id[FEW], count; } slot_t;

#define LONG (0xFFull << 56)

typedef struct {
    split_t split;
    merges_t merges;
    slot_t *slot;
    u8 *text;
    u32 *ids;
    u8 *whole_text;       /* entries of the vocabulary that are looked up whole, before any merge */
    i64 *whole_place;
    u32 *whole_id;
    i64 slots, entries, text_size, text_room, id_size, id_room, limit, whole;
} pieces_t;

API void pieces_free(pieces_t *t) {
    merges_clear(&t->merges);
    free(t->slot), free(t->text), free(t->ids), free(t->whole_text), free(t->whole_place), free(t->whole_id), free(t);
}

/* class_of [0x110000]; the rest as merges_set has it. `limit`: bytes of the table. Null: out of memory. */
API pieces_t *pieces_new(int pattern, int digits, const u8 *class_of, const u32 *byte_id, const u32 *left,
                         const u32 *right, const u32 *merged, i64 count, i64 limit) {
    pieces_t *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->split.pattern = pattern, t->split.digits = digits, t->limit = limit;
    memcpy(t->split.class_of, class_of, sizeof t->split.class_of);
    t->slots = 1 << 12;
    t->slot = calloc((size_t)t->slots, sizeof *t->slot);
    if (t->slot && merges_set(&t->merges, byte_id, left, right, merged, count)) return t;
    pieces_free(t);
    return 0;
}

/* The first 16 bytes of a piece of n < 16, zero-padded; `room` bytes may be read. */
static inline void load(const u8 *s, i64 n, i64 room, u64 *low, u64 *high) {
    u64 two[2] = {0, 0};
    if (room >= 16) {
        memcpy(two, s, 16);
        if (n <= 8) two[0] &= n == 8 ? ~0ull : (1ull << 8 * n) - 1, two[1] = 0;
        else two[1] &= (1ull << 8 * (n - 8)) - 1;
    } else {
        memcpy(two, s, (size_t)n);
    }
    *low = two[0], *high = two[1];
}

static inline u64 hash_long(const u8 *s, i64 n) {
    u64 h = 0x9E3779B97F4A7C15ull ^ (u64)n, x;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&x, s, 8);
        h = (h ^ x) * 0x9FB21C651E98DF25ull;
        h ^= h >> 32;
    }
    x = 0;
    memcpy(&x, s, (size_t)n);
    return mix64(h ^ x);
}

static inline u64 place_of(const pieces_t *t, u64 low, u64 high) {
    u64 h = (low ^ high * 0xD6E8FEB86659FD93ull) * 0x9FB21C651E98DF25ull;
    return (h ^ h >> 29) * 0xD6E8FEB86659FD93ull >> 32 & (u64)(t->slots - 1);
}

static u64 home_of(const pieces_t *t, const slot_t *e) {
    return (e->high & LONG) == LONG ? place_of(t, e->low, 0) : place_of(t, e->low, e->high);
}

static int widen(pieces_t *t) {
    i64 before = t->slots;
    slot_t *old = t->slot, *wide = calloc((size_t)before * 2, sizeof *wide);
    if (!wide) return 0;
    t->slot = wide, t->slots = before * 2;
    for (i64 i = 0; i < before; i++) {
        if (!old[i].high) continue;
        u64 at = home_of(t, old + i);
        while (wide[at].high) at = (at + 1) & (u64)(t->slots - 1);
        wide[at] = old[i];
    }
    free(old);
    return 1;
}

static slot_t *remember(pieces_t *t, u64 at, u64 low, u64 high, const u8 *s, i64 n, const u32 *id, i64 count) {
    slot_t *e = t->slot + at;
    if (n > INLINE) {
        if (!grow((void **)&t->text, &t->text_room, t->text_size + n, 1)) return 0;
        memcpy(t->text + t->text_size, s, (size_t)n);
        high = LONG | (u64)n << 48 | (u64)t->text_size;
        t->text_size += n;
    }
    *e = (slot_t){low, high, {0}, (u32)count};
    if (count <= FEW) {
        memcpy(e->id, id, (size_t)count * sizeof *id);
    } else {
        if (!grow((void **)&t->ids, &t->id_room, t->id_size + count, sizeof *t->ids)) return 0;
        memcpy(t->ids + t->id_size, id, (size_t)count * sizeof *id);
        e->id[0] = (u32)t->id_size;
        t->id_size += count;
    }
    t->entries++;
    return e;
}

/* The slot of a piece of up to LONGEST bytes, or the free one where it belongs. */
static inline u64 look_up(const pieces_t *t, const u8 *s, i64 n, i64 room, u64 *low, u64 *high) {
    u64 mask = (u64)t->slots - 1, at;
    if (n <= INLINE) {
        load(s, n, room, low, high);
        *high |= (u64)n << 56;
        for (at = place_of(t, *low, *high); t->slot[at].high; at = (at + 1) & mask)
            if (t->slot[at].low == *low && t->slot[at].high == *high) break;
        return at;
    }
    *low = hash_long(s, n), *high = LONG | (u64)n << 48;
    for (at = place_of(t, *low, 0); t->slot[at].high; at = (at + 1) & mask)
        if (t->slot[at].low == *low && t->slot[at].high >> 48 == *high >> 48 &&
            !memcmp(t->text + (t->slot[at].high & 0xFFFFFFFFFFFFull), s, (size_t)n))
            break;
    return at;
}

static int know_whole(pieces_t *t) {
    u64 low, high;
    for (i64 i = 0; i < t->whole; i++) {
        const u8 *s = t->whole_text + t->whole_place[i];
        i64 n = t->whole_place[i + 1] - t->whole_place[i];
        if (n > LONGEST) continue;
        u64 at = look_up(t, s, n, n, &low, &high);
        if (!t->slot[at].high && !remember(t, at, low, high, s, n, t->whole_id + i, 1)) return 0;
        if (t->entries * 2 > t->slots && !widen(t)) return 0;
    }
    return 1;
}

/* Entries of the vocabulary that a piece is held against before it is merged: their bytes and where each starts
   [count + 1]. Returns 1 where memory is out. */
API int pieces_whole(pieces_t *t, const u8 *text, const i64 *place, const u32 *id, i64 count) {
    t->whole_text = malloc((size_t)place[count] + 1);
    t->whole_place = malloc((size_t)(count + 1) * sizeof *place);
    t->whole_id = malloc((size_t)count * sizeof *id + 1);
    if (!t->whole_text || !t->whole_place || !t->whole_id) return 1;
    memcpy(t->whole_text, text, (size_t)place[count]);
    memcpy(t->whole_place, place, (size_t)(count + 1) * sizeof *place);
    memcpy(t->whole_id, id, (size_t)count * sizeof *id);
    t->whole = count;
    return !know_whole(t);
}

static int make_room(pieces_t *t) {
    if (t->entries * 2 <= t->slots) return 1;
    i64 taken = t->slots * 2 * (i64)sizeof *t->slot + t->text_size + t->id_size * (i64)sizeof *t->ids;
    if (taken <= t->limit || t->entries < 2 * t->whole + 1024) return widen(t);
    memset(t->slot, 0, (size_t)t->slots * sizeof *t->slot);
    t->entries = t->text_size = t->id_size = 0;
    return know_whole(t);
}

/* Writes the ids of texts, with `separator` >= 0 that id before every text, to out [bytes + texts + FEW], and how many
   each text has to lengths [texts]. Returns the sum; -1: out of memory; -2 - d: text d is not UTF-8. */
API i64 pieces_encode(pieces_t *t, const u8 *data, const i64 *offset, i64 texts, i64 separator, u32 *out,
                      i64 *lengths) {
    u32 *to = out;
    for (i64 d = 0; d < texts; d++) {
        const u8 *s = data + offset[d];
        i64 n = offset[d + 1] - offset[d], room = offset[texts] - offset[d], p = 0;
        if (!is_utf8(s, n)) return -2 - d;
        u32 *began = to;
        if (separator >= 0) *to++ = (u32)separator;
        while (p < n) {
            i64 end = 0;
            if (!p && t->split.pattern == HOUSE && s[0] == ' ' && n > 1) { /* \A [a-z]+\z */
                for (end = 1; end < n && s[end] >= 'a' && s[end] <= 'z';) end++;
                if (end < n) end = 0;
            }
            if (!end) end = piece_end(&t->split, s, p, n);
            i64 size = end - p;
            if (size > LONGEST) {
                i64 count = merge_piece(&t->merges, s + p, size, to);
                if (count < 0) return -1;
                to += count;
                p = end;
                continue;
            }
            u64 low, high, at = look_up(t, s + p, size, room - p, &low, &high);
            const slot_t *e = t->slot + at;
            if (!e->high) {
                i64 count = merge_piece(&t->merges, s + p, size, to);
                if (count < 0 || !remember(t, at, low, high, s + p, size, to, count) || !make_room(t)) return -1;
                to += count;
            } else if (e->count <= FEW) {
                memcpy(to, e->id, sizeof e->id);
                to += e->count;
            } else {
                memcpy(to, t->ids + e->id[0], e->count * sizeof *to);
                to += e->count;
            }
            p = end;
        }
        lengths[d] = to - began;
    }
    return to - out;
}

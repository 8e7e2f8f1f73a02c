#include "split.h"

/* The code point at s, which is UTF-8; *size is the bytes it takes. */
static inline u32 decode(const u8 *s, int *size) {
    if (s[0] < 0xE0) return *size = 2, (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    if (s[0] < 0xF0) return *size = 3, (s[0] & 0xFu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    return *size = 4, (s[0] & 7u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}

static inline u8 class_at(const split_t *t, const u8 *s, int *size) {
    if (s[0] < 0x80) return *size = 1, t->class_of[s[0]];
    return t->class_of[decode(s, size)];
}

/* The end of the run of characters from p on that have one of `any` and none of `not`. */
static inline i64 run(const split_t *t, const u8 *s, i64 p, i64 n, u8 any, u8 not) {
    int size;
    while (p < n) {
        u8 is = class_at(t, s + p, &size);
        if (!(is & any) || is & not) break;
        p += size;
    }
    return p;
}

static inline int is_newline(u8 c) { return c == '\r' || c == '\n'; }

/* [^\r\n\p{L}\p{N}]? */
static inline int can_lead(u8 c, u8 is) { return !(is & (LETTER_BIT | NUMBER)) && !is_newline(c); }

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)? at s[p]; p where there is none. The long s folds to s as well. */
static i64 contraction(const u8 *s, i64 p, i64 n) {
    if (p + 1 >= n || s[p] != '\'') return p;
    u8 c = s[p + 1] | 32, d = p + 2 < n ? s[p + 2] : 0;
    if (s[p + 1] == 0xC5 && d == 0xBF) return p + 3;
    if (s[p + 1] >= 0x80) return p;
    d |= 32;
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return p + 2;
    return (c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l') ? p + 3 : p;
}

/* \p{N}|\r?\n *| {2,}|[^\S\r\n ]+|\s|[\p{L}\p{M}]+|[^\s\p{L}\p{M}\p{N}]+ */
static i64 house_piece(const split_t *t, const u8 *s, i64 p, i64 n) {
    int size;
    u8 c = s[p], is = class_at(t, s + p, &size);
    i64 q = p + size;
    if (is & NUMBER) return q;
    if (c == '\n' || (c == '\r' && q < n && s[q] == '\n')) {
        q += c == '\r';
        while (q < n && s[q] == ' ') q++;
        return q;
    }
    if (c == ' ' || c == '\r') {
        while (c == ' ' && q < n && s[q] == ' ') q++;
        return q;
    }
    if (is & SPACE) {
        while (q < n && s[q] != ' ' && !is_newline(s[q]) && class_at(t, s + q, &size) & SPACE) q += size;
        return q;
    }
    return is & (LETTER_BIT | MARK) ? run(t, s, q, n, LETTER_BIT | MARK, 0) : run(t, s, q, n, SIGN, MARK);
}

/* \p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static i64 shared_piece(const split_t *t, const u8 *s, i64 p, i64 n) {
    int size;
    i64 q = p, last = -1, newline = -1;
    if (class_at(t, s + p, &size) & NUMBER) {
        for (int i = 0; i < t->digits && q < n && class_at(t, s + q, &size) & NUMBER; i++) q += size;
        return q;
    }
    i64 first = p + (s[p] == ' ');
    q = run(t, s, first, n, SIGN, 0);
    if (q > first) {
        while (q < n && is_newline(s[q])) q++;
        return q;
    }
    for (q = p; q < n && class_at(t, s + q, &size) & SPACE; q += size) {
        last = q;
        if (is_newline(s[q])) newline = q;
    }
    if (newline >= 0) return newline + 1;
    return q == n || last == p ? q : last;
}

static i64 cl100k_piece(const split_t *t, const u8 *s, i64 p, i64 n) {
    i64 q = contraction(s, p, n);
    if (q > p) return q;
    int size;
    u8 is = class_at(t, s + p, &size);
    i64 first = p + (can_lead(s[p], is) ? size : 0);
    q = run(t, s, first, n, LETTER_BIT, 0);
    return q > first ? q : shared_piece(t, s, p, n);
}

/* UPPER*LOWER+ from q on; -1 where it does not match. The first run is given back to its last caseless letter where no
   lower one follows. *upper is where the first run ends. */
static inline i64 word(const split_t *t, const u8 *s, i64 q, i64 n, i64 *upper) {
    i64 caseless = -1;
    int size;
    u8 is = 0;
    while (q < n && (is = class_at(t, s + q, &size)) & UPPER) {
        q += size;
        if (is & LOWER) caseless = q;
    }
    *upper = q;
    return q < n && is & LOWER ? run(t, s, q, n, LOWER, 0) : caseless;
}

static i64 k3_piece(const split_t *t, const u8 *s, i64 p, i64 n) {
    int size;
    u8 is = class_at(t, s + p, &size);
    if (is & HAN) return run(t, s, p + size, n, HAN, 0);
    i64 led = can_lead(s[p], is) ? p + size : p, upper_led, upper = p;
    i64 q = word(t, s, led, n, &upper_led);
    if (q < 0 && led > p && is & (UPPER | LOWER)) q = word(t, s, p, n, &upper); /* a mark leads or belongs to the word */
    if (q < 0 && upper_led > led) q = upper_led;
    if (q < 0 && upper > p) q = upper;
    return q < 0 ? shared_piece(t, s, p, n) : contraction(s, q, n);
}

i64 piece_end(const split_t *t, const u8 *s, i64 p, i64 n) {
    if (t->pattern == K3) return k3_piece(t, s, p, n);
    return t->pattern == CL100K ? cl100k_piece(t, s, p, n) : house_piece(t, s, p, n);
}

int is_utf8(const u8 *s, i64 n) {
    i64 p = 0;
    while (p < n) {
        u64 eight;
        if (p + 8 <= n && (memcpy(&eight, s + p, 8), !(eight & 0x8080808080808080ull))) {
            p += 8;
            continue;
        }
        u8 c = s[p];
        int more = c < 0x80 ? 0 : c < 0xC2 ? -1 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : c < 0xF5 ? 3 : -1;
        if (more < 0 || n - p <= more) return 0;
        for (int i = 1; i <= more; i++)
            if ((s[p + i] & 0xC0) != 0x80) return 0;
        u8 d = more ? s[p + 1] : 0;
        if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F))
            return 0;
        p += more + 1;
    }
    return 1;
}

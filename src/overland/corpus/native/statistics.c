/* What the quality rules ask of a text, counted in one pass over its lines and one over its words.

Words are what lies between white space (ASCII, and U+00A0, U+0085, U+1680, U+2000-200A, U+2028, U+2029, U+202F, U+205F,
U+3000), lower-cased in ASCII; characters are code points; a broken byte is one. quality_reference.py says the same in
Python. All values are integers: shares are taken in Python, so that no rounding differs between machines. */
#include "words.h"

enum {
    BYTES, CHARS, SPACES, WORDS, WORD_CHARS, MAX_WORD, ALPHA_WORDS, STOP_WORDS, STOP_KINDS, HASHES, ELLIPSES,
    LINES, BULLET_LINES, ELLIPSIS_LINES, PUNCTUATED_LINES, SHORT_LINES, MAX_LINE, LINE_CHARS, ALL_LINES,
    DUPLICATE_LINES, DUPLICATE_LINE_CHARS, PARAGRAPHS, DUPLICATE_PARAGRAPHS, DUPLICATE_PARAGRAPH_CHARS, PARAGRAPH_CHARS,
    DIGITS, ALNUM, UPPER, LETTERS, PARENTHESES, BRACES, ANGLES, URLS, SENTENCES, LOREM, SCRIPT_LINES, POLICY_LINES,
    C4_LINES, C4_SENTENCES, UPPER_LINES, COMMENT_LINES, COMMANDS, DOLLARS,
    TOP2, TOP3, TOP4, DUP5, DUP6, DUP7, DUP8, DUP9, DUP10,
    COUNT
};

/* What is asked for, as a set of the above. */
#define OF(x) (1ull << (x))
#define OF_GRAMS (OF(TOP2) | OF(TOP3) | OF(TOP4) | OF(DUP5) | OF(DUP6) | OF(DUP7) | OF(DUP8) | OF(DUP9) | OF(DUP10))
#define OF_NOTICES (OF(SCRIPT_LINES) | OF(POLICY_LINES) | OF(C4_LINES) | OF(C4_SENTENCES))
#define OF_PARAGRAPHS (OF(PARAGRAPHS) | OF(DUPLICATE_PARAGRAPHS) | OF(DUPLICATE_PARAGRAPH_CHARS) | OF(PARAGRAPH_CHARS))
#define OF_REPEATED_LINES (OF(DUPLICATE_LINES) | OF(DUPLICATE_LINE_CHARS) | OF_PARAGRAPHS)
/* What needs the words, or the lines without the white space around them. */
#define OF_WORDS (OF(WORDS) | OF(WORD_CHARS) | OF(MAX_WORD) | OF(ALPHA_WORDS) | OF(STOP_WORDS) | OF(STOP_KINDS) | OF_GRAMS | \
    OF(LINES) | OF(BULLET_LINES) | OF(ELLIPSIS_LINES) | OF(PUNCTUATED_LINES) | OF(SHORT_LINES) | OF(LINE_CHARS) | \
    OF(SENTENCES) | OF(UPPER_LINES) | OF(COMMENT_LINES) | OF_NOTICES | OF_REPEATED_LINES)

typedef struct { u64 key; u32 count, stamp; } cell_t;
typedef struct { cell_t *cells; u64 mask; i64 room; u32 stamp; } table_t;

static int table_for(table_t *t, i64 items) {
    i64 size = 64;
    while (size < items * 2) size *= 2;
    if (size > t->room) {
        free(t->cells);
        t->cells = calloc((size_t)size, sizeof *t->cells);
        t->room = t->cells ? size : 0;
        t->stamp = 0;
    }
    t->mask = (u64)size - 1;
    return t->cells != 0;
}

static inline cell_t *cell_of(table_t *t, u64 key) {
    u64 at = (key ^ key >> 29) & t->mask;
    for (;; at = (at + 1) & t->mask) {
        cell_t *c = t->cells + at;
        if (c->stamp != t->stamp) {
            c->stamp = t->stamp;
            c->key = key;
            c->count = 0;
            return c;
        }
        if (c->key == key) return c;
    }
}

static inline u64 hash_bytes(const u8 *s, i64 n, u64 h) {
    while (n >= 8) {
        u64 x;
        memcpy(&x, s, 8);
        h = (h ^ x) * 0x9FB21C651E98DF25ull;
        h ^= h >> 32;
        s += 8, n -= 8;
    }
    u64 x = 0;
    memcpy(&x, s, (size_t)n);
    h = (h ^ x ^ (u64)n << 56) * 0x9FB21C651E98DF25ull;
    return mix64(h);
}

/* What a byte is to the scan of a word: MAYBE may begin white space beyond ASCII. */
enum { SPACE_BYTE = 1, MAYBE = 2, LETTER_BYTE = 4, HIGH = 8, STOP = 16 };
#define TEN(c, v) [c] = v, [c + 1] = v, [c + 2] = v, [c + 3] = v, [c + 4] = v, [c + 5] = v, [c + 6] = v, [c + 7] = v, \
                  [c + 8] = v, [c + 9] = v
static const u8 BYTE[256] = {
    [9] = SPACE_BYTE, [10] = SPACE_BYTE, [11] = SPACE_BYTE, [12] = SPACE_BYTE, [13] = SPACE_BYTE,
    [0x1C] = SPACE_BYTE, [0x1D] = SPACE_BYTE, [0x1E] = SPACE_BYTE, [0x1F] = SPACE_BYTE, [' '] = SPACE_BYTE,
    ['.'] = STOP, ['!'] = STOP, ['?'] = STOP,
    TEN('a', LETTER_BYTE), TEN('k', LETTER_BYTE), ['u'] = LETTER_BYTE, ['v'] = LETTER_BYTE, ['w'] = LETTER_BYTE,
    ['x'] = LETTER_BYTE, ['y'] = LETTER_BYTE, ['z'] = LETTER_BYTE,
    TEN('A', LETTER_BYTE), TEN('K', LETTER_BYTE), ['U'] = LETTER_BYTE, ['V'] = LETTER_BYTE, ['W'] = LETTER_BYTE,
    ['X'] = LETTER_BYTE, ['Y'] = LETTER_BYTE, ['Z'] = LETTER_BYTE,
    TEN(0x80, HIGH), TEN(0x8A, HIGH), TEN(0x94, HIGH), TEN(0x9E, HIGH), TEN(0xA8, HIGH), TEN(0xB2, HIGH),
    [0xBC] = HIGH, [0xBD] = HIGH, [0xBE] = HIGH, [0xBF] = HIGH, [0xC0] = HIGH, [0xC1] = HIGH, [0xC2] = HIGH | MAYBE,
    TEN(0xC3, HIGH), TEN(0xCD, HIGH), TEN(0xD7, HIGH), [0xE1] = HIGH | MAYBE, [0xE2] = HIGH | MAYBE,
    [0xE3] = HIGH | MAYBE, TEN(0xE4, HIGH), TEN(0xEE, HIGH), [0xF8] = HIGH, [0xF9] = HIGH, [0xFA] = HIGH, [0xFB] = HIGH, [0xFC] = HIGH,
    [0xFD] = HIGH, [0xFE] = HIGH, [0xFF] = HIGH,
};
#undef TEN

static inline u8 lower(u8 c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

/* Eight bytes with the ASCII capitals lowered. */
static inline u64 lower8(u64 x) {
    u64 low = x & 0x7F7F7F7F7F7F7F7Full, from_a = low + 0x3F3F3F3F3F3F3F3Full, past_z = low + 0x2525252525252525ull;
    return x | (~x & (from_a ^ past_z) & 0x8080808080808080ull) >> 2;
}

static inline u64 load8(const u8 *s, i64 n, i64 room) { /* the first n <= 8 bytes; `room` may be read */
    u64 x = 0;
    if (room >= 8) {
        memcpy(&x, s, 8);
        return n == 8 ? x : x & ((1ull << 8 * n) - 1);
    }
    memcpy(&x, s, (size_t)n);
    return x;
}

/* Hash of a word without regard to ASCII case; *head is its first eight bytes in lower case. */
static inline u64 hash_word(const u8 *s, i64 n, i64 room, u64 *head) {
    u64 h = 0x9E3779B97F4A7C15ull ^ (u64)n, x = *head = lower8(load8(s, n < 8 ? n : 8, room));
    for (;;) {
        h = (h ^ x) * 0x9FB21C651E98DF25ull;
        if (n <= 8) return mix64(h);
        h ^= h >> 32;
        s += 8, n -= 8, room -= 8;
        x = lower8(load8(s, n < 8 ? n : 8, room));
    }
}

static int is_stop_word(u64 head, i64 n, int *which) {
#define WORD2(a, b) ((u64)a | (u64)b << 8)
#define WORD4(a, b, c, d) (WORD2(a, b) | (u64)c << 16 | (u64)d << 24)
    static const u64 stops[] = {WORD4('t', 'h', 'e', 0), WORD2('b', 'e'), WORD2('t', 'o'), WORD2('o', 'f'),
                                WORD4('a', 'n', 'd', 0), WORD4('t', 'h', 'a', 't'), WORD4('h', 'a', 'v', 'e'),
                                WORD4('w', 'i', 't', 'h')};
    if (n < 2 || n > 4) return 0;
    for (int i = 0; i < 8; i++)
        if (head == stops[i]) return *which = i, 1;
    return 0;
}

/* Whether lower-case `needle` is in s, ignoring ASCII case. */
static int holds(const u8 *s, i64 n, const char *needle) {
    i64 m = (i64)strlen(needle);
    for (i64 i = 0; i + m <= n; i++) {
        if (lower(s[i]) != (u8)needle[0]) continue;
        i64 j = 1;
        while (j < m && lower(s[i + j]) == (u8)needle[j]) j++;
        if (j == m) return 1;
    }
    return 0;
}

/* The same for a whole document: it is looked for only near two rare letters of it, `at` from its start. */
static int document_holds(const u8 *s, i64 n, const char *needle, int at) {
    u8 a = (u8)needle[at], b = (u8)needle[at + 1];
    i64 m = (i64)strlen(needle);
    for (i64 block = 0; block + 1 < n; block += 256) {
        i64 size = n - 1 - block < 256 ? n - 1 - block : 256;
        const u8 *p = s + block;
        u8 any = 0;
        for (i64 i = 0; i < size; i++) any |= (u8)(((p[i] | 32) == a) & ((p[i + 1] | 32) == b));
        if (!any) continue;
        i64 from = block - at > 0 ? block - at : 0, to = block + size + m < n ? block + size + m : n;
        if (holds(s + from, to - from, needle)) return 1;
    }
    return 0;
}

static int ends_with(const u8 *s, i64 n, const char *tail) {
    i64 m = (i64)strlen(tail);
    return n >= m && !memcmp(s + n - m, tail, (size_t)m);
}

static int is_bullet(const u8 *s, i64 n) {
    static const char *marks[] = {"-", "*", "+", "\xE2\x80\xA2", "\xE2\x80\xA3", "\xE2\x97\x8F", "\xE2\x97\x8B", "\xE2\x96\xA0"};
    i64 at = 0;
    for (size_t i = 0; i < sizeof marks / sizeof *marks && !at; i++)
        if (n >= (i64)strlen(marks[i]) && !memcmp(s, marks[i], strlen(marks[i]))) at = (i64)strlen(marks[i]);
    if (!at) {
        while (at < n && s[at] >= '0' && s[at] <= '9') at++;
        if (!at || at == n || (s[at] != '.' && s[at] != ')')) return 0;
        at++;
    }
    return at < n && space_at(s + at, s + n) > 0;
}

static int is_comment(const u8 *s, i64 n) {
    static const char *marks[] = {"#", "//", "/*", "*", "--", "%", ";"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (n >= (i64)strlen(marks[i]) && !memcmp(s, marks[i], strlen(marks[i]))) return 1;
    return 0;
}

static int is_policy(const u8 *s, i64 n) {
    static const char *phrases[] = {"terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (holds(s, n, phrases[i])) return 1;
    return 0;
}

static int ends_sentence(const u8 *s, i64 n) {
    static const char *tails[] = {"\xE2\x80\xA6", "\xE2\x80\x9D", "\xE2\x80\x99", "\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F", "\xEF\xBC\x8E"};
    if (n && strchr(".!?\"'", s[n - 1]) && s[n - 1]) return 1;
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (ends_with(s, n, tails[i])) return 1;
    return 0;
}

/* Ends of sentences: a run of . ! ? with white space, a closing quote or bracket, or nothing behind it. */
static i64 sentences_in(const u8 *s, i64 n) {
    i64 count = 0;
    for (i64 i = 0; i < n; i++) {
        if (!(BYTE[s[i]] & STOP)) continue;
        while (i + 1 < n && (s[i + 1] == '.' || s[i + 1] == '!' || s[i + 1] == '?')) i++;
        count += i + 1 == n || s[i + 1] == '"' || s[i + 1] == '\'' || s[i + 1] == ')' || space_at(s + i + 1, s + n) > 0;
    }
    return count;
}

enum { HAS_SCRIPT = 1, HAS_POLICY = 2, HAS_STOP = 4 }; /* what a document has that its lines need be asked for */

static void line_counts(const u8 *s, i64 n, i64 chars, i64 words, int has, u64 wanted, i64 *out) {
    i64 upper = 0, letters = 0;
    out[LINES]++;
    out[LINE_CHARS] += chars;
    if (wanted & OF(BULLET_LINES)) out[BULLET_LINES] += is_bullet(s, n);
    if (wanted & OF(ELLIPSIS_LINES)) out[ELLIPSIS_LINES] += ends_with(s, n, "...") || ends_with(s, n, "\xE2\x80\xA6");
    if (wanted & OF(PUNCTUATED_LINES)) out[PUNCTUATED_LINES] += ends_sentence(s, n);
    out[SHORT_LINES] += chars <= 30;
    if (wanted & OF(COMMENT_LINES)) out[COMMENT_LINES] += is_comment(s, n);
    for (i64 i = wanted & OF(UPPER_LINES) ? 0 : n; i < n; i += 240) { /* in bytes, which the compiler takes many at a time */
        u8 few_upper = 0, few_letters = 0;
        i64 to = i + 240 < n ? i + 240 : n;
        for (i64 j = i; j < to; j++) {
            few_upper += (u8)(s[j] - 'A') < 26;
            few_letters += (u8)((s[j] | 32) - 'a') < 26;
        }
        upper += few_upper, letters += few_letters;
    }
    out[UPPER_LINES] += upper * 2 > letters;
    int script = has & HAS_SCRIPT && holds(s, n, "javascript"), policy = has & HAS_POLICY && is_policy(s, n);
    out[SCRIPT_LINES] += script;
    out[POLICY_LINES] += policy;
    i64 sentences = has & HAS_STOP ? sentences_in(s, n) : 0;
    out[SENTENCES] += sentences;
    if (words >= 3 && s[n - 1] && strchr(".!?\"'", s[n - 1]) && !ends_with(s, n, "...") && !script && !policy) {
        out[C4_LINES]++;
        out[C4_SENTENCES] += sentences ? sentences : 1;
    }
}

/* Places of three bytes, which may overlap. */
static i64 threes(const u8 *s, i64 n, const char *three) {
    i64 count = 0;
    for (i64 i = 0; i + 2 < n; i += 240) {
        u8 few = 0;
        i64 to = i + 240 < n - 2 ? i + 240 : n - 2;
        for (i64 j = i; j < to; j++)
            few += (u8)((s[j] == (u8)three[0]) & (s[j + 1] == (u8)three[1]) & (s[j + 2] == (u8)three[2]));
        count += few;
    }
    return count;
}

static void byte_counts(const u8 *s, i64 n, u64 wanted, i64 *out) {
    u32 lane[4][256] = {{0}}, seen[256];
    i64 high = 0, at = 0;
    for (; at + 4 <= n; at += 4) lane[0][s[at]]++, lane[1][s[at + 1]]++, lane[2][s[at + 2]]++, lane[3][s[at + 3]]++;
    for (; at < n; at++) lane[0][s[at]]++;
    for (int c = 0; c < 256; c++) seen[c] = lane[0][c] + lane[1][c] + lane[2][c] + lane[3][c];
    out[BYTES] = n;
    for (int c = 0; c < 256; c++) {
        if ((c & 0xC0) != 0x80) out[CHARS] += seen[c];
        if (c >= 0x80) high += seen[c];
        if (BYTE[c] & SPACE_BYTE) out[SPACES] += seen[c];
        if (c >= '0' && c <= '9') out[DIGITS] += seen[c], out[ALNUM] += seen[c];
        if (c >= 'A' && c <= 'Z') out[UPPER] += seen[c];
        if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) out[LETTERS] += seen[c], out[ALNUM] += seen[c];
    }
    out[HASHES] = seen['#'];
    out[PARENTHESES] = seen['('] + seen[')'];
    out[BRACES] = seen['{'] + seen['}'];
    out[ANGLES] = seen['<'] + seen['>'];
    out[DOLLARS] = seen['$'];
    for (const u8 *p = s, *end = s + n; wanted & OF(COMMANDS) && seen['\\'] && (p = memchr(p, '\\', (size_t)(end - p))); p++)
        out[COMMANDS] += p + 1 < end && (p[1] | 32) >= 'a' && (p[1] | 32) <= 'z';
    if (wanted & OF(URLS)) out[URLS] = threes(s, n, "://");
    if (wanted & OF(ELLIPSES) && threes(s, n, "..."))
        for (const u8 *p = s, *end = s + n; (p = memmem(p, (size_t)(end - p), "...", 3)); p += 3) out[ELLIPSES]++;
    for (i64 i = 0; high && i < n;) {
        if (s[i] < 0x80) { i++; continue; }
        int size;
        u32 point = code_point(s + i, s + n, &size);
        if (size > 1 && kind_of(point) != SEPARATOR) out[LETTERS]++, out[ALNUM]++;
        out[ELLIPSES] += point == 0x2026;
        out[SPACES] += BYTE[s[i]] & MAYBE && space_at(s + i, s + n);
        i += size;
    }
}

/* Characters of the most frequent run of `size` words (of equals, the longest), all its places together. */
static i64 top_ngram(table_t *t, const u64 *prefix, i64 n, int size, u64 power, const i64 *chars) {
    u32 most = 1;
    i64 best = 0;
    t->stamp++;
    for (i64 i = 0; i + size <= n; i++) {
        cell_t *c = cell_of(t, mix64(prefix[i + size] - prefix[i] * power));
        u32 count = ++c->count;
        i64 length = chars[i + size] - chars[i];
        if (count > most) most = count, best = length;
        else if (count == most && count > 1 && length > best) best = length;
    }
    return best * most * (most > 1);
}

/* Characters in runs of `size` words that were seen before; a repeated run is passed over as a whole. */
static i64 repeated_ngrams(table_t *t, const u64 *prefix, i64 n, int size, u64 power, const i64 *chars) {
    i64 repeated = 0;
    t->stamp++;
    for (i64 i = 0; i + size <= n;) {
        cell_t *c = cell_of(t, mix64(prefix[i + size] - prefix[i] * power));
        if (c->count) repeated += chars[i + size] - chars[i], i += size;
        else c->count = 1, i++;
    }
    return repeated;
}

/* The longest line in characters. */
static i64 longest_line(const u8 *s, const u8 *end, int ascii) {
    i64 most = 0;
    for (const u8 *line = s, *stop; line <= end; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        if (stop - line <= most) continue; /* it has no more characters than bytes */
        i64 chars = ascii ? stop - line : chars_in(line, stop - line);
        if (chars > most) most = chars;
    }
    return most;
}

/* out [n, COUNT]; wanted [n]: which statistics are asked for, as OF has them; others may stay 0. 1 where memory is
   out. */
API int overland_statistics(const u8 *data, const i64 *offset, i64 n, const u64 *wanted_of, i64 *out_rows) {
    i64 longest = 0;
    const u8 *data_end = data + offset[n];
    for (i64 d = 0; d < n; d++)
        if (offset[d + 1] - offset[d] > longest) longest = offset[d + 1] - offset[d];
    i64 room = longest / 2 + 2;
    u64 *prefix = malloc((size_t)room * sizeof *prefix);
    i64 *chars = malloc((size_t)room * sizeof *chars);
    table_t lines = {0}, paragraphs = {0}, runs = {0};
    int failed = !prefix || !chars;
    for (i64 d = 0; d < n && !failed; d++) {
        const u8 *s = data + offset[d], *end = s + (offset[d + 1] - offset[d]);
        i64 *out = out_rows + d * COUNT;
        memset(out, 0, COUNT * sizeof *out);
        u64 wanted = wanted_of[d];
        byte_counts(s, end - s, wanted, out);
        int ascii = out[BYTES] == out[CHARS], has = 0;
        if (wanted & OF(LOREM)) out[LOREM] = memmem(s, (size_t)(end - s), "orem ipsum", 10) != 0;
        if (wanted & OF(MAX_LINE)) out[MAX_LINE] = longest_line(s, end, ascii);
        if (!(wanted & (OF_WORDS | OF(ALL_LINES)))) continue;
        i64 breaks = 1;
        for (const u8 *p = s; (p = memchr(p, '\n', (size_t)(end - p))); p++) breaks++;
        out[ALL_LINES] = breaks;
        if (!(wanted & OF_WORDS)) continue;
        if (wanted & OF_NOTICES && document_holds(s, end - s, "javascript", 0)) has |= HAS_SCRIPT;
        if (wanted & OF_NOTICES && (document_holds(s, end - s, "cookie", 3) || document_holds(s, end - s, "privacy policy", 5) ||
            document_holds(s, end - s, "terms of use", 3)))
            has |= HAS_POLICY;
        if (wanted & (OF(SENTENCES) | OF(C4_SENTENCES)) &&
            (memchr(s, '.', (size_t)(end - s)) || memchr(s, '!', (size_t)(end - s)) || memchr(s, '?', (size_t)(end - s))))
            has |= HAS_STOP;
        if (!table_for(&lines, breaks) || !table_for(&paragraphs, breaks)) { failed = 1; break; }
        lines.stamp++, paragraphs.stamp++;
        i64 words = 0, stops_seen = 0, paragraph_chars = 0;
        u64 paragraph = 0;
        prefix[0] = 0, chars[0] = 0;
        for (const u8 *line = s; line <= end;) {
            const u8 *stop = memchr(line, '\n', (size_t)(end - line));
            if (!stop) stop = end;
            i64 raw = ascii ? stop - line : chars_in(line, stop - line);
            const u8 *first = 0, *last = 0, *p = line;
            i64 before = words, tail = 0;
            while (p < stop) {
                int space;
                while (p < stop && (space = space_at(p, stop))) p += space, tail++;
                if (p == stop) break;
                if (!first) first = p;
                const u8 *w = p;
                u8 is = 0;
                for (; p < stop; p++) {
                    u8 kind = BYTE[*p];
                    if (kind & (SPACE_BYTE | MAYBE) && space_at(p, stop)) break;
                    is |= kind;
                }
                i64 length = is & HIGH ? chars_in(w, p - w) : p - w;
                int alpha = (is & (LETTER_BYTE | HIGH)) != 0, which;
                if (is & HIGH && !(is & LETTER_BYTE) && p - w < 512) { /* signs beyond ASCII are no letters */
                    alpha = 0;
                    for (const u8 *q = w; q < p && !alpha;) {
                        int size = 1;
                        if (*q >= 0x80) {
                            u32 point = code_point(q, p, &size);
                            alpha = size > 1 && kind_of(point) != SEPARATOR;
                        }
                        q += size;
                    }
                }
                last = p;
                tail = 0;
                u64 head, h = hash_word(w, p - w, data_end - w, &head);
                if (is_stop_word(head, p - w, &which)) out[STOP_WORDS]++, stops_seen |= 1 << which;
                out[WORD_CHARS] += length;
                out[ALPHA_WORDS] += alpha;
                if (length > out[MAX_WORD]) out[MAX_WORD] = length;
                prefix[words + 1] = prefix[words] * 0xD6E8FEB86659FD93ull + h;
                chars[words + 1] = chars[words] + length;
                words++;
            }
            if (first) {
                i64 size = last - first, count = raw;
                for (const u8 *q = line; q < first; q += space_at(q, stop)) count--;
                count -= tail;
                line_counts(first, size, count, words - before, has, wanted, out);
                if (wanted & OF_REPEATED_LINES) {
                    u64 key = hash_bytes(first, size, 1);
                    cell_t *c = cell_of(&lines, key);
                    if (c->count++) out[DUPLICATE_LINES]++, out[DUPLICATE_LINE_CHARS] += count;
                    paragraph = (paragraph ^ key) * 0x9FB21C651E98DF25ull + 1;
                }
                paragraph_chars += count;
            }
            if (paragraph_chars && (!first || stop == end)) {
                out[PARAGRAPHS]++;
                out[PARAGRAPH_CHARS] += paragraph_chars;
                cell_t *c = cell_of(&paragraphs, mix64(paragraph));
                if (c->count++) out[DUPLICATE_PARAGRAPHS]++, out[DUPLICATE_PARAGRAPH_CHARS] += paragraph_chars;
                paragraph = 0, paragraph_chars = 0;
            }
            line = stop + 1;
        }
        out[WORDS] = words;
        for (; stops_seen; stops_seen >>= 1) out[STOP_KINDS] += stops_seen & 1;
        if (!(wanted & OF_GRAMS)) continue;
        if (!table_for(&runs, words)) { failed = 1; break; }
        u64 power = 0xD6E8FEB86659FD93ull;
        for (int size = 2; size <= 10; size++) {
            power *= 0xD6E8FEB86659FD93ull;
            if (!(wanted >> (TOP2 + size - 2) & 1)) continue;
            out[TOP2 + size - 2] = size <= 4 ? top_ngram(&runs, prefix, words, size, power, chars)
                                             : repeated_ngrams(&runs, prefix, words, size, power, chars);
        }
    }
    free(prefix), free(chars), free(lines.cells), free(paragraphs.cells), free(runs.cells);
    return failed;
}

API i64 overland_statistic_count(void) { return COUNT; }

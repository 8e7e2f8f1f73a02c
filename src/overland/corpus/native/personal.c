/* Places of a UTF-8 text that may hold personal data: one pass that looks at words, numbers and `@`, and decides little.

What is reported is cheap to tell and rare in text that holds none; `personal_kinds.py` decides over each place. The
same rules stand as regular expressions in `personal_scan.py`, and a test holds the two together. */
#include "words.h"

enum { EMAIL = 1, NUMBER, IPV4, IPV6, IBAN, TOKEN, SECRET, PEM, MIXED };
typedef struct { u32 text, start, end, kind; } place_t;

#define D 1   /* digit */
#define L 2   /* letter */
#define U 4   /* underscore */
#define W (D | L | U)

static u8 CLASS[256];
static u8 LOCAL[256];     /* of an address before the @ */

__attribute__((constructor)) static void fill(void) {
    for (int c = '0'; c <= '9'; c++) CLASS[c] = D, LOCAL[c] = 1;
    for (int c = 'a'; c <= 'z'; c++) CLASS[c] = CLASS[c - 32] = L, LOCAL[c] = LOCAL[c - 32] = 1;
    CLASS['_'] = U;
    for (const char *c = "._%+-"; *c; c++) LOCAL[(u8)*c] = 1;
}

static inline int is(const u8 *s, i64 at, i64 n, int mask) { return at >= 0 && at < n && (CLASS[s[at]] & mask); }
static inline int hex(u8 c) { return (CLASS[c] & D) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* An address around the @ at `at`: its end, or 0. */
static i64 address(const u8 *s, i64 n, i64 at, i64 *start) {
    i64 a = at, b = at + 1;
    while (a > 0 && at - a < 65 && LOCAL[s[a - 1]]) a--;
    if (a > 0 && (LOCAL[s[a - 1]] || s[a - 1] == '/')) return 0;
    while (a < at && !(CLASS[s[a]] & (D | L))) a++;
    if (a == at) return 0;
    while (b < n && ((CLASS[s[b]] & (D | L)) || s[b] == '.' || s[b] == '-') && b - at < 256) b++;
    while (b > at + 1 && !(CLASS[s[b - 1]] & (D | L))) b--;
    i64 dot = b - 1;
    while (dot > at + 1 && s[dot] != '.') {
        if (!(CLASS[s[dot]] & L)) return 0;
        dot--;
    }
    if (dot <= at + 1 || b - dot < 3 || b - dot > 25 || !(CLASS[s[at + 1]] & (D | L))) return 0;
    for (i64 i = at + 1; i < b; i++)
        if (s[i] == '.' && (s[i + 1] == '.' || s[i + 1] == '-' || s[i - 1] == '-')) return 0;
    if (b < n && (s[b] == '(' || s[b] == '-' || s[b] == '_')) return 0;
    *start = a;
    return b;
}

/* Groups of digits from `a` with one to three separators between; the end, and what is in it. */
static i64 number(const u8 *s, i64 n, i64 a, int *digits, int *groups, int *dots, int *widest) {
    i64 b = a;
    *digits = *groups = *dots = *widest = 0;
    for (;;) {
        i64 from = b;
        while (b < n && (CLASS[s[b]] & D)) b++;
        *digits += (int)(b - from);
        *groups += 1;
        if (b - from > *widest) *widest = (int)(b - from);
        if (*digits > 24) return b;
        i64 next = b;
        while (next < n && next - b < 3 && (s[next] == ' ' || s[next] == '.' || s[next] == '-' || s[next] == '(' ||
               s[next] == ')' || s[next] == '/')) next++;
        if (next == b || !is(s, next, n, D)) return b;
        *dots += next == b + 1 && s[b] == '.';
        b = next;
    }
}

static int starts(const u8 *s, i64 a, i64 n, const char *word) {
    i64 m = (i64)strlen(word);
    return n - a >= m && !memcmp(s + a, word, (size_t)m);
}

/* Whether a token that begins at `a` begins as the well-known kinds of keys do. */
static int key_like(const u8 *s, i64 a, i64 b, i64 n) {
    i64 m = b - a;
    switch (s[a]) {
    case 'A': return (m == 20 && starts(s, a, n, "AKIA")) || (m == 20 && starts(s, a, n, "ASIA")) || starts(s, a, n, "AIza");
    case 'g': return (m >= 40 && starts(s, a, n, "gh") && s[a + 3] == '_') || (m >= 60 && starts(s, a, n, "github_pat_")) || starts(s, a, n, "glpat-");
    case 'x': return m == 4 && starts(s, a, n, "xox") && b < n && s[b] == '-';
    case 's': return (m == 2 && starts(s, a, n, "sk-")) || (m >= 28 && starts(s, a, n, "sk_live_"));
    case 'r': return m >= 28 && starts(s, a, n, "rk_live_");
    case 'h': return m >= 33 && starts(s, a, n, "hf_");
    case 'e': return m >= 13 && starts(s, a, n, "eyJ");
    case 'n': return m >= 36 && starts(s, a, n, "npm_");
    case 'p': return starts(s, a, n, "pypi-AgE");
    }
    return 0;
}

static inline int secret_byte(u8 c) { return (CLASS[c] & W) || c == '+' || c == '/' || c == '=' || c == '-'; }

/* A quoted value of 16 or more such bytes with a digit and a letter, after `=` or `:`; its end, or 0. */
static i64 quoted(const u8 *s, i64 n, i64 a) {
    u8 quote = s[a - 1];
    i64 before = a - 2;
    if (before >= 0 && CLASS[s[before]] & L) before--;      /* b"..." */
    while (before >= 0 && s[before] == ' ' && a - before < 6) before--;
    if (before < 0 || (s[before] != '=' && s[before] != ':')) return 0;
    i64 b = a;
    int seen = 0;
    while (b < n && b - a < 257 && secret_byte(s[b])) seen |= CLASS[s[b++]];
    return b < n && s[b] == quote && b - a >= 16 && b - a <= 256 && (seen & D) && (seen & L) ? b : 0;
}

static int shaped(const u8 *s, const char *shape) {
    for (; *shape; s++, shape++)
        if (*shape == 'd' ? !(CLASS[*s] & D) : *s < 'A' || *s > 'Z') return 0;
    return 1;
}

/* National ids of letters and digits: Spain's, Britain's, Italy's. */
static int national(const u8 *s, i64 length) {
    if (length == 16) return shaped(s, "LLLLLLddLddLdddL");
    return shaped(s, "ddddddddL") || shaped(s, "LdddddddL") || shaped(s, "LLddddddL");
}

#define REPORT(A, B, K) do { \
    if (count < room) out[count] = (place_t){(u32)t, (u32)((A) - base), (u32)((B) - base), (K)}; \
    count++; } while (0)

/* Places of texts [offsets[t], offsets[t + 1]) of data; code[t]: whether it is source code, where numbers are rarely
   anybody's. Returns how many there are, of which the first `room` are written. */
API i64 overland_personal(const u8 *s, const i64 *offsets, i64 texts, const u8 *code, place_t *out, i64 room) {
    i64 count = 0;
    for (i64 t = 0; t < texts; t++) {
        i64 base = offsets[t], n = offsets[t + 1], i = base;
        while (i < n) {
            u8 c = s[i];
            if (!CLASS[c]) {
                if (c == '@') {
                    i64 a, b = address(s + base, n - base, i - base, &a);
                    if (b) {
                        REPORT(base + a, base + b, EMAIL);
                        i = base + b;
                        continue;
                    }
                }
                i++;
                continue;
            }
            i64 a = i;
            int seen = 0;
            do seen |= CLASS[s[i++]]; while (i < n && CLASS[s[i]]);
            i64 length = i - a;
            if (!(seen & D)) {      /* most words of most texts end here */
                if (length >= 13 || length == 4 || length == 2) {
                    if (key_like(s, a, i, n)) REPORT(a, i, TOKEN);
                } else if (length == 5 && s[a] == 'B' && a >= base + 5 && starts(s, a - 5, n, "-----BEGIN ")) {
                    REPORT(a - 5, i, PEM);
                } else if (s[a] == 'g' && starts(s, a, n, "glpat-")) {
                    REPORT(a, i, TOKEN);
                } else if (s[a] == 'p' && starts(s, a, n, "pypi-AgE")) {
                    REPORT(a, i, TOKEN);
                }
                if (a > base && (s[a - 1] == '"' || s[a - 1] == '\'') && i < n && secret_byte(s[i])) {
                    i64 b = quoted(s + base, n - base, a - base);
                    if (b) {
                        REPORT(a, base + b, SECRET);
                        i = base + b;
                    }
                }
                continue;
            }
            if (a > base && (s[a - 1] == '"' || s[a - 1] == '\'')) {
                i64 b = quoted(s + base, n - base, a - base);
                if (b) {
                    REPORT(a, base + b, SECRET);
                    i = base + b;
                    continue;
                }
            }
            if (length <= 4 && i + 1 < n && s[i] == ':' && (hex(s[i + 1]) || s[i + 1] == ':')) {
                i64 e = a;
                int colons = 0, pairs = 0;
                while (e < n && e - a < 40 && (hex(s[e]) || s[e] == ':')) {
                    colons += s[e] == ':';
                    pairs += s[e] == ':' && e > a && s[e - 1] == ':';
                    e++;
                }
                if (e > i && colons >= 2 && (pairs == 1 || colons == 7) && !(a > base && s[a - 1] == ':') && !is(s, e, n, W)) {
                    REPORT(a, e, IPV6);
                    i = e;
                    continue;
                }
            }
            if (seen == D && length <= 19) {
                int digits, groups, dots, widest;
                u8 before = a > base ? s[a - 1] : ' ';
                i64 b = number(s, n, a, &digits, &groups, &dots, &widest);
                if (before == '.' && a > base + 1 && (CLASS[s[a - 2]] & D)) {
                    i = b;          /* the decimals of a number */
                    continue;
                }
                int joined = is(s, b, n, W);       /* digits that a word goes on from */
                if (groups == 4 && dots == 3 && widest <= 3) {
                    if (!joined && before != '.' && before != '-') REPORT(a, b, IPV4);
                } else if (digits >= 7 && digits <= 24 && before != '.' && !(joined && s[b] != 'x' && s[b] != 'e')) {
                    int date = groups >= 3 && length == 4 && (s[a] == '1' || s[a] == '2') && (s[a + 4] == '-' || s[a + 4] == '/');
                    int card = digits >= 12 && digits <= 19 && (groups == 1 || (groups <= 5 && widest <= 6)) && !dots;
                    int social = groups == 3 && b - a == 11 && s[a + 3] == '-' && s[a + 6] == '-';
                    if (code[t] ? card || social : !date) REPORT(a, b, NUMBER);
                }
                i = b;
                continue;
            }
            if (!(seen & U)) {
                if ((CLASS[s[a]] & CLASS[s[a + 1]] & L) && length >= 4 && (CLASS[s[a + 2]] & CLASS[s[a + 3]] & D)) {
                    if (length >= 15 && length <= 34) {
                        REPORT(a, i, IBAN);
                        continue;
                    }
                    if (length == 4 && i < n && s[i] == ' ' && is(s, i + 1, n, D | L) && is(s, i + 4, n, D | L)) {
                        REPORT(a, i, IBAN);
                        continue;
                    }
                }
                if (!code[t] && (length == 9 || length == 16) && national(s + a, length)) {
                    REPORT(a, i, MIXED);
                    continue;
                }
            }
            if ((CLASS[s[a]] & L) && length >= 13 && key_like(s, a, i, n)) REPORT(a, i, TOKEN);
        }
    }
    return count;
}

/* What each position of a source file lies in: 0 code, 1 a comment or string, 2 a string that may hold code (an f-string,
   a template). `positions` ascend. family: 0 Python, 1 C and its kin, 2 shell and its kin. A file that this reader
   misunderstands is at worst taken for code. */
API void overland_literals(const u8 *s, i64 n, const i64 *positions, i64 count, int family, u8 *out) {
    i64 i = 0, at = 0;
    while (at < count) {
        i64 start = i, end;
        int kind = 0;
        if (i >= n) end = n;
        else if ((family != 1 && s[i] == '#') || (family == 1 && s[i] == '/' && i + 1 < n && s[i + 1] == '/')) {
            const u8 *line = memchr(s + i, '\n', (size_t)(n - i));
            end = line ? line - s : n;
            kind = 1;
        } else if (family == 1 && s[i] == '/' && i + 1 < n && s[i + 1] == '*') {
            end = i + 2;
            while (end < n && !(s[end] == '/' && s[end - 1] == '*' && end > i + 2)) end++;
            end += end < n;
            kind = 1;
        } else if (s[i] == '"' || s[i] == '\'' || (family && s[i] == '`')) {
            u8 quote = s[i];
            int triple = !family && i + 2 < n && s[i + 1] == quote && s[i + 2] == quote;
            int f = family ? quote == '`' || family == 2 : 0;
            for (i64 p = i - 1; !family && p >= 0 && i - p < 3 && (CLASS[s[p]] & L); p--) f |= (s[p] | 32) == 'f' || (s[p] | 32) == 't';
            end = i + (triple ? 3 : 1);
            while (end < n) {
                if (s[end] == '\\') {
                    end += 2;
                    continue;
                }
                if (s[end] == quote && (!triple || (end + 2 < n && s[end + 1] == quote && s[end + 2] == quote))) break;
                if (s[end] == '\n' && !triple && quote != '`' && family < 2) break;      /* not closed: no string */
                end++;
            }
            if (end > n) end = n;
            kind = end < n && s[end] == '\n' && !triple && quote != '`' && family < 2 ? 0 : 1 + f;
            if (end < n && s[end] != '\n') end += triple ? 3 : 1;
        } else {
            end = i + 1;
            while (end < n && s[end] != '"' && s[end] != '\'' && s[end] != '#' && s[end] != '/' && s[end] != '`') end++;
        }
        if (end > n) end = n;
        if (i >= n) {
            while (at < count) out[at++] = 0;
            return;
        }
        while (at < count && positions[at] < end) out[at] = positions[at] < start ? 0 : (u8)kind, at++;
        i = end;
    }
}

/* Repeated passages inside documents: winnowed word 5-grams find candidates, an aligned extension decides.

Texts come in the order of survival. A passage is repeated where an earlier text (or an earlier place of the same) has
nearly the same words in the same order: runs of equal words, joined over a few substituted, inserted or deleted ones.
Short runs count where several of one source lie together and add up (a passage whose sentences changed places).
What was cut is never the source of another cut, so that no passage loses its last copy.

Sources: Schleimer, Wilkerson and Aiken 2003 (winnowing); Altschul et al. 1990 (seed, extend, drop off). */
#include "spill.h"

#define OWNERS 4        /* the first places of a 5-gram that are tried */
#define GAP 8           /* most words that an edit may replace, insert or delete */
#define SEED_RUN 5      /* equal words in a row that a place must have before edits are looked across */
#define FRAGMENT 7      /* equal words of a run that may count together with others of the same source */
#define NEIGHBOURS 12   /* most words between two such runs */
#define TOUCH 4         /* most words between runs of different sources that count together */
#define GAP_COST 2

typedef struct { u32 start, end; i64 source; u32 source_start, source_end, matched, words; } span_t;
/* Words [a0, a1) of the text repeat words [b0, b1) of the index; source is its text, OWN the same one. */
typedef struct { i64 a0, a1, b0, b1, matched, source, stands; } run_t;
#define OWN (-1)

typedef struct {
    i64 n, word_count, slot_count, used, span_count;
    int window;
    u32 *word;      /* [word_count] hashes of all remembered texts */
    u32 *start;     /* [word_count] byte of the text at which a word begins */
    u32 *end;       /* [word_count] */
    u64 *first;     /* [n + 1] the first word of a text */
    u64 *slots;     /* 5-gram table: hash << 32 | word number + 1; linear probing, 0 is free */
    span_t *spans;
    run_t *runs;
    u64 *own;       /* the same table for the text at hand, which may yet be dropped */
    u32 *picked;    /* the winnowed 5-grams of the text at hand */
    i64 word_room, start_room, end_room, first_room, span_room, run_room, own_room, picked_room, run_count;
    spill_t spill;
} spans_t;

API spans_t *spans_new(int window) {
    spans_t *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->window = window;
    t->slot_count = 1 << 12;
    t->slots = calloc((size_t)t->slot_count, sizeof *t->slots);
    t->first = calloc(1, sizeof *t->first);
    t->first_room = 1;
    return t;
}

/* The index's arrays and their bytes; the others serve one text at a time. */
#define EACH_ARRAY(DO) \
    DO(word, t->word_room * 4) DO(start, t->start_room * 4) DO(end, t->end_room * 4) DO(first, t->first_room * 8) \
    DO(slots, t->slot_count * 8)

API void spans_free(spans_t *t) {
#define DO(name, bytes) spill_free(&t->spill, t->name);
    EACH_ARRAY(DO)
#undef DO
    spill_close(&t->spill);
    free(t->spans), free(t->runs), free(t->own), free(t->picked), free(t);
}

/* Moves the index into files in `folder`, or, where it is there, gives its pages back. 1: the disk is full. */
API int spans_spill(spans_t *t, const char *folder) {
    if (!t->spill.folder) {
        t->spill.folder = strdup(folder);
        if (!t->spill.folder) return 1;
#define DO(name, bytes) if (!spill_move(&t->spill, (void **)&t->name, (size_t)(bytes))) return 1;
        EACH_ARRAY(DO)
#undef DO
    }
    spill_release(&t->spill);
    return 0;
}

API i64 spans_bytes(const spans_t *t) {
    i64 total = 0;
#define DO(name, bytes) total += bytes;
    EACH_ARRAY(DO)
#undef DO
    return total;
}

static inline u64 home(const spans_t *t, u32 hash) { return (u64)hash * 0x9E3779B97F4A7C15ull >> 20 & (u64)(t->slot_count - 1); }

static void put(spans_t *t, u64 slot) {
    u64 mask = (u64)t->slot_count - 1, at = home(t, (u32)(slot >> 32));
    int owners = 0;
    for (; t->slots[at]; at = (at + 1) & mask)
        if (t->slots[at] >> 32 == slot >> 32 && ++owners == OWNERS) return;
    t->slots[at] = slot;
    t->used++;
}

static int room_for(spans_t *t, i64 more) {
    i64 wanted = t->slot_count;
    while (wanted * 5 < (t->used + more) * 8) wanted *= 2;
    if (wanted == t->slot_count) return 1;
    u64 *old = t->slots;
    i64 count = t->slot_count;
    t->slots = spill_zeroed(&t->spill, (size_t)wanted * sizeof *t->slots);
    if (!t->slots) return t->slots = old, 0;
    t->slot_count = wanted;
    t->used = 0;
    /* Owners of one 5-gram stand in a chain in the order of arrival; starting behind a free slot keeps that order. */
    i64 begin = 0;
    while (begin < count && old[begin]) begin++;
    for (i64 i = 0; i < count; i++) {
        u64 slot = old[(begin + i) & (count - 1)];
        if (slot) put(t, slot);
    }
    spill_free(&t->spill, old);
    return 1;
}

/* Positions of the winnowed 5-grams: the least of every `window` in a row (the rightmost of equals). */
static i64 winnow(const u32 *gram, i64 n, int window, u32 *out) {
    i64 count = 0, least = -1;
    if (n <= 0) return 0;
    if (n < window) window = (int)n;
    for (i64 i = 0; i + window <= n; i++) {
        i64 last = i + window - 1;
        if (least < i) {
            least = i;
            for (i64 j = i + 1; j <= last; j++)
                if (gram[j] <= gram[least]) least = j;
        } else if (gram[last] <= gram[least]) {
            least = last;
        } else {
            continue;
        }
        out[count++] = (u32)least;
    }
    return count;
}

typedef struct { i64 a, b, matched; } reach_t;

/* How far a and b go on alike from (0, 0) in steps of `step` (1 or -1), over edits of at most GAP words. */
static reach_t extend(const u32 *a, i64 a_left, const u32 *b, i64 b_left, int step, i64 credit) {
    reach_t best = {0, 0, 0};
    i64 i = 0, j = 0, matched = 0, score = 0, best_score = 0;
#define A(x) a[(x) * step]
#define B(x) b[(x) * step]
    for (;;) {
        while (i < a_left && j < b_left && A(i) == B(j)) i++, j++, matched++, score++;
        if (score >= best_score) best_score = score, best = (reach_t){i, j, matched};
        i64 bound = (credit + score) / GAP_COST;
        if (bound > GAP) bound = GAP;
        i64 di = 0, dj = 0;
        /* The nearest place where three words agree again; an even exchange first. Two suffice at a text's end. */
        for (i64 g = 1; g <= bound && !di && !dj; g++) {
            for (i64 k = 0; k <= 2 * g; k++) {
                i64 x = k == 0 ? g : k & 1 ? g : g - k / 2, y = k == 0 ? g : k & 1 ? g - (k + 1) / 2 : g;
                i64 p = i + x, q = j + y;
                if (p + 2 > a_left || q + 2 > b_left || A(p) != B(q) || A(p + 1) != B(q + 1)) continue;
                if (p + 3 <= a_left && q + 3 <= b_left && A(p + 2) != B(q + 2)) continue;
                di = x, dj = y;
                break;
            }
        }
        if (!di && !dj) break;
        i += di, j += dj;
        score -= GAP_COST * (di > dj ? di : dj);
    }
#undef A
#undef B
    return best;
}

static i64 text_of(const spans_t *t, u64 word) {
    i64 low = 0, high = t->n;
    while (high - low > 1) {
        i64 middle = (low + high) / 2;
        if (t->first[middle] <= word) low = middle;
        else high = middle;
    }
    return low;
}

static int by_source(const void *x, const void *y) {
    const run_t *a = x, *b = y;
    if (a->source != b->source) return a->source < b->source ? -1 : 1;
    if (a->a0 != b->a0) return a->a0 < b->a0 ? -1 : 1;
    return a->a1 > b->a1 ? -1 : a->a1 < b->a1;
}

static int by_place(const void *x, const void *y) {
    const run_t *a = x, *b = y;
    if (a->a0 != b->a0) return a->a0 < b->a0 ? -1 : 1;
    if (a->a1 != b->a1) return a->a1 > b->a1 ? -1 : 1;
    return a->source < b->source ? -1 : a->source > b->source;
}

static i64 words_in(const spans_t *t, i64 source) { return (i64)(t->first[source + 1] - t->first[source]); }

/* Marks the runs of [first, last) that stand by adding up to `need` words, gaps of at most `gap` words between them. */
static void chain(run_t *run, i64 first, i64 last, i64 gap, i64 need) {
    for (i64 i = first, j; i < last; i = j) {
        i64 sum = run[i].a1 - run[i].a0, end = run[i].a1;
        for (j = i + 1; j < last && run[j].a0 <= end + gap; j++) {
            if (run[j].a1 <= end) continue;
            sum += run[j].a1 - (run[j].a0 > end ? run[j].a0 : end);
            end = run[j].a1;
        }
        if (sum >= need)
            for (i64 k = i; k < j; k++) run[k].stands = 1;
    }
}

/* A run that begins later: aligned again backwards from its end, because edits shift its two sides. */
static int shorten(const spans_t *t, i64 base, run_t *r, i64 a0) {
    const u32 *x = t->word + base + r->a1 - 1, *y = t->word + r->b1 - 1;
    if (r->a1 - a0 < NGRAM) return 0;
    reach_t left = extend(x, r->a1 - a0, y, r->b1 - r->b0, -1, SEED_RUN);
    r->a0 = r->a1 - left.a, r->b0 = r->b1 - left.b, r->matched = left.matched;
    return left.matched >= NGRAM;
}

static int agrees(const run_t *r, double identity) {
    i64 mine = r->a1 - r->a0, theirs = r->b1 - r->b0;
    return (double)r->matched >= identity * (double)(mine > theirs ? mine : theirs);
}

/* A scrap of at most GAP words between two cuts is cut with one of them, and two that go on alike become one. */
static i64 close_scraps(run_t *run, i64 count, double identity) {
    i64 kept = 0;
    for (i64 i = 0; i < count; i++) {
        run_t *last = run + kept - 1, next = run[i];
        if (kept && next.a0 - last->a1 <= GAP) {
            run_t one = {last->a0, next.a1, last->b0, next.b1, last->matched + next.matched, last->source, 1};
            run_t longer = *last, earlier = next;
            longer.a1 = next.a0;
            earlier.a0 = last->a1;
            i64 step = next.b0 - last->b1;
            if (next.source == last->source && step >= 0 && step <= 2 * GAP && agrees(&one, identity)) {
                *last = one;
                continue;
            }
            if (next.a0 > last->a1) {
                if (agrees(&longer, identity)) *last = longer;
                else if (agrees(&earlier, identity)) next = earlier;
            }
        }
        run[kept++] = next;
    }
    return kept;
}

/* Of the runs found, those that stand: long enough, alone, with neighbours of their source (a passage whose sentences
   changed places) or with what touches them (a passage whose parts have different sources). A source that is itself
   shorter than min_words (a question to be kept out of training) need only be met whole. Then no two overlap, none
   repeats itself, and none has a source in this text that is cut. */
static void judge(spans_t *t, i64 base, i64 min_words, double identity, int short_sources) {
    run_t *run = t->runs;
    qsort(run, (size_t)t->run_count, sizeof *run, by_source);
    for (i64 i = 0, j; i < t->run_count; i = j) {
        i64 need = min_words;
        for (j = i; j < t->run_count && run[j].source == run[i].source; j++) {}
        if (short_sources && run[i].source != OWN && words_in(t, run[i].source) < need) need = words_in(t, run[i].source);
        chain(run, i, j, NEIGHBOURS, need);
    }
    qsort(run, (size_t)t->run_count, sizeof *run, by_place);
    if (!short_sources) chain(run, 0, t->run_count, TOUCH, min_words);
    i64 end = 0, count = 0;
    for (i64 i = 0; i < t->run_count; i++) {
        run_t r = run[i];
        if (!r.stands) continue;
        i64 begin = r.a0 > end ? r.a0 : end;
        if (r.source == OWN && r.b1 - base > begin) begin = r.b1 - base;
        if (begin > r.a0 && !shorten(t, base, &r, begin)) continue;
        if (r.a1 - r.a0 < NGRAM || !agrees(&r, identity)) continue;
        int hit = 0;
        for (i64 k = count - 1; r.source == OWN && k >= 0 && !hit; k--) hit = run[k].a0 < r.b1 - base && r.b0 - base < run[k].a1;
        if (hit) continue;
        run[count++] = r;
        end = r.a1;
    }
    t->run_count = close_scraps(run, count, identity);
}

typedef struct { i64 base, words, covered; double identity; } scan_t;

/* The run through word a of the text and word b of the index, with its edits; matched is 0 where there is none. */
static run_t align(const spans_t *t, const scan_t *s, i64 a, i64 b, i64 source, i64 seed_run, i64 *tried) {
    i64 b_first = source == OWN ? s->base : (i64)t->first[source];
    i64 b_end = source == OWN ? s->base + a : (i64)t->first[source + 1];
    const u32 *x = t->word + s->base + a, *y = t->word + b;
    i64 right = 0, left = 0;
    while (a + right < s->words && b + right < b_end && x[right] == y[right]) right++;
    while (a - left > s->covered && b - left > b_first && x[-left - 1] == y[-left - 1]) left++;
    *tried = b + right;
    run_t run = {0};
    if (right < NGRAM || right + left < seed_run) return run;
    reach_t r = extend(x + right, s->words - a - right, y + right, b_end - b - right, 1, right + left);
    reach_t l = extend(x - left - 1, a - left - s->covered, y - left - 1, b - left - b_first, -1, right + left);
    run_t found = {a - left - l.a, a + right + r.a, b - left - l.b, b + right + r.b,
                   left + right + l.matched + r.matched, source, 0};
    i64 mine = found.a1 - found.a0, theirs = found.b1 - found.b0;
    return (double)found.matched < s->identity * (double)(mine > theirs ? mine : theirs) ? run : found;
}

/* Finds the runs of a text of `words` words that stand behind the index's last. */
static int scan(spans_t *t, const u32 *gram, const u32 *picked, i64 count, scan_t *s, i64 min_words, int insert) {
    u64 mask = (u64)t->slot_count - 1;
    i64 own_size = 64;
    while (own_size < 2 * count) own_size *= 2;
    if (!grow((void **)&t->own, &t->own_room, own_size, sizeof *t->own)) return 0;
    memset(t->own, 0, (size_t)own_size * sizeof *t->own);
    i64 line_of[256] = {0}, line_to[256] = {0};
    t->run_count = 0;
    for (i64 f = 0; f < count; f++) {
        if (f + 8 < count) __builtin_prefetch(t->slots + home(t, gram[picked[f + 8]]));
        i64 a = picked[f];
        u32 hash = gram[a];
        u64 own_at = hash & (u64)(own_size - 1);
        while (t->own[own_at] && t->own[own_at] >> 32 != hash) own_at = (own_at + 1) & (u64)(own_size - 1);
        u64 own = t->own[own_at];
        if (!own) t->own[own_at] = (u64)hash << 32 | (u64)(a + 1);
        if (a < s->covered) continue;
        run_t best = {0};
        for (u64 at = home(t, hash);; at = (at + 1) & mask) {
            u64 slot = t->slots[at];
            if (slot && slot >> 32 != hash) continue;
            if (!slot && !own) break;
            i64 b = slot ? (i64)(u32)slot - 1 : s->base + (i64)(u32)own - 1;
            i64 line = b - a, place = line & 255, tried;
            if (!(line_of[place] == line && b < line_to[place])) {
                i64 source = slot ? text_of(t, (u64)b) : OWN;
                i64 need = !insert && source != OWN && words_in(t, source) < min_words ? words_in(t, source) : min_words;
                run_t run = align(t, s, a, b, source, need < SEED_RUN ? need : SEED_RUN, &tried);
                line_of[place] = line, line_to[place] = tried;
                if (run.a1 - run.a0 >= (need < FRAGMENT ? need : FRAGMENT) && run.matched > best.matched) best = run;
            }
            if (!slot) break;
        }
        if (!best.matched) continue;
        if (!grow((void **)&t->runs, &t->run_room, t->run_count + 1, sizeof *t->runs)) return 0;
        t->runs[t->run_count++] = best;
        if (best.a1 - best.a0 >= min_words) s->covered = best.a1;
    }
    return 1;
}

/* min_words: fewest words of a repeated passage of the text. min_left: fewest words that must remain of it where it was
   cut; else it is dropped whole. *number: its number in the index, -1 where it was dropped or `insert` is 0 (then it is
   only asked about). Its spans are t->spans; their source is a number of the index, OWN for the text itself. Returns 1
   where memory is out or the index is full. */
API int spans_take(spans_t *t, const words_t *w, int min_words, int min_left, double identity, int insert, i64 *number) {
    i64 base = t->word_count, need = base + w->words, cut = 0;
    t->span_count = 0;
    if (!spill_grow(&t->spill, (void **)&t->word, &t->word_room, need, sizeof *t->word) ||
        !spill_grow(&t->spill, (void **)&t->start, &t->start_room, need, sizeof *t->start) ||
        !spill_grow(&t->spill, (void **)&t->end, &t->end_room, need, sizeof *t->end) ||
        !spill_grow(&t->spill, (void **)&t->first, &t->first_room, t->n + 2, sizeof *t->first) ||
        !grow((void **)&t->picked, &t->picked_room, w->grams + 1, sizeof *t->picked) || need >= (i64)0xFFFFFFF0)
        return 1;
    memcpy(t->word + base, w->hash, (size_t)w->words * sizeof *t->word);
    memcpy(t->start + base, w->start, (size_t)w->words * sizeof *t->start);
    memcpy(t->end + base, w->end, (size_t)w->words * sizeof *t->end);
    i64 count = winnow(w->gram, w->grams, t->window, t->picked);
    scan_t s = {base, w->words, 0, identity};
    if (!room_for(t, count) || !scan(t, w->gram, t->picked, count, &s, min_words, insert)) return 1;
    judge(t, base, min_words, identity, !insert);
    if (!grow((void **)&t->spans, &t->span_room, t->run_count, sizeof *t->spans)) return 1;
    for (i64 i = 0; i < t->run_count; i++) {
        run_t r = t->runs[i];
        t->spans[t->span_count++] = (span_t){w->start[r.a0], w->end[r.a1 - 1], r.source, t->start[r.b0],
                                             t->end[r.b1 - 1], (u32)r.matched, (u32)(r.a1 - r.a0)};
        cut += r.a1 - r.a0;
    }
    *number = -1;
    if (!insert || (cut && w->words - cut < min_left)) return 0;
    i64 next = 0;
    for (i64 f = 0; f < count; f++) {
        i64 p = t->picked[f];
        while (next < t->run_count && t->runs[next].a1 <= p) next++;
        if (next < t->run_count && t->runs[next].a0 < p + NGRAM) continue;
        put(t, (u64)w->gram[p] << 32 | (u64)(base + p + 1));
    }
    t->word_count += w->words;
    t->first[++t->n] = (u64)t->word_count;
    *number = t->n - 1;
    return 0;
}

/* Makes the text that was remembered last the source of nothing: no word has hash 0, so nothing agrees with it. */
API void spans_forget_last(spans_t *t) {
    if (t->n) memset(t->word + t->first[t->n - 1], 0, (size_t)(t->first[t->n] - t->first[t->n - 1]) * sizeof *t->word);
}

API i64 spans_found(const spans_t *t, span_t *out) {
    if (out) memcpy(out, t->spans, (size_t)t->span_count * sizeof *out);
    return t->span_count;
}

/* The index as arrays, for a file: [texts, words, slots], then copies of them. */
API void spans_sizes(const spans_t *t, i64 *size) { size[0] = t->n, size[1] = t->word_count, size[2] = t->slot_count; }

API void spans_export(const spans_t *t, u64 *first, u32 *word, u32 *start, u32 *end, u64 *slots) {
    memcpy(first, t->first, (size_t)(t->n + 1) * sizeof *first);
    memcpy(word, t->word, (size_t)t->word_count * sizeof *word);
    memcpy(start, t->start, (size_t)t->word_count * sizeof *start);
    memcpy(end, t->end, (size_t)t->word_count * sizeof *end);
    memcpy(slots, t->slots, (size_t)t->slot_count * sizeof *slots);
}

API int spans_import(spans_t *t, i64 n, i64 words, i64 slot_count, const u64 *first, const u32 *word, const u32 *start,
                     const u32 *end, const u64 *slots) {
    u64 *table = spill_zeroed(&t->spill, (size_t)slot_count * sizeof *table);
    if (!table || !spill_grow(&t->spill, (void **)&t->first, &t->first_room, n + 1, sizeof *first) ||
        !spill_grow(&t->spill, (void **)&t->word, &t->word_room, words, sizeof *word) ||
        !spill_grow(&t->spill, (void **)&t->start, &t->start_room, words, sizeof *start) ||
        !spill_grow(&t->spill, (void **)&t->end, &t->end_room, words, sizeof *end))
        return spill_free(&t->spill, table), 1;
    memcpy(t->first, first, (size_t)(n + 1) * sizeof *first);
    memcpy(t->word, word, (size_t)words * sizeof *word);
    memcpy(t->start, start, (size_t)words * sizeof *start);
    memcpy(t->end, end, (size_t)words * sizeof *end);
    memcpy(table, slots, (size_t)slot_count * sizeof *slots);
    spill_free(&t->spill, t->slots);
    t->slots = table;
    t->slot_count = slot_count;
    t->n = n;
    t->word_count = words;
    t->used = 0;
    for (i64 i = 0; i < slot_count; i++) t->used += t->slots[i] != 0;
    return 0;
}

/* Near-duplicate documents: word 5-grams, one-permutation MinHash in bands, exact Jaccard of every candidate.

Texts come in the order of survival. A text whose set of 5-grams has a Jaccard similarity of at least `threshold` with
that of a text that was kept is a copy of it; the others are kept and remembered.

Sources: Broder 1997 (resemblance); Li, Owen and Zhang 2012 and Shrivastava 2017 (one permutation, densified). Each
5-gram is drawn COPIES times, so that a text of fifty words still fills its 160 bins. */
#include "spill.h"

#define BANDS 32
#define ROWS 5
#define BINS (BANDS * ROWS)
#define COPIES 4
#define EMPTY 0xFFFFFFFFu
/* Above so many 5-grams a signature estimates well enough to spare the exact comparison of hopeless candidates. */
#define ESTIMATE_FROM 512

typedef struct {
    double threshold;
    i64 n, shingle_count;
    u64 *first;     /* [n] where a text's 5-grams begin */
    u32 *length;    /* [n] how many; distinct and ascending once `sorted` */
    u8 *sorted;     /* [n] */
    u8 *sketch;     /* [n, BINS] low bytes of the signature */
    u32 *shingles;  /* [shingle_count] */
    u64 *keys;      /* [n, BANDS] */
    u32 *next;      /* [n, BANDS] the next entry (text * BANDS + band + 1) of the same chain, 0 ends it */
    u32 *seen;      /* [n] the query that last looked at a text */
    u32 *head;      /* [head_count] */
    u32 *mine, *spare; /* the set at hand, and room to sort the longest of all */
    i64 mine_room, spare_room;
    u32 longest;
    i64 first_room, length_room, sorted_room, sketch_room, shingle_room, keys_room, next_room, seen_room, head_count;
    u32 query;
    spill_t spill;
} near_t;

static const u64 DRAW[COPIES] = {0x9E3779B97F4A7C15ull, 0xC2B2AE3D27D4EB4Full, 0xA0761D6478BD642Full,
                                 0xE7037ED1A0B428DBull};

/* Hashes of the word 5-grams, in order, repeats included; a shorter text has one, of all its words. */
static i64 shingles_of(const u32 *word, i64 n, u32 *out) {
    if (n == 0) return 0;
    i64 size = n < NGRAM ? n : NGRAM, count = n - size + 1;
    for (i64 i = 0; i < count; i++) out[i] = gram_hash(word + i, size);
    return count;
}

static void signature_of(const u32 *shingle, i64 n, u32 *bin) {
    for (int i = 0; i < BINS; i++) bin[i] = EMPTY;
    for (i64 i = 0; i < n; i++) {
        for (int c = 0; c < COPIES; c++) {
            u64 place = ((u64)(shingle[i] + 1ull) * DRAW[c] >> 32) * BINS;
            u32 value = (u32)place;
            u32 *least = bin + (place >> 32);
            *least = value < *least ? value : *least;
        }
    }
    u32 full[BINS];
    memcpy(full, bin, sizeof full);
    for (int i = 0; i < BINS; i++) {
        u64 probe = i;
        while (bin[i] == EMPTY) {
            probe = mix64(probe + 0x632BE59BD9B4E019ull * (u64)(i + 1));
            bin[i] = full[(probe >> 32) * BINS >> 32];
        }
    }
}

static void sort_unique(u32 *a, u32 *length, u32 *spare) {
    u32 n = *length;
    if (n < 48) {
        for (u32 i = 1; i < n; i++) {
            u32 x = a[i], j = i;
            for (; j && a[j - 1] > x; j--) a[j] = a[j - 1];
            a[j] = x;
        }
    } else {
        u32 count[4][256] = {{0}};
        for (u32 i = 0; i < n; i++)
            for (int b = 0; b < 4; b++) count[b][a[i] >> (8 * b) & 255]++;
        u32 *from = a, *to = spare;
        for (int b = 0; b < 4; b++) {
            u32 at = 0;
            for (int v = 0; v < 256; v++) {
                u32 c = count[b][v];
                count[b][v] = at;
                at += c;
            }
            for (u32 i = 0; i < n; i++) to[count[b][from[i] >> (8 * b) & 255]++] = from[i];
            u32 *swap = from;
            from = to;
            to = swap;
        }
    }
    u32 kept = 0;
    for (u32 i = 0; i < n; i++)
        if (!kept || a[kept - 1] != a[i]) a[kept++] = a[i];
    *length = kept;
}

/* Common elements of two ascending sets, or -1 once fewer than `enough` are in reach. */
static i64 intersection(const u32 *a, i64 n, const u32 *b, i64 m, i64 enough) {
    i64 common = 0;
    const u32 *a_end = a + n, *b_end = b + m;
    while (a < a_end && b < b_end) {
        for (int i = 0; i < 64 && a < a_end && b < b_end; i++) {
            u32 x = *a, y = *b;
            common += x == y;
            a += x <= y;
            b += y <= x;
        }
        i64 left = a_end - a < b_end - b ? a_end - a : b_end - b;
        if (common + left < enough) return -1;
    }
    return common;
}

static void link_entry(near_t *t, u64 entry) {
    u32 *head = t->head + (t->keys[entry] & (u64)(t->head_count - 1));
    t->next[entry] = *head;
    *head = (u32)entry + 1;
}

static int widen(near_t *t, i64 docs) {
    i64 wanted = t->head_count ? t->head_count : 1 << 12;
    while (wanted < docs * BANDS) wanted *= 2;
    if (wanted == t->head_count) return 1;
    u32 *head = spill_zeroed(&t->spill, (size_t)wanted * sizeof *head);
    if (!head) return 0;
    spill_free(&t->spill, t->head);
    t->head = head;
    t->head_count = wanted;
    for (u64 entry = 0; entry < (u64)t->n * BANDS; entry++) link_entry(t, entry);
    return 1;
}

API near_t *near_new(double threshold) {
    near_t *t = calloc(1, sizeof *t);
    if (t) t->threshold = threshold;
    return t;
}

/* The index's arrays and their bytes. */
#define EACH_ARRAY(DO) \
    DO(first, t->first_room * 8) DO(length, t->length_room * 4) DO(sorted, t->sorted_room) DO(sketch, t->sketch_room) \
    DO(shingles, t->shingle_room * 4) DO(keys, t->keys_room * 8) DO(next, t->next_room * 4) DO(seen, t->seen_room * 4) \
    DO(head, t->head_count * 4)

API void near_free(near_t *t) {
#define DO(name, bytes) spill_free(&t->spill, t->name);
    EACH_ARRAY(DO)
#undef DO
    spill_close(&t->spill);
    free(t->mine), free(t->spare), free(t);
}

/* Moves the index into files in `folder`, or, where it is there, gives its pages back. 1: the disk is full. */
API int near_spill(near_t *t, const char *folder) {
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

static int room_for(near_t *t, i64 docs, i64 shingles) {
    return spill_grow(&t->spill, (void **)&t->first, &t->first_room, docs, sizeof *t->first) &&
           spill_grow(&t->spill, (void **)&t->length, &t->length_room, docs, sizeof *t->length) &&
           spill_grow(&t->spill, (void **)&t->sorted, &t->sorted_room, docs, 1) &&
           spill_grow(&t->spill, (void **)&t->sketch, &t->sketch_room, docs * BINS, 1) &&
           spill_grow(&t->spill, (void **)&t->seen, &t->seen_room, docs, sizeof *t->seen) &&
           spill_grow(&t->spill, (void **)&t->keys, &t->keys_room, docs * BANDS, sizeof *t->keys) &&
           spill_grow(&t->spill, (void **)&t->next, &t->next_room, docs * BANDS, sizeof *t->next) &&
           spill_grow(&t->spill, (void **)&t->shingles, &t->shingle_room, shingles, sizeof *t->shingles) &&
           widen(t, docs);
}

static void band_keys(const u32 *bin, u64 *key) {
    for (int b = 0; b < BANDS; b++) {
        u64 h = (u64)b + 1;
        for (int r = 0; r < ROWS; r++) h = (h ^ bin[b * ROWS + r]) * 0x9FB21C651E98DF25ull;
        key[b] = mix64(h);
    }
}

/* The least kept text that this one copies, or -1; *similarity is their Jaccard similarity. */
static i64 find_copy(near_t *t, const u64 *key, const u8 *sketch, u32 *mine, u32 *my_length, u32 *spare,
                     float *similarity) {
    i64 found = -1;
    int my_sorted = 0;
    t->query++;
    for (int b = 0; b < BANDS; b++) {
        for (u32 e = t->head[key[b] & (u64)(t->head_count - 1)]; e; e = t->next[e - 1]) {
            if (t->keys[e - 1] != key[b]) continue;
            u32 doc = (e - 1) / BANDS;
            if (t->seen[doc] == t->query || (found >= 0 && doc > found)) continue;
            t->seen[doc] = t->query;
            if (!my_sorted) sort_unique(mine, my_length, spare), my_sorted = 1;
            if (t->length[doc] >= ESTIMATE_FROM && *my_length >= ESTIMATE_FROM) {
                int same = 0;
                const u8 *other = t->sketch + (i64)doc * BINS;
                for (int i = 0; i < BINS; i++) same += sketch[i] == other[i];
                /* Five standard deviations below the threshold's expectation (one in three million is misjudged). */
                double p = t->threshold, below = BINS * p - same;
                if (below > 0 && below * below > 25 * BINS * p * (1 - p)) continue;
            }
            u32 *theirs = t->shingles + t->first[doc];
            if (!t->sorted[doc]) sort_unique(theirs, t->length + doc, spare), t->sorted[doc] = 1;
            i64 n = *my_length, m = t->length[doc];
            i64 enough = (i64)(t->threshold / (1 + t->threshold) * (double)(n + m) * (1 - 1e-9));
            if ((n < m ? n : m) < enough) continue;
            i64 common = intersection(mine, n, theirs, m, enough);
            double score = common < 0 ? 0 : (double)common / (double)(n + m - common);
            if (score >= t->threshold) found = doc, *similarity = (float)score;
        }
    }
    return found;
}

/* copy_of: the number of the kept text that a text of these words copies, -1 where it was kept (its number then is the
   count of texts kept before it), -2 where it has no words. Returns 0, or 1 where memory is out. */
API int near_take(near_t *t, words_t *w, i64 *copy_of, float *similarity) {
    u32 few, *shingle = w->gram;
    u32 count = (u32)w->grams;
    *similarity = 0;
    *copy_of = -2;
    if (!w->words) return 0;
    if (!count) shingle = &few, count = (u32)shingles_of(w->hash, w->words, &few);
    if (!grow((void **)&t->mine, &t->mine_room, count, sizeof *t->mine) ||
        !grow((void **)&t->spare, &t->spare_room, count > t->longest ? count : t->longest, sizeof *t->spare))
        return 1;
    u32 bin[BINS], length = count, *mine = t->mine;
    u64 key[BANDS];
    u8 sketch[BINS];
    signature_of(shingle, count, bin);
    band_keys(bin, key);
    for (int i = 0; i < BINS; i++) sketch[i] = (u8)bin[i];
    memcpy(mine, shingle, count * sizeof *mine);
    *copy_of = t->n ? find_copy(t, key, sketch, mine, &length, t->spare, similarity) : -1;
    if (*copy_of >= 0) return 0;
    if (!room_for(t, t->n + 1, t->shingle_count + length)) return 1;
    i64 doc = t->n;
    t->first[doc] = (u64)t->shingle_count;
    t->length[doc] = length;
    if (length > t->longest) t->longest = length;
    t->sorted[doc] = length != count;
    t->seen[doc] = 0;
    memcpy(t->sketch + doc * BINS, sketch, BINS);
    memcpy(t->keys + doc * BANDS, key, sizeof key);
    memcpy(t->shingles + t->shingle_count, mine, length * sizeof *mine);
    t->shingle_count += length;
    t->n++;
    for (int b = 0; b < BANDS; b++) link_entry(t, (u64)doc * BANDS + (u64)b);
    return 0;
}

/* Forgets the text that was kept last: it was dropped for another reason, and no text may be a copy of it. */
API void near_forget_last(near_t *t) {
    if (!t->n) return;
    i64 doc = --t->n;
    for (int b = BANDS - 1; b >= 0; b--) {
        u64 entry = (u64)doc * BANDS + (u64)b;
        t->head[t->keys[entry] & (u64)(t->head_count - 1)] = t->next[entry];
    }
    t->shingle_count = (i64)t->first[doc];
}

/* The index as arrays, for a file: sizes first, then copies. 5-grams leave sorted and distinct. */
API void near_sizes(near_t *t, i64 *docs, i64 *shingles) {
    u32 longest = 0;
    for (i64 d = 0; d < t->n; d++)
        if (t->length[d] > longest) longest = t->length[d];
    u32 *spare = malloc((longest + 1) * sizeof *spare);
    i64 total = 0;
    for (i64 d = 0; d < t->n; d++) {
        if (!t->sorted[d]) sort_unique(t->shingles + t->first[d], t->length + d, spare), t->sorted[d] = 1;
        total += t->length[d];
    }
    free(spare);
    *docs = t->n;
    *shingles = total;
}

API void near_export(const near_t *t, u32 *length, u8 *sketch, u64 *keys, u32 *shingles) {
    memcpy(length, t->length, (size_t)t->n * sizeof *length);
    memcpy(sketch, t->sketch, (size_t)t->n * BINS);
    memcpy(keys, t->keys, (size_t)t->n * BANDS * sizeof *keys);
    for (i64 d = 0; d < t->n; d++) {
        memcpy(shingles, t->shingles + t->first[d], t->length[d] * sizeof *shingles);
        shingles += t->length[d];
    }
}

API int near_import(near_t *t, i64 docs, const u32 *length, const u8 *sketch, const u64 *keys, const u32 *shingles) {
    i64 total = 0;
    for (i64 d = 0; d < docs; d++) total += length[d];
    if (!room_for(t, docs, total)) return 1;
    u64 at = 0;
    for (i64 d = 0; d < docs; d++) {
        t->first[d] = at;
        t->length[d] = length[d];
        if (length[d] > t->longest) t->longest = length[d];
        t->sorted[d] = 1;
        t->seen[d] = 0;
        at += length[d];
    }
    memcpy(t->sketch, sketch, (size_t)docs * BINS);
    memcpy(t->keys, keys, (size_t)docs * BANDS * sizeof *keys);
    memcpy(t->shingles, shingles, (size_t)total * sizeof *shingles);
    t->shingle_count = total;
    t->n = docs;
    for (u64 entry = 0; entry < (u64)docs * BANDS; entry++) link_entry(t, entry);
    return 0;
}

API i64 near_bytes(const near_t *t) {
    i64 total = 0;
#define DO(name, bytes) total += bytes;
    EACH_ARRAY(DO)
#undef DO
    return total;
}

/* The sorted distinct 5-gram hashes of one text [room n / 2 + 2], for tests and reports. */
API i64 overland_shingles(const u8 *s, i64 n, u32 *out) {
    size_t room = (size_t)(n / 2 + 2);
    u32 *buffer = malloc(room * 4 * sizeof *buffer);
    if (!buffer) return -1;
    i64 words = words_of(s, n, buffer, buffer + room, buffer + 2 * room);
    u32 length = (u32)shingles_of(buffer, words, out);
    sort_unique(out, &length, buffer + room);
    free(buffer);
    return length;
}

API void overland_signature(const u32 *shingle, i64 n, u32 *bin) { signature_of(shingle, n, bin); }

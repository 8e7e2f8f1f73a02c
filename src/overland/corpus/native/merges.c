#include "merges.h"

#define NONE 0xFFFFFFFFu
#define SHORT 48 /* bytes up to which searching all pairs is quicker than keeping a heap of them */

static inline merge_t *find(const merges_t *m, u32 a, u32 b) {
    u64 pair = ((u64)a << 32 | b) + 1, mask = (u64)m->slots - 1;
    u64 at = (pair * 0x9FB21C651E98DF25ull >> 32) & mask;
    while (m->merge[at].pair && m->merge[at].pair != pair) at = (at + 1) & mask;
    return m->merge + at;
}

static inline u32 rank_of(const merges_t *m, u32 a, u32 b, u32 *id) {
    const merge_t *found = find(m, a, b);
    *id = found->id;
    return found->pair ? found->rank : NONE;
}

int merges_set(merges_t *m, const u32 *byte_id, const u32 *left, const u32 *right, const u32 *merged, i64 count) {
    m->slots = 1024;
    while (m->slots < count * 3) m->slots *= 2;
    m->merge = calloc((size_t)m->slots, sizeof *m->merge);
    if (!m->merge) return 0;
    memcpy(m->byte_id, byte_id, sizeof m->byte_id);
    for (i64 i = 0; i < count; i++) {
        merge_t *at = find(m, left[i], right[i]);
        if (!at->pair) *at = (merge_t){((u64)left[i] << 32 | right[i]) + 1, (u32)i, merged[i]};
    }
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++)
            m->of_bytes[a][b].rank = rank_of(m, byte_id[a], byte_id[b], &m->of_bytes[a][b].id);
    return 1;
}

void merges_clear(merges_t *m) { free(m->merge), free(m->heap), free(m->next), free(m->before); }

static i64 merge_short(const merges_t *m, const u8 *s, i64 n, u32 *id) {
    u32 rank[SHORT], merged[SHORT];
    for (i64 i = 0; i < n; i++) id[i] = m->byte_id[s[i]];
    for (i64 i = 0; i + 1 < n; i++)
        rank[i] = m->of_bytes[s[i]][s[i + 1]].rank, merged[i] = m->of_bytes[s[i]][s[i + 1]].id;
    while (n > 1) {
        i64 best = 0;
        u32 least = rank[0];
        for (i64 i = 1; i + 1 < n; i++)
            if (rank[i] < least) best = i, least = rank[i];
        if (least == NONE) break;
        id[best] = merged[best];
        n--;
        for (i64 i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (i64 i = best + 1; i + 1 < n; i++) rank[i] = rank[i + 1], merged[i] = merged[i + 1];
        if (best + 1 < n) rank[best] = rank_of(m, id[best], id[best + 1], merged + best);
        if (best) rank[best - 1] = rank_of(m, id[best - 1], id[best], merged + best - 1);
    }
    return n;
}

static void push(u64 *heap, i64 *size, u64 item) {
    i64 at = (*size)++;
    for (; at && heap[(at - 1) / 2] > item; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = item;
}

static u64 pop(u64 *heap, i64 *size) {
    u64 top = heap[0], last = heap[--*size];
    i64 at = 0, child;
    while ((child = 2 * at + 1) < *size) {
        if (child + 1 < *size && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* The same through a heap of (rank, place): n log n, for what has no spaces. A place that was merged away, or whose
   pair has become another, has another rank by then, and its item is passed over. */
static i64 merge_long(merges_t *m, const u8 *s, i64 n, u32 *id) {
    if (!grow((void **)&m->heap, &m->heap_room, 3 * n, sizeof *m->heap) ||
        !grow((void **)&m->next, &m->next_room, n + 1, sizeof *m->next) ||
        !grow((void **)&m->before, &m->before_room, n + 1, sizeof *m->before))
        return -1;
    u32 *next = m->next, *before = m->before, merged;
    i64 size = 0;
    for (i64 i = 0; i < n; i++) {
        id[i] = m->byte_id[s[i]];
        next[i] = (u32)(i + 1), before[i] = (u32)(i - 1);
        u32 rank = i + 1 < n ? m->of_bytes[s[i]][s[i + 1]].rank : NONE;
        if (rank != NONE) push(m->heap, &size, (u64)rank << 32 | (u64)i);
    }
    while (size) {
        u64 item = pop(m->heap, &size);
        u32 at = (u32)item, right = next[at];
        if (id[at] == NONE || right == (u32)n || rank_of(m, id[at], id[right], &merged) != item >> 32) continue;
        id[at] = merged, id[right] = NONE;
        right = next[at] = next[right];
        if (right != (u32)n) {
            before[right] = at;
            u32 rank = rank_of(m, id[at], id[right], &merged);
            if (rank != NONE) push(m->heap, &size, (u64)rank << 32 | at);
        }
        if (at) {
            u32 left = before[at], rank = rank_of(m, id[left], id[at], &merged);
            if (rank != NONE) push(m->heap, &size, (u64)rank << 32 | left);
        }
    }
    i64 count = 0;
    for (u32 at = 0; at != (u32)n; at = next[at]) id[count++] = id[at];
    return count;
}

i64 merge_piece(merges_t *m, const u8 *s, i64 n, u32 *id) {
    return n <= SHORT ? merge_short(m, s, n, id) : merge_long(m, s, n, id);
}

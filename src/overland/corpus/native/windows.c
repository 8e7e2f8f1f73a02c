/* Long substrings of texts that are gone, known by hashes of windows.

Of every text the windows of `size` bytes that begin at a multiple of `stride` are kept as two hashes; a later text is
looked through at every byte. What repeats at least size + stride - 1 bytes holds such a window, so it is always met;
what is met repeats at least `size` bytes, and its ends are known to within stride - 1 bytes.
Source: Karp and Rabin 1987 (rolling hash); Tridgell and Mackerras 1996 (blocks on one side, every byte on the other). */
#include "words.h"

#define FACTOR 0x9FB21C651E98DF25ull

/* A hash that is not linear in the bytes, for what the rolling one has met. */
static u32 sure(const u8 *s, i64 n) {
    u64 h = (u64)n, word;
    for (; n >= 8; s += 8, n -= 8) memcpy(&word, s, 8), h = mix64(h ^ word) * FACTOR;
    word = 0;
    memcpy(&word, s, (size_t)n);
    return (u32)(mix64(h ^ word) >> 32);
}

static u64 power_of(i64 size) {
    u64 power = 1;
    while (size--) power *= FACTOR;
    return power;
}

static u64 hash_of(const u8 *s, i64 size) {
    u64 h = 0;
    for (i64 i = 0; i < size; i++) h = h * FACTOR + s[i] + 1;
    return h;
}

/* The windows of n texts: both hashes, the text's number, the byte. Returns how many; fills nothing where key is 0. */
API i64 windows_of(const u8 *data, const i64 *offset, i64 n, i64 size, i64 stride, u64 *key, u32 *check, u32 *text, u32 *place) {
    i64 count = 0;
    for (i64 d = 0; d < n; d++) {
        const u8 *s = data + offset[d];
        for (i64 p = 0; p + size <= offset[d + 1] - offset[d]; p += stride, count++)
            if (key) key[count] = mix64(hash_of(s + p, size)), check[count] = sure(s + p, size), text[count] = (u32)d, place[count] = (u32)p;
    }
    return count;
}

/* A bit for every key by its leading bits. */
API void windows_bits(const u64 *key, i64 n, int shift, u8 *bits) {
    for (i64 i = 0; i < n; i++) bits[key[i] >> shift >> 3] |= (u8)(1 << (key[i] >> shift & 7));
}

static i64 entry_of(const u64 *key, const u32 *check, i64 n, const u8 *bits, int shift, u64 h, const u8 *s, i64 size) {
    if (!(bits[h >> shift >> 3] >> (h >> shift & 7) & 1)) return -1;
    i64 low = 0, high = n;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (key[middle] < h) low = middle + 1;
        else high = middle;
    }
    return low < n && key[low] == h && check[low] == sure(s, size) ? low : -1;
}

/* What of a text stands in the windows (sorted by key, none twice): (start, end, entry) a span, none overlapping.
   Returns how many spans there are, filling at most `room`. */
API i64 windows_find(const u64 *key, const u32 *check, i64 n, const u8 *bits, int shift, const u8 *s, i64 length, i64 size, i64 stride, i64 *out, i64 room) {
    i64 count = 0;
    u64 power = power_of(size), h = 0;
    for (i64 p = 0, ready = -1; p + size <= length;) {
        h = ready == p ? h : hash_of(s + p, size);
        i64 entry = entry_of(key, check, n, bits, shift, mix64(h), s + p, size), end = p + size;
        if (entry < 0) {
            if (end < length) h = h * FACTOR + s[end] + 1 - power * (u64)(s[p] + 1);
            ready = ++p;
            continue;
        }
        for (i64 q = p + stride; q + size <= length; q += stride) {
            if (entry_of(key, check, n, bits, shift, mix64(hash_of(s + q, size)), s + q, size) < 0) break;
            end = q + size;
        }
        if (count < room) out[3 * count] = p, out[3 * count + 1] = end, out[3 * count + 2] = entry;
        count++, p = end;
    }
    return count;
}

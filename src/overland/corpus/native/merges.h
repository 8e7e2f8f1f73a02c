/* Byte-level BPE: the bytes of a piece merged by a tokenizer's own table, the lowest rank first, the leftmost of equals
   (Sennrich, Haddow and Birch 2016), which is also the order of Hugging Face's queue. */
#ifndef OVERLAND_MERGES_H
#define OVERLAND_MERGES_H

#include "words.h"

typedef struct { u64 pair; u32 rank, id; } merge_t; /* pair: left << 32 | right, plus 1; 0 is free */

typedef struct {
    u32 byte_id[256];
    merge_t *merge; /* hash table */
    i64 slots;
    struct { u32 rank, id; } of_bytes[256][256]; /* the merges of two bytes, looked up without hashing */
    u64 *heap;
    u32 *next, *before;
    i64 heap_room, next_room, before_room;
} merges_t;

/* left, right and merged ids [count] in the order of rank; byte_id [256]. 0: out of memory. */
int merges_set(merges_t *m, const u32 *byte_id, const u32 *left, const u32 *right, const u32 *merged, i64 count);
void merges_clear(merges_t *m);
/* Writes the ids of a piece of n bytes to id [n] and returns how many there are; -1: out of memory. */
i64 merge_piece(merges_t *m, const u8 *s, i64 n, u32 *id);

#endif

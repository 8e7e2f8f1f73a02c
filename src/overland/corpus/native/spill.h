/* Arrays that live in memory until they are told to live in files: what a duplicate index knows may outgrow memory.

A spilled array is a shared mapping of a file without a name, so the system writes its pages out when it needs the
memory, and `spill_release` takes them off the process at once. Space is reserved before it is written: a full disk is
an error here, never a signal. */
#ifndef OVERLAND_SPILL_H
#define OVERLAND_SPILL_H

#include "words.h"

typedef struct { void *at; size_t bytes; int file; } spilled_t;
typedef struct { char *folder; spilled_t array[16]; int arrays; } spill_t;

/* Like `grow` of words.h and `calloc`, in a file where the folder is set. Null or 0: out of memory or disk. */
int spill_grow(spill_t *s, void **array, i64 *capacity, i64 need, size_t size);
void *spill_zeroed(spill_t *s, size_t bytes);
/* Moves an array that malloc gave into a file. */
int spill_move(spill_t *s, void **array, size_t bytes);
void spill_free(spill_t *s, void *array);
/* Gives the pages of all spilled arrays back; they are read again where they are needed. */
void spill_release(const spill_t *s);
void spill_close(spill_t *s);

#endif

#include "spill.h"

#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static spilled_t *find(spill_t *s, const void *array) {
    for (int i = 0; i < s->arrays; i++)
        if (s->array[i].at == array) return s->array + i;
    return 0;
}

void *spill_zeroed(spill_t *s, size_t bytes) {
    if (!s->folder) return calloc(bytes ? bytes : 1, 1);
    char name[4096];
    if (s->arrays == 16 || snprintf(name, sizeof name, "%s/.index-XXXXXX", s->folder) >= (int)sizeof name) return 0;
    int file = mkstemp(name);
    if (file < 0) return 0;
    unlink(name); /* it is nobody's but ours, and gone with us */
    bytes = bytes ? bytes : 1;
    void *at = posix_fallocate(file, 0, (off_t)bytes) ? MAP_FAILED
                                                      : mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return close(file), (void *)0;
    s->array[s->arrays++] = (spilled_t){at, bytes, file};
    return at;
}

int spill_move(spill_t *s, void **array, size_t bytes) {
    void *moved = spill_zeroed(s, bytes);
    if (!moved) return 0;
    if (*array) memcpy(moved, *array, bytes);
    free(*array);
#ifdef __GLIBC__
    malloc_trim(0); /* what lies between other things on the heap is given back too */
#endif
    *array = moved;
    return 1;
}

int spill_grow(spill_t *s, void **array, i64 *capacity, i64 need, size_t size) {
    spilled_t *file = find(s, *array);
    if (!file) return grow(array, capacity, need, size);
    if (need <= *capacity) return 1;
    i64 wanted = *capacity + *capacity / 2 + 1024;
    if (wanted < need) wanted = need;
    size_t bytes = (size_t)wanted * size;
    if (posix_fallocate(file->file, 0, (off_t)bytes)) return 0;
    void *at = mremap(file->at, file->bytes, bytes, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) return 0;
    file->at = *array = at, file->bytes = bytes;
    *capacity = wanted;
    return 1;
}

void spill_free(spill_t *s, void *array) {
    spilled_t *file = find(s, array);
    if (!file) {
        free(array);
        return;
    }
    munmap(file->at, file->bytes);
    close(file->file);
    *file = s->array[--s->arrays];
}

void spill_release(const spill_t *s) {
    for (int i = 0; i < s->arrays; i++) madvise(s->array[i].at, s->array[i].bytes, MADV_DONTNEED);
}

void spill_close(spill_t *s) { free(s->folder), s->folder = 0; }

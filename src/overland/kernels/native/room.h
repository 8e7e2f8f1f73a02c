// Room for what a call needs in between. It is kept from call to call: memory that is new costs more than the work.
#pragma once
#include <cstdlib>

#include "common.h"

template <typename T> class Room {
  public:
    explicit Room(i64 total, i64 pieces = 16) : left(total += pieces * LANES) {
        static thread_local struct Kept {
            T* memory = nullptr;
            i64 size = 0;
            ~Kept() { std::free(memory); }
        } kept;
        if (kept.size < total) {
            std::free(kept.memory);
            kept.memory = (T*)std::aligned_alloc(64, (total * i64(sizeof(T)) + 63) / 64 * 64);
            kept.size = total;
        }
        next = kept.memory;
    }
    T* take(i64 count) {  // every piece begins at a vector's boundary
        T* const taken = next;
        count = (count + LANES - 1) / LANES * LANES;
        next += count, left -= count;
        if (left < 0) std::abort();  // a mistake of the caller's sum
        return taken;
    }

  private:
    T* next;
    i64 left;
};

// Matrix products of row blocks with a matrix each, small enough to stay in the cache; the formula is in experts.py.
#include "product.h"

// x [M, I], w [E, I, O], y [M, O]; counts [E] rows of each, in order
template <typename T> void grouped_forward(T* y, const T* x, const T* w, const i64* counts, i64 E, i64 I, i64 O) {
    for (i64 e = 0; e < E; x += counts[e] * I, y += counts[e] * O, w += I * O, e++)
        product(y, O, x, I, i64(1), w, O, counts[e], I, O);
}

// scratch [O, I]
template <typename T>
void grouped_backward(T* d_x, T* d_w, T* scratch, const T* d_y, const T* x, const T* w, const i64* counts, i64 E,
                      i64 I, i64 O) {
    for (i64 e = 0; e < E; e++) {
        for (i64 i = 0; i < I; i++)
            for (i64 o = 0; o < O; o++) scratch[o * I + i] = w[i * O + o];
        product(d_x, I, d_y, O, i64(1), scratch, I, counts[e], O, I);
        product(d_w, O, x, i64(1), I, d_y, O, I, counts[e], O);
        x += counts[e] * I, d_x += counts[e] * I, d_y += counts[e] * O, w += I * O, d_w += I * O;
    }
}

BOTH(grouped_forward, (T* y, const T* x, const T* w, const i64* counts, i64 E, i64 I, i64 O),
     (y, x, w, counts, E, I, O))
BOTH(grouped_backward,
     (T* d_x, T* d_w, T* scratch, const T* d_y, const T* x, const T* w, const i64* counts, i64 E, i64 I, i64 O),
     (d_x, d_w, scratch, d_y, x, w, counts, E, I, O))

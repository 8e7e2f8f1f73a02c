// Matrix products of row blocks with a matrix each, small enough to stay in the cache; the formula is in experts.py.
#include "common.h"

// R rows and N vectors of y = A B, held in registers. A(i, k) = a[i row + k step]; n counts the last vector's columns.
template <typename T, i64 R, i64 N>
INLINE void block(T* y, i64 ldy, const T* a, i64 row, i64 step, const T* b, i64 ldb, i64 K, i64 n) {
    Vec<T> acc[R][N] = {};
    for (i64 k = 0; k < K; k++) {
        Vec<T> right[N];
        UNROLL for (i64 v = 0; v < N; v++) right[v] = N > 1 ? load(b + k * ldb + v * LANES) : load(b + k * ldb, n);
        UNROLL for (i64 r = 0; r < R; r++)
            UNROLL for (i64 v = 0; v < N; v++) acc[r][v] += a[r * row + k * step] * right[v];
    }
    UNROLL for (i64 r = 0; r < R; r++)
        UNROLL for (i64 v = 0; v < N; v++)
            N > 1 ? store<T>(y + r * ldy + v * LANES, acc[r][v]) : store<T>(y + r * ldy, acc[r][v], n);
}

template <typename T, i64 N>
void columns(T* y, i64 ldy, const T* a, i64 row, i64 step, const T* b, i64 ldb, i64 M, i64 K, i64 n) {
    i64 i = 0;
    for (; i + 6 <= M; i += 6) block<T, 6, N>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n);
    for (; i + 2 <= M; i += 2) block<T, 2, N>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n);
    for (; i < M; i++) block<T, 1, N>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n);
}

// y [M, O] = A [M, K] B [K, O]
template <typename T>
void product(T* y, const T* a, i64 row, i64 step, const T* b, i64 M, i64 K, i64 O) {
    i64 c = 0;
    for (; c + 4 * LANES <= O; c += 4 * LANES) columns<T, 4>(y + c, O, a, row, step, b + c, O, M, K, LANES);
    for (; c < O; c += LANES) columns<T, 1>(y + c, O, a, row, step, b + c, O, M, K, O - c);
}

// x [M, I], w [E, I, O], y [M, O]; counts [E] rows of each, in order
template <typename T> void grouped_forward(T* y, const T* x, const T* w, const i64* counts, i64 E, i64 I, i64 O) {
    for (i64 e = 0; e < E; x += counts[e] * I, y += counts[e] * O, w += I * O, e++)
        product(y, x, I, i64(1), w, counts[e], I, O);
}

// scratch [O, I]
template <typename T>
void grouped_backward(T* d_x, T* d_w, T* scratch, const T* d_y, const T* x, const T* w, const i64* counts, i64 E,
                      i64 I, i64 O) {
    for (i64 e = 0; e < E; e++) {
        for (i64 i = 0; i < I; i++)
            for (i64 o = 0; o < O; o++) scratch[o * I + i] = w[i * O + o];
        product(d_x, d_y, O, i64(1), scratch, counts[e], O, I);
        product(d_w, x, i64(1), I, d_y, I, counts[e], O);
        x += counts[e] * I, d_x += counts[e] * I, d_y += counts[e] * O, w += I * O, d_w += I * O;
    }
}

BOTH(grouped_forward, (T* y, const T* x, const T* w, const i64* counts, i64 E, i64 I, i64 O),
     (y, x, w, counts, E, I, O))
BOTH(grouped_backward,
     (T* d_x, T* d_w, T* scratch, const T* d_y, const T* x, const T* w, const i64* counts, i64 E, i64 I, i64 O),
     (d_x, d_w, scratch, d_y, x, w, counts, E, I, O))

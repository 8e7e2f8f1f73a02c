// Matrix products whose rows are few or whose matrices are small: blocks of the result are held in registers, and sums
// run over k in order, whatever the block, so that a row's result does not depend on how many rows are beside it (but
// for up to FEW rows, where a matrix that is read once is better read along its rows).
#pragma once
#include "common.h"

constexpr i64 PANEL = 4 * LANES, FEW = 3;

// Weights come from memory once a step, and a core waits for them unless it asks for them in order and in time:
//
//   - few rows have little to compute: B is swept from front to back, which the processor sees coming;
//   - more rows compute in blocks, and while they do, what will be read `next` is fetched into the cache, LINES lines a
//     round. It is one stretch of memory as large as B (or null), and nothing is fetched where B is read again.

// R rows and N vectors of y = A B, held in registers. A(i, k) = a[i row + k step]; n counts the last vector's columns.
template <typename T, i64 R, i64 N, i64 LINES>
INLINE void block(T* y, i64 ldy, const T* a, i64 row, i64 step, const T* b, i64 ldb, i64 K, i64 n, const T* next) {
    Vec<T> acc[R][N] = {};
    for (i64 k = 0; k < K; k++) {
        Vec<T> right[N];
        UNROLL for (i64 i = 0; i < LINES; i++) __builtin_prefetch(next + (k * LINES + i) * LANES, 0, 2);
        UNROLL for (i64 v = 0; v < N; v++) right[v] = N > 1 ? load(b + k * ldb + v * LANES) : load(b + k * ldb, n);
        UNROLL for (i64 r = 0; r < R; r++)
            UNROLL for (i64 v = 0; v < N; v++) acc[r][v] += a[r * row + k * step] * right[v];
    }
    UNROLL for (i64 r = 0; r < R; r++)
        UNROLL for (i64 v = 0; v < N; v++)
            N > 1 ? store<T>(y + r * ldy + v * LANES, acc[r][v]) : store<T>(y + r * ldy, acc[r][v], n);
}

// `next`: the N vectors for each k that are fetched meanwhile, spread over the blocks.
template <typename T, i64 N>
void columns(T* y, i64 ldy, const T* a, i64 row, i64 step, const T* b, i64 ldb, i64 M, i64 K, i64 n, const T* next) {
    i64 i = 0;
    if constexpr (N == 4) {
        if (next && M >= 24) {
            for (; i < 24; i += 6, next += K * LANES)
                block<T, 6, N, 1>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n, next);
        } else if (next && M >= 12) {
            for (; i < 12; i += 6, next += K * 2 * LANES)
                block<T, 6, N, 2>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n, next);
        } else if (next && M >= 6) {
            block<T, 6, N, 4>(y, ldy, a, row, step, b, ldb, K, n, next), i = 6;
        } else if (next && M >= 4) {
            block<T, 4, N, 4>(y, ldy, a, row, step, b, ldb, K, n, next), i = 4;
        }
    }
    for (; i + 6 <= M; i += 6) block<T, 6, N, 0>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n, next);
    for (; i + 4 <= M; i += 4) block<T, 4, N, 0>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n, next);
    for (; i + 2 <= M; i += 2) block<T, 2, N, 0>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n, next);
    for (; i < M; i++) block<T, 1, N, 0>(y + i * ldy, ldy, a + i * row, row, step, b, ldb, K, n, next);
}

// R rows of y = A B, B from front to back; the sums lie in y meanwhile. O is a multiple of 16.
template <typename T, i64 R>
void sweep(T* y, i64 ldy, const T* a, i64 row, i64 step, const T* b, i64 ldb, i64 K, i64 O) {
    UNROLL for (i64 r = 0; r < R; r++) std::memset(y + r * ldy, 0, O * sizeof(T));
    for (i64 k = 0; k < K; k++, b += ldb)
        for (i64 c = 0; c < O; c += LANES) {
            const Vec<T> right = load(b + c);
            UNROLL for (i64 r = 0; r < R; r++) {
                Vec<T> so_far = load(y + r * ldy + c);
                so_far += a[r * row + k * step] * right;
                store<T>(y + r * ldy + c, so_far);
            }
        }
}

// y [M, O] = A [M, K] B [K, O]; rows of y lie ldy apart, those of B ldb.
template <typename T>
void product(T* y, i64 ldy, const T* a, i64 row, i64 step, const T* b, i64 ldb, i64 M, i64 K, i64 O,
             const T* next = nullptr) {
    i64 c = 0;
    if constexpr (sizeof(T) == 4) {  // doubles are for checking: one width compiles in a third of the time
        if (M <= FEW && O > PANEL && O % LANES == 0) {
            if (M == 1) sweep<T, 1>(y, ldy, a, row, step, b, ldb, K, O);
            if (M == 2) sweep<T, 2>(y, ldy, a, row, step, b, ldb, K, O);
            if (M == 3) sweep<T, 3>(y, ldy, a, row, step, b, ldb, K, O);
            return;
        }
        for (; c + PANEL <= O; c += PANEL)
            columns<T, 4>(y + c, ldy, a, row, step, b + c, ldb, M, K, LANES, next ? next + c * K : next);
        for (; c + 2 * LANES <= O; c += 2 * LANES)
            columns<T, 2>(y + c, ldy, a, row, step, b + c, ldb, M, K, LANES, next);
    }
    for (; c < O; c += LANES) columns<T, 1>(y + c, ldy, a, row, step, b + c, ldb, M, K, O - c, next);
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define OVERLAND_SHUFFLES
template <typename T> INLINE Vec<T> low(Vec<T> a, Vec<T> b) {  // a0 b0 a1 b1 ...
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
template <typename T> INLINE Vec<T> high(Vec<T> a, Vec<T> b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#endif
#endif

// 16 rows of x become 16 columns: in four rounds rows i and i + 8 are interleaved.
template <typename T> INLINE void turn(Vec<T> (&x)[LANES]) {
#ifdef OVERLAND_SHUFFLES
    UNROLL for (i64 round = 0; round < 4; round++) {
        Vec<T> y[LANES];
        UNROLL for (i64 i = 0; i < LANES / 2; i++) {
            y[2 * i] = low<T>(x[i], x[i + 8]);
            y[2 * i + 1] = high<T>(x[i], x[i + 8]);
        }
        UNROLL for (i64 i = 0; i < LANES; i++) x[i] = y[i];
    }
#else
    for (i64 i = 0; i < LANES; i++)
        for (i64 j = 0; j < i; j++) {
            const T kept = x[i][j];
            x[i][j] = x[j][i], x[j][i] = kept;
        }
#endif
}

// The sums of 16 vectors, each in its lane; x is used up.
template <typename T> INLINE Vec<T> sums(Vec<T> (&x)[LANES]) {
#ifdef OVERLAND_SHUFFLES
    UNROLL for (i64 i = 0; i < 8; i++) x[i] = low<T>(x[i], x[i + 8]) + high<T>(x[i], x[i + 8]);
    UNROLL for (i64 i = 0; i < 4; i++) x[i] = low<T>(x[i], x[i + 4]) + high<T>(x[i], x[i + 4]);
    UNROLL for (i64 i = 0; i < 2; i++) x[i] = low<T>(x[i], x[i + 2]) + high<T>(x[i], x[i + 2]);
    return low<T>(x[0], x[1]) + high<T>(x[0], x[1]);
#else
    Vec<T> y;
    for (i64 i = 0; i < LANES; i++) y[i] = sum<T>(x[i]);
    return y;
#endif
}

// to [K, PANEL] = the transpose of w [n, K], n <= PANEL; columns up to the next multiple of 16 are zero.
template <typename T> void turned(T* to, const T* w, i64 ldw, i64 n, i64 K) {
    for (i64 c = 0; c < n; c += LANES)
        for (i64 k = 0; k < K; k += LANES) {
            Vec<T> x[LANES];
            UNROLL for (i64 i = 0; i < LANES; i++) x[i] = c + i < n ? load(w + (c + i) * ldw + k, K - k) : Vec<T>{};
            turn<T>(x);
            UNROLL for (i64 i = 0; i < LANES; i++)
                if (k + i < K) store<T>(to + (k + i) * PANEL + c, x[i]);
        }
}

// y [R, O] = x w^T for few rows, along k: a matrix that has to come from memory is read once, as it lies.
template <typename T, i64 R> void few(T* y, i64 ldy, const T* x, i64 ldx, const T* w, i64 ldw, i64 K, i64 O) {
    constexpr i64 N = LANES / (R == 3 ? 4 : R);  // R N results at a time
    for (i64 o = 0; o < O; o += N) {
        const i64 n = O - o < N ? O - o : N;
        Vec<T> acc[LANES] = {};
        for (i64 i = 0; i < n; i++) {
            const T* const at = w + (o + i) * ldw;
            Vec<T> total[R] = {};
            for (i64 k = 0; k < K; k += LANES) {
                const Vec<T> right = load(at + k, K - k);
                UNROLL for (i64 r = 0; r < R; r++) total[r] += load(x + r * ldx + k, K - k) * right;
            }
            UNROLL for (i64 r = 0; r < R; r++) acc[r * N + i] = total[r];
        }
        const Vec<T> y_o = sums<T>(acc);
        T out[LANES];
        store<T>(out, y_o);
        for (i64 r = 0; r < R; r++) std::memcpy(y + r * ldy + o, out + r * N, n * sizeof(T));
    }
}

// y [M, O] = x [M, K] w^T with w [O, K] as torch's Linear keeps it; scratch [K, PANEL]. `next`: what is read after w.
template <typename T>
void linear(T* y, i64 ldy, const T* x, i64 ldx, const T* w, i64 ldw, i64 M, i64 K, i64 O, T* scratch,
            const T* next = nullptr) {
    if (M == 1) return few<T, 1>(y, ldy, x, ldx, w, ldw, K, O);
    if (M == 2) return few<T, 2>(y, ldy, x, ldx, w, ldw, K, O);
    if (M == 3) return few<T, 3>(y, ldy, x, ldx, w, ldw, K, O);
    for (i64 o = 0; o < O; o += PANEL) {
        const i64 n = O - o < PANEL ? O - o : PANEL;
        turned(scratch, w + o * ldw, ldw, n, K);
        product(y + o, ldy, x, ldx, i64(1), scratch, PANEL, M, K, n, o + PANEL < O ? w + (o + PANEL) * ldw : next);
    }
}

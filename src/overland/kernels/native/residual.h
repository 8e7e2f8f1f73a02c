// How a sublayer reads the running sum and puts its own output into it; the formula is in residual.py.
#pragma once
#include "depth.h"
#include "rows.h"

// from: the norm's weight [D], then the mix's projection and norm [D] or nulls, then the sources [N, D], the sum last
template <typename T> struct Residual {
    const T* const* from;
    i64 sources, keeps;
    double eps, depth_eps;

    // x [N, D] = norm(mix of the sources); query [D] is scratch
    void read(T* x, T* query, i64 N, i64 D) const {
        const T* const* v = from + 3;
        if (sources > 1)
            for (i64 c = 0; c < D; c++) query[c] = from[1][c] * from[2][c];
        for (i64 r = 0; r < N; r++, x += D) {
            if (sources > 1) mix_row(x, v, sources, r * D, query, D, depth_eps);
            norm_row<T>(x, sources > 1 ? x : v[0] + r * D, from[0], nullptr, D, eps);
        }
    }
    // y [N, D] += the running sum, where that goes on
    void add(T* y, i64 N, i64 D) const {
        if (!keeps) return;
        const T* const s = from[2 + sources];
        for (i64 i = 0; i < N * D; i += LANES) {
            const i64 n = N * D - i;
            store<T>(y + i, load(s + i, n) + load(y + i, n), n);
        }
    }
};

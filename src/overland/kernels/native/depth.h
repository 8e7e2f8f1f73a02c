// An average over depth, weighted by a softmax, of one token; the formula is in depth_mix.py.
#pragma once
#include "common.h"

constexpr i64 MOST = 64;  // sources

// score_i = (v_i . query) / rms(v_i): the two parts and the softmax over i of one token.
template <typename T> struct Scores {
    T dot[MOST], by[MOST], alpha[MOST];
    Scores(const T* const* v, i64 n, i64 at, const T* query, i64 D, double eps) {
        T top = -INFINITY, total = 0;
        for (i64 i = 0; i < n; i++) {
            Vec<T> dots{}, squares{};
            for (i64 c = 0; c < D; c += LANES) {
                const Vec<T> x = load(v[i] + at + c, D - c);
                dots += x * load(query + c, D - c);
                squares += x * x;
            }
            dot[i] = sum<T>(dots);
            by[i] = 1 / std::sqrt(sum<T>(squares) / D + T(eps));
            alpha[i] = dot[i] * by[i];
            top = alpha[i] > top ? alpha[i] : top;
        }
        for (i64 i = 0; i < n; i++) total += alpha[i] = std::exp(alpha[i] - top);
        for (i64 i = 0; i < n; i++) alpha[i] /= total;
    }
};

// y [D] = the sources' average at one token
template <typename T> INLINE void mix_row(T* y, const T* const* v, i64 n, i64 at, const T* query, i64 D, double eps) {
    const Scores<T> s(v, n, at, query, D, eps);
    for (i64 c = 0; c < D; c += LANES) {
        Vec<T> mix{};
        for (i64 i = 0; i < n; i++) mix += s.alpha[i] * load(v[i] + at + c, D - c);
        store<T>(y + c, mix, D - c);
    }
}

// A softmax-weighted average over depth, for each token; the formula is in depth_mix.py.
#include "depth.h"

// v: n sources [rows, D]; y [rows, D]
template <typename T>
void mix_forward(T* y, const T* const* v, const T* query, i64 n, i64 rows, i64 D, double eps) {
    for (i64 at = 0; at < rows * D; at += D) mix_row(y + at, v, n, at, query, D, eps);
}

// d_query [D] is added to.
template <typename T>
void mix_backward(T* const* d_v, T* d_query, const T* d_y, const T* const* v, const T* query, i64 n, i64 rows, i64 D,
                  double eps) {
    for (i64 at = 0; at < rows * D; at += D) {
        const Scores<T> s(v, n, at, query, D, eps);
        T d_alpha[MOST], mean = 0;
        for (i64 i = 0; i < n; i++) {
            Vec<T> dots{};
            for (i64 c = 0; c < D; c += LANES) dots += load(d_y + at + c, D - c) * load(v[i] + at + c, D - c);
            d_alpha[i] = sum<T>(dots);
            mean += s.alpha[i] * d_alpha[i];
        }
        for (i64 i = 0; i < n; i++) {
            const T d_dot = s.alpha[i] * (d_alpha[i] - mean) * s.by[i];  // score = dot * by
            const T along = d_dot * s.dot[i] * s.by[i] * s.by[i] / D;
            for (i64 c = 0; c < D; c += LANES) {
                const i64 m = D - c;
                const Vec<T> x = load(v[i] + at + c, m);
                store<T>(d_v[i] + at + c, s.alpha[i] * load(d_y + at + c, m) + d_dot * load(query + c, m) - along * x, m);
                store<T>(d_query + c, load(d_query + c, m) + d_dot * x, m);
            }
        }
    }
}

BOTH(mix_forward, (T* y, const T* const* v, const T* query, i64 n, i64 rows, i64 D, double eps),
     (y, v, query, n, rows, D, eps))
BOTH(mix_backward,
     (T* const* d_v, T* d_query, const T* d_y, const T* const* v, const T* query, i64 n, i64 rows, i64 D, double eps),
     (d_v, d_query, d_y, v, query, n, rows, D, eps))

// Attention of a few queries to cached latents, for decoding; the formula is in latent_attention.py.
#include "common.h"

// m [B, T, H, L]; q [B, T, H, X]; e [B, S, X], values are its first L columns; seen [B] tokens before the first query;
// scratch [H, S].
template <typename T>
void attend(T* m, T* scratch, const T* q, const T* e, const i64* seen, i64 B, i64 Tn, i64 H, i64 X, i64 L, i64 S,
            double scale) {
    for (i64 b = 0; b < B; b++, e += S * X)
        for (i64 t = 0; t < Tn; t++, q += H * X, m += H * L) {
            const i64 n = seen[b] + t + 1;
            for (i64 s = 0; s < n; s++)
                for (i64 h = 0; h < H; h++) {
                    Vec<T> dot{};
                    for (i64 c = 0; c < X; c += LANES) dot += load(q + h * X + c, X - c) * load(e + s * X + c, X - c);
                    scratch[h * S + s] = sum<T>(dot) * T(scale);
                }
            for (i64 h = 0; h < H; h++) {
                T* p = scratch + h * S;
                T top = -INFINITY;
                Vec<T> total{};
                for (i64 s = 0; s < n; s++) top = p[s] > top || p[s] != p[s] ? p[s] : top;
                for (i64 s = 0; s < n; s += LANES) {
                    Vec<T> w = exp(load(p + s, n - s) - top);
                    for (i64 i = n - s; i < LANES; i++) w[i] = 0;
                    total += w;
                    store<T>(p + s, w, n - s);
                }
                const T by = 1 / sum<T>(total);
                for (i64 c = 0; c < L; c += LANES) {
                    Vec<T> acc{};
                    for (i64 s = 0; s < n; s++) acc += p[s] * load(e + s * X + c, L - c);
                    store<T>(m + h * L + c, acc * by, L - c);
                }
            }
        }
}

BOTH(attend,
     (T* m, T* scratch, const T* q, const T* e, const i64* seen, i64 B, i64 Tn, i64 H, i64 X, i64 L, i64 S,
      double scale),
     (m, scratch, q, e, seen, B, Tn, H, X, L, S, scale))

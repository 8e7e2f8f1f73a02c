// Attention of each query to latents that were chosen for it; the formula is in selected_attention.py.
#include "common.h"

#include <vector>

constexpr i64 KEYS = 8;   // latents taken together: so many sums in registers
constexpr i64 AHEAD = 16; // so many latents before its turn one is asked for from memory
constexpr i64 WIDE = 16;  // columns of the latent averaged together

// One query, up to 16 heads side by side in a vector: a number of a latent meets all heads at once.
// m [H, L] of the heads h0 ..; q [H, X]; e [n, X]; scratch p [n vectors], turned [X vectors].
template <typename T>
void attend_heads(T* m, const T* q, const T* e, i64 n, i64 h0, i64 H, i64 X, i64 L, T scale, T* p, T* turned) {
    const i64 heads = H - h0 < LANES ? H - h0 : LANES;
    for (i64 x = 0; x < X; x++)
        for (i64 h = 0; h < LANES; h++) turned[x * LANES + h] = h < heads ? q[(h0 + h) * X + x] * scale : 0;
    Vec<T> top = splat<T>(-INFINITY);
    for (i64 c = 0; c < n; c += KEYS) {
        const i64 last = n - 1;
        const T* row[KEYS];
        UNROLL for (i64 r = 0; r < KEYS; r++) row[r] = e + (c + r < last ? c + r : last) * X;
        Vec<T> dot[KEYS] = {};
        for (i64 x = 0; x < X; x++) {
            const Vec<T> by = load(turned + x * LANES);
            UNROLL for (i64 r = 0; r < KEYS; r++) dot[r] += by * row[r][x];
        }
        UNROLL for (i64 r = 0; r < KEYS; r++) {
            if (c + r >= n) break;
            store<T>(p + (c + r) * LANES, dot[r]);
            top = dot[r] > top || dot[r] != dot[r] ? dot[r] : top;
        }
    }
    Vec<T> total{};
    for (i64 c = 0; c < n; c++) {
        const Vec<T> w = exp(load(p + c * LANES) - top);
        total += w;
        store<T>(p + c * LANES, w);
    }
    for (i64 l = 0; l < L; l += WIDE) {
        Vec<T> sum[WIDE] = {};
        const i64 here = L - l < WIDE ? L - l : WIDE;
        for (i64 c = 0; c < n; c++) {
            const T* row = e + c * X + l;
            const Vec<T> w = load(p + c * LANES);
            if (here == WIDE)
                UNROLL for (i64 i = 0; i < WIDE; i++) sum[i] += w * row[i];
            else
                for (i64 i = 0; i < here; i++) sum[i] += w * row[i];
        }
        for (i64 i = 0; i < here; i++) {
            const Vec<T> mean = sum[i] / total;
            for (i64 h = 0; h < heads; h++) m[(h0 + h) * L + l + i] = mean[h];
        }
    }
}

// m [B, T, H, L]; q [B, T, H, X]; e [B, S, X], values are its first L columns; ids [B, T, k].
template <typename T>
void attend_selected(T* m, const T* q, const T* e, const i64* ids, i64 B, i64 Tn, i64 H, i64 X, i64 L, i64 S, i64 k,
                     double scale) {
    std::vector<T> near(k * X), p(k * LANES), turned(X * LANES);
    for (i64 b = 0; b < B; b++, e += S * X)
        for (i64 t = 0; t < Tn; t++, q += H * X, m += H * L, ids += k) {
            i64 n = 0;  // what is chosen lies far apart: it is fetched once, for all heads and both passes
            for (; n < k && ids[n] >= 0; n++) {
                if (n + AHEAD < k && ids[n + AHEAD] >= 0)
                    for (i64 x = 0; x < X; x += 64 / sizeof(T)) __builtin_prefetch(e + ids[n + AHEAD] * X + x);
                std::memcpy(&near[n * X], e + ids[n] * X, X * sizeof(T));
            }
            for (i64 h0 = 0; h0 < H; h0 += LANES)
                attend_heads<T>(m, q, near.data(), n, h0, H, X, L, T(scale), p.data(), turned.data());
        }
}

BOTH(attend_selected,
     (T* m, const T* q, const T* e, const i64* ids, i64 B, i64 Tn, i64 H, i64 X, i64 L, i64 S, i64 k, double scale),
     (m, q, e, ids, B, Tn, H, X, L, S, k, scale))

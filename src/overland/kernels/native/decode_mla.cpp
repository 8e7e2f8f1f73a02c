// One decoding step of an MLA mixer in its absorbed form, from input to output; the formula is in decode_mla.py.
#include <initializer_list>

#include "product.h"
#include "residual.h"
#include "room.h"

// What R pairs turn by; the first members go into the first half. x [2 R], out of place.
template <typename T> INLINE void rotate(T* y, const T* x, const T* cos, const T* sin, i64 R, bool interleaved) {
    for (i64 i = 0; i < R; i++) {
        const T a = interleaved ? x[2 * i] : x[i], b = interleaved ? x[2 * i + 1] : x[i + R];
        y[i] = a * cos[i] - b * sin[i], y[i + R] = b * cos[i] + a * sin[i];
    }
}

// Four heads times `at_hand` (up to four) slots; `whole`: X is a multiple of 16.
template <typename T, bool whole>
INLINE void tile(T* p, i64 slots, const T* q, const T* e, i64 at_hand, i64 heads, i64 X) {
    Vec<T> acc[LANES] = {};
    const T *e_1 = e + (at_hand > 1 ? X : 0), *e_2 = e + (at_hand > 2 ? 2 * X : 0), *e_3 = e + (at_hand > 3 ? 3 * X : 0);
    const T *q_1 = q + (heads > 1 ? X : 0), *q_2 = q + (heads > 2 ? 2 * X : 0), *q_3 = q + (heads > 3 ? 3 * X : 0);
    for (i64 c = 0; c < X; c += LANES) {
        auto at = [&](const T* x) __attribute__((always_inline)) { return whole ? load(x + c) : load(x + c, X - c); };
        const Vec<T> right[4] = {at(e), at(e_1), at(e_2), at(e_3)}, left[4] = {at(q), at(q_1), at(q_2), at(q_3)};
        UNROLL for (i64 i = 0; i < 4; i++) UNROLL for (i64 j = 0; j < 4; j++) acc[4 * i + j] += left[i] * right[j];
    }
    T out[LANES];
    store<T>(out, sums<T>(acc));
    for (i64 i = 0; i < heads; i++) std::memcpy(p + i * slots, out + 4 * i, at_hand * sizeof(T));
}

// p [H, slots] = q [H, X] . e_s for n slots of e [n, X]
template <typename T> void scores(T* p, i64 slots, const T* q, const T* e, i64 n, i64 H, i64 X) {
    for (i64 h = 0; h < H; h += 4)
        for (i64 s = 0; s < n; s += 4) {
            const i64 heads = H - h < 4 ? H - h : 4, at_hand = n - s < 4 ? n - s : 4;
            if (X % LANES == 0) tile<T, true>(p + h * slots + s, slots, q + h * X, e + s * X, at_hand, heads, X);
            else tile<T, false>(p + h * slots + s, slots, q + h * X, e + s * X, at_hand, heads, X);
        }
}

// m [H, L] = softmax_s(q [H, X] . e_s scale) e_s[:L] over n slots of e [n, X]; p [H, slots]
template <typename T>
INLINE void attend(T* m, T* p, i64 slots, const T* q, const T* e, i64 n, i64 H, i64 X, i64 L, T scale) {
    scores(p, slots, q, e, n, H, X);
    for (i64 h = 0; h < H; h++) {
        T* row = p + h * slots;
        const T top = largest(row, n);
        Vec<T> total{};
        for (i64 i = 0; i < n; i += LANES) {
            Vec<T> w = exp((load(row + i, n - i) - top) * scale);
            for (i64 j = n - i; j < LANES; j++) w[j] = 0;
            total += w;
            store<T>(row + i, w, n - i);
        }
        const T by = 1 / sum<T>(total);
        for (i64 i = 0; i < n; i += LANES) store<T>(row + i, load(row + i, n - i) * by, n - i);
    }
    product(m, L, p, slots, i64(1), e, X, H, n, L);
}

// w: q [H (F+R), D] and two nulls, or q_a [Q, D], its norm [Q] and q_b [H (F+R), Q]; kv_a [L+R, D], its norm [L];
// kv_b [H (F+V), L]; gate [H V, D] or null; o [D, H V]. cos, sin [N, R/2] or null. y and the residual's sources [N, D];
// latents [N, S, L+R], rows `stride` apart, of which lengths [N] slots are used: the new token's is written behind them.
template <typename T>
void mla_step(T* y, T* latents, const T* const* from, const T* const* w, const T* cos, const T* sin,
              const i64* lengths, i64 sources, i64 keeps, i64 N, i64 D, i64 H, i64 F, i64 R, i64 V, i64 L, i64 Q,
              i64 S, i64 stride, i64 interleaved, double scale, double latent_eps, double eps, double depth_eps) {
    const Residual<T> residual{from, sources, keeps, eps, depth_eps};
    const i64 X = L + R, G = F + R;
    i64 widest = D > H * V ? D : H * V;
    for (i64 size : {Q, L}) widest = widest > size ? widest : size;
    Room<T> room(N * (D + Q + H * G + X + 2 * H * X + 2 * H * V) + H * S + D + widest * PANEL);
    T *x = room.take(N * D), *query = room.take(D);
    T *r = room.take(N * Q), *q = room.take(N * H * G), *e = room.take(N * X);
    T *absorbed = room.take(N * H * X), *m = room.take(N * H * X), *o = room.take(N * H * V), *gate = room.take(N * H * V);
    T *p = room.take(H * S), *panel = room.take(widest * PANEL);

    residual.read(x, query, N, D);
    if (Q) {
        linear(r, Q, x, D, w[0], D, N, D, Q, panel, w[2]);
        for (i64 n = 0; n < N; n++) norm_row<T>(r + n * Q, r + n * Q, w[1], nullptr, Q, latent_eps);
    }
    Q ? linear(q, H * G, r, Q, w[2], Q, N, Q, H * G, panel, w[5])
      : linear(q, H * G, x, D, w[0], D, N, D, H * G, panel, w[5]);
    for (i64 h = 0; h < H; h++) {  // the key rows of kv_b, applied to the query
        product(absorbed + h * X, H * X, q + h * G, H * G, i64(1), w[5] + h * (F + V) * L, L, N, F, L);
        for (i64 n = 0; n < N; n++) {
            T *to = absorbed + (n * H + h) * X + L, *from = q + n * H * G + h * G + F;
            if (cos) rotate(to, from, cos + n * (R / 2), sin + n * (R / 2), R / 2, interleaved);
            else std::memcpy(to, from, R * sizeof(T));
        }
    }
    linear(e, X, x, D, w[3], D, N, D, X, panel, w[6] ? w[6] : w[7]);
    if (w[6]) linear(gate, H * V, x, D, w[6], D, N, D, H * V, panel, w[7]);
    for (i64 n = 0; n < N; n++) {
        T *row = latents + n * stride, *slot = row + lengths[n] * X;
        norm_row<T>(slot, e + n * X, w[4], nullptr, L, latent_eps);
        if (cos) rotate(slot + L, e + n * X + L, cos + n * (R / 2), sin + n * (R / 2), R / 2, interleaved);
        else std::memcpy(slot + L, e + n * X + L, R * sizeof(T));
        attend(m + n * H * L, p, S, absorbed + n * H * X, row, lengths[n] + 1, H, X, L, T(scale));
    }
    for (i64 h = 0; h < H; h++)
        linear(o + h * V, H * V, m + h * L, H * L, w[5] + (h * (F + V) + F) * L, L, N, L, V, panel);
    if (w[6])
        for (i64 i = 0; i < N * H * V; i += LANES) {
            const i64 n = N * H * V - i;
            store<T>(o + i, load(o + i, n) * sigmoid<T>(load(gate + i, n)), n);
        }
    linear(y, D, o, H * V, w[7], H * V, N, H * V, D, panel);
    residual.add(y, N, D);
}

BOTH(mla_step,
     (T* y, T* latents, const T* const* from, const T* const* w, const T* cos, const T* sin, const i64* lengths,
      i64 sources, i64 keeps, i64 N, i64 D, i64 H, i64 F, i64 R, i64 V, i64 L, i64 Q, i64 S, i64 stride,
      i64 interleaved, double scale, double latent_eps, double eps, double depth_eps),
     (y, latents, from, w, cos, sin, lengths, sources, keeps, N, D, H, F, R, V, L, Q, S, stride, interleaved, scale,
      latent_eps, eps, depth_eps))

// One decoding step of a KDA mixer, from its input to its output; the formula is in decode_kda.py.
#include "product.h"
#include "residual.h"
#include "room.h"

constexpr i64 WIDEST = 128;  // channels of a head

// SiLU of the convolution over u [rows, C] in place; the tail [rows, W-1, C] moves on by one token. taps [W, C].
template <typename T> void convolve(T* u, T* tail, const T* taps, i64 rows, i64 C, i64 W) {
    for (i64 r = 0; r < rows; r++, u += C, tail += (W - 1) * C)
        for (i64 c = 0; c < C; c += LANES) {
            const i64 n = C - c;
            const Vec<T> now = load(u + c, n);
            Vec<T> p{};
            for (i64 j = 0; j < W - 1; j++) {
                const Vec<T> x = load(tail + j * C + c, n);
                p += load(taps + j * C + c, n) * x;
                if (j) store<T>(tail + (j - 1) * C + c, x, n);
            }
            store<T>(tail + (W - 2) * C + c, now, n);
            p += load(taps + (W - 1) * C + c, n) * now;
            store<T>(u + c, p * sigmoid<T>(p), n);
        }
}

template <typename T> INLINE T inverse_length(const T* x, i64 K) {
    Vec<T> squares{};
    for (i64 c = 0; c < K; c += LANES) squares += load(x + c, K - c) * load(x + c, K - c);
    return 1 / std::sqrt(sum<T>(squares) + T(1e-6));
}

// S <- a S + k u^T, u = beta (v - (a S)^T k); o = S^T q. S [K, V]; V is NB vectors exactly or, where not `whole`, less.
template <typename T, i64 NB, bool whole>
void step(T* o, T* S, const T* q, const T* k, const T* v, const T* a, T beta, i64 K, i64 V) {
    auto at = [V](const T* x, i64 b) __attribute__((always_inline)) {
        return whole ? load(x + b * LANES) : load(x + b * LANES, V - b * LANES);
    };
    auto put = [V](T* x, i64 b, Vec<T> y) __attribute__((always_inline)) {
        whole ? store<T>(x + b * LANES, y) : store<T>(x + b * LANES, y, V - b * LANES);
    };
    const T q_by = inverse_length(q, K) / std::sqrt(T(K)), k_by = inverse_length(k, K);
    Vec<T> u[NB] = {}, y[NB] = {};
    for (i64 c = 0; c < K; c++)
        UNROLL for (i64 b = 0; b < NB; b++) u[b] += (a[c] * k[c]) * at(S + c * V, b);
    UNROLL for (i64 b = 0; b < NB; b++) u[b] = beta * (at(v, b) - k_by * u[b]) * k_by;
    for (i64 c = 0; c < K; c++)
        UNROLL for (i64 b = 0; b < NB; b++) {
            const Vec<T> s = a[c] * at(S + c * V, b) + k[c] * u[b];
            put(S + c * V, b, s);
            y[b] += q[c] * s;
        }
    UNROLL for (i64 b = 0; b < NB; b++) put(o, b, y[b] * q_by);
}

// The step for heads of K channels.
template <typename T> auto step_of(i64 K) {
    if constexpr (sizeof(T) == 4) {  // doubles are for checking
        if (K == LANES) return step<T, 1, true>;
        if (K == 2 * LANES) return step<T, 2, true>;
        if (K == 4 * LANES) return step<T, 4, true>;
        if (K == 8 * LANES) return step<T, 8, true>;
    }
    return step<T, WIDEST / LANES, false>;
}

// w: q, k, v [P, D], their taps [P, W], f_a [K, D], f_b [P, K], b [H, D], A_log [H], dt_bias [P], norm [K], o [D, P],
// and the gate: g [P, D] and null, or g_a [K, D] and g_b [P, K]. y and the residual's
// sources [N, D]; tail [N, W-1, 3 P]; state [N, H, K, K].
template <typename T>
void kda_step(T* y, T* tail, T* state, const T* const* from, const T* const* w, i64 sources, i64 keeps, i64 N, i64 D,
              i64 H, i64 K, i64 W, double bound, double head_eps, double eps, double depth_eps) {
    const Residual<T> residual{from, sources, keeps, eps, depth_eps};
    const i64 P = H * K, C = 3 * P, widest = D > P ? D : P;
    Room<T> room(N * (D + C + 2 * P + K + H) + D + W * C + widest * PANEL);
    T *x = room.take(N * D), *query = room.take(D);
    T *u = room.take(N * C), *z = room.take(N * P), *gate = room.take(N * P), *low = room.take(N * K);
    T *beta = room.take(N * H), *taps = room.take(W * C), *panel = room.take(widest * PANEL);

    residual.read(x, query, N, D);
    for (i64 part = 0; part < 3; part++) {
        linear(u + part * P, C, x, D, w[part], D, N, D, P, panel, w[part < 2 ? part + 1 : 6]);
        for (i64 c = 0; c < P; c++)
            for (i64 j = 0; j < W; j++) taps[j * C + part * P + c] = w[3 + part][c * W + j];
    }
    convolve(u, tail, taps, N, C, W);
    linear(low, K, x, D, w[6], D, N, D, K, panel, w[7]);
    linear(z, P, low, K, w[7], K, N, K, P, panel, w[13]);
    linear(beta, H, x, D, w[8], D, N, D, H, panel);
    if (w[14]) linear(low, K, x, D, w[13], D, N, D, K, panel, w[14]);
    w[14] ? linear(gate, P, low, K, w[14], K, N, K, P, panel, w[12])
          : linear(gate, P, x, D, w[13], D, N, D, P, panel, w[12]);

    const auto one = step_of<T>(K);
    for (i64 r = 0; r < N; r++)
        for (i64 h = 0; h < H; h++) {
            const i64 at = r * P + h * K;
            const T *q = u + r * C + h * K, rate = std::exp(w[9][h]), open = 1 / (1 + std::exp(-beta[r * H + h]));
            alignas(64) T a[WIDEST];
            for (i64 c = 0; c < K; c += LANES)
                store<T>(a + c, exp(log_decay<T>(load(z + at + c, K - c) + load(w[10] + h * K + c, K - c), rate, T(bound))));
            T *S = state + (r * H + h) * K * K, *o = z + at;  // what the decay was made of is not needed any more
            one(o, S, q, q + P, q + 2 * P, a, open, K, K);
            norm_row(o, o, w[11], gate + at, K, head_eps);
        }
    linear(y, D, z, P, w[12], P, N, P, D, panel);
    residual.add(y, N, D);
}

BOTH(kda_step,
     (T* y, T* tail, T* state, const T* const* from, const T* const* w, i64 sources, i64 keeps, i64 N, i64 D, i64 H,
      i64 K, i64 W, double bound, double head_eps, double eps, double depth_eps),
     (y, tail, state, from, w, sources, keeps, N, D, H, K, W, bound, head_eps, eps, depth_eps))

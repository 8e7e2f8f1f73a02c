// What several sources do to a row: the norm, the gated products, the router's choice.
#pragma once
#include "common.h"

template <typename T> INLINE T inverse_rms(const T* x, i64 D, double eps) {
    Vec<T> squares{};
    for (i64 c = 0; c < D; c += LANES) {
        const Vec<T> v = load(x + c, D - c);
        squares += v * v;
    }
    return 1 / std::sqrt(sum<T>(squares) / D + T(eps));
}

// y (may be x) = w x / rms(x), times sigmoid(gate) where there is one
template <typename T> INLINE void norm_row(T* y, const T* x, const T* w, const T* gate, i64 D, double eps) {
    const T by = inverse_rms(x, D, eps);
    for (i64 c = 0; c < D; c += LANES) {
        const i64 n = D - c;
        Vec<T> out = load(x + c, n) * by * load(w + c, n);
        if (gate) out *= sigmoid<T>(load(gate + c, n));
        store<T>(y + c, out, n);
    }
}

// Of x [n]; NaN where there is one.
template <typename T> INLINE T largest(const T* x, i64 n) {
    Vec<T> tops = splat(T(-INFINITY));
    i64 i = 0;
    for (; i + LANES <= n; i += LANES) {
        const Vec<T> here = load(x + i);
        const Vec<T> larger = tops >= here ? tops : here;  // here, where it is NaN
        tops = tops == tops ? larger : tops;
    }
    T top = -INFINITY;
    for (i64 j = 0; j < LANES; j++) top = tops[j] > top || tops[j] != tops[j] ? tops[j] : top;
    for (; i < n; i++) top = x[i] > top || x[i] != x[i] ? x[i] : top;
    return top;
}

template <typename T> struct Situ {
    Vec<T> open, tanh_gate, tanh_up;
    INLINE Situ(Vec<T> gate, Vec<T> up, T gate_cap, T up_cap)
        : open(sigmoid<T>(gate)), tanh_gate(tanh(gate * (1 / gate_cap))), tanh_up(tanh(up * (1 / up_cap))) {}
};

// y, gate, up [rows, width], rows of y `ldy` apart, those of gate and up `stride`. Caps of 0: SiLU(gate) up.
template <typename T>
void gated_rows(T* y, i64 ldy, const T* gate, const T* up, i64 rows, i64 width, i64 stride, T gate_cap, T up_cap) {
    const T caps = gate_cap * up_cap;
    for (i64 r = 0; r < rows; r++, y += ldy, gate += stride, up += stride)
        for (i64 c = 0; c < width; c += LANES) {
            const i64 n = width - c;
            const Vec<T> g = load(gate + c, n), u = load(up + c, n);
            if (caps == 0) {
                store<T>(y + c, g * sigmoid<T>(g) * u, n);
            } else {
                const Situ<T> s(g, u, gate_cap, up_cap);
                store<T>(y + c, caps * s.tanh_gate * s.open * s.tanh_up, n);
            }
        }
}

// The k largest of biased [E], largest first, of equals the first; `biased` is used up.
template <typename T> INLINE void top(i64* best, T* biased, i64 E, i64 k) {
    for (i64 j = 0; j < k; j++) {
        i64 at = 0;
        for (i64 e = 1; e < E; e++) at = biased[e] > biased[at] ? e : at;
        best[j] = at;
        biased[at] = -INFINITY;
    }
}

// p = softmax of x [n]
template <typename T> void softmax(T* p, const T* x, i64 n) {
    const T top = largest(x, n);
    T total = 0;
    for (i64 i = 0; i < n; i += LANES) store<T>(p + i, exp(load(x + i, n - i) - top), n - i);
    for (i64 i = 0; i < n; i++) total += p[i];
    for (i64 i = 0; i < n; i += LANES) store<T>(p + i, load(p + i, n - i) / total, n - i);
}

constexpr i64 MOST_GROUPS = 64;

// biased [E] becomes -inf outside the k best groups; a group is as good as its two best experts together.
template <typename T> void close_groups(T* biased, i64 E, i64 groups, i64 k) {
    const i64 each = E / groups;
    T worth[MOST_GROUPS];
    i64 best[MOST_GROUPS];
    bool open[MOST_GROUPS] = {};
    for (i64 g = 0; g < groups; g++) {
        T first = -INFINITY, second = -INFINITY;
        for (i64 e = g * each; e < (g + 1) * each; e++) {
            if (biased[e] > first) second = first, first = biased[e];
            else if (biased[e] > second) second = biased[e];
        }
        worth[g] = first + second;
    }
    top(best, worth, groups, k);
    for (i64 j = 0; j < k; j++) open[best[j]] = true;
    for (i64 e = 0; e < E; e++) biased[e] = open[e / each] ? biased[e] : -INFINITY;
}

// logits, scores [N, E]; bias [E]; experts, weights [N, k]; scratch [E]. With `replay` the experts are given. Scores are
// sigmoids, or one softmax; with groups only the experts of the best `k_groups` can be chosen.
template <typename T>
void route(T* scores, T* weights, i64* experts, T* scratch, const T* logits, const T* bias, i64 N, i64 E, i64 k,
           i64 replay, i64 renormalize, double scale, bool one_softmax = false, i64 groups = 1, i64 k_groups = 1) {
    for (i64 r = 0; r < N; r++, scores += E, logits += E, weights += k, experts += k) {
        if (one_softmax) softmax(scores, logits, E);
        for (i64 e = 0; e < E; e += LANES) {
            const Vec<T> s = one_softmax ? load(scores + e, E - e) : sigmoid<T>(load(logits + e, E - e));
            store<T>(scores + e, s, E - e);
            store<T>(scratch + e, s + load(bias + e, E - e), E - e);
        }
        if (!replay && groups > 1) close_groups(scratch, E, groups, k_groups);
        if (!replay) top(experts, scratch, E, k);
        T total = 0;
        for (i64 j = 0; j < k; j++) total += weights[j] = scores[experts[j]];
        const T by = renormalize ? T(scale) / (total + T(1e-20)) : T(scale);
        for (i64 j = 0; j < k; j++) weights[j] *= by;
    }
}

// KDA's log decay from z + bias; bound 0 stands for none
template <typename T> INLINE Vec<T> softplus(Vec<T> x) {
    Vec<T> y;
    for (i64 i = 0; i < LANES; i++) y[i] = std::log1p(std::exp(-std::fabs(x[i]))) + (x[i] > 0 ? x[i] : T(0));
    return y;
}
template <typename T> INLINE Vec<T> log_decay(Vec<T> x, T rate, T bound) {
    return bound != 0 ? bound * sigmoid<T>(rate * x) : -rate * softplus<T>(x);
}

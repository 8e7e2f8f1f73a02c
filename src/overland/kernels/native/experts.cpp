// The router's choice, the way to the experts and back, and the statistics of the load; the formulas are in routing.py.
#include "rows.h"

template <typename T>
void router_forward(T* scores, T* weights, i64* experts, T* scratch, const T* logits, const T* bias, i64 N, i64 E,
                    i64 k, i64 replay, i64 renormalize, double scale) {
    route(scores, weights, experts, scratch, logits, bias, N, E, k, replay, renormalize, scale);
}

// d_scores may be null.
template <typename T>
void router_backward(T* d_logits, const T* d_scores, const T* d_weights, const T* scores, const i64* experts, i64 N,
                     i64 E, i64 k, i64 renormalize, double scale) {
    for (i64 r = 0; r < N; r++, scores += E, d_logits += E, d_weights += k, experts += k) {
        for (i64 e = 0; e < E; e++) d_logits[e] = d_scores ? d_scores[r * E + e] : T(0);
        T total = 0, along = 0;
        for (i64 j = 0; j < k; j++) total += scores[experts[j]], along += scores[experts[j]] * d_weights[j];
        total += T(1e-20);
        for (i64 j = 0; j < k; j++)
            d_logits[experts[j]] += T(scale) * (renormalize ? (d_weights[j] - along / total) / total : d_weights[j]);
        for (i64 e = 0; e < E; e += LANES) {
            const Vec<T> s = load(scores + e, E - e);
            store<T>(d_logits + e, load(d_logits + e, E - e) * s * (1 - s), E - e);
        }
    }
}

// A stable counting sort of experts [N, k]: counts [E], for every choice its row in expert order, back [N, k].
template <typename T>
void order(T*, i64* back, i64* counts, i64* next, const i64* experts, i64 choices, i64 E) {
    for (i64 e = 0; e < E; e++) counts[e] = 0;
    for (i64 i = 0; i < choices; i++) counts[experts[i]]++;
    for (i64 e = 0, at = 0; e < E; at += counts[e++]) next[e] = at;
    for (i64 i = 0; i < choices; i++) back[i] = next[experts[i]]++;
}

// rows [N k, Z]: each token of z [N, Z] once for each of its choices, at back [N, k].
template <typename T> void scatter(T* rows, const T* z, const i64* back, i64 N, i64 k, i64 Z) {
    for (i64 r = 0; r < N; r++, z += Z)
        for (i64 j = 0; j < k; j++) std::memcpy(rows + *back++ * Z, z, Z * sizeof(T));
}

// u [N, Z] = sum_j weights [N, k] rows[back]; without weights the plain sum.
template <typename T> void gather(T* u, const T* rows, const i64* back, const T* weights, i64 N, i64 k, i64 Z) {
    for (i64 r = 0; r < N; r++, u += Z, back += k)
        for (i64 c = 0; c < Z; c += LANES) {
            Vec<T> total{};
            for (i64 j = 0; j < k; j++)
                total += (weights ? weights[r * k + j] : T(1)) * load(rows + back[j] * Z + c, Z - c);
            store<T>(u + c, total, Z - c);
        }
}

template <typename T>
void gather_backward(T* d_rows, T* d_weights, const T* d_u, const T* rows, const i64* back, const T* weights, i64 N,
                     i64 k, i64 Z) {
    for (i64 r = 0; r < N; r++, d_u += Z)
        for (i64 j = 0; j < k; j++, back++) {
            Vec<T> along{};
            const T by = weights[r * k + j];
            for (i64 c = 0; c < Z; c += LANES) {
                const Vec<T> d = load(d_u + c, Z - c);
                along += d * load(rows + *back * Z + c, Z - c);
                store<T>(d_rows + *back * Z + c, by * d, Z - c);
            }
            d_weights[r * k + j] = sum<T>(along);
        }
}

// counts [E, bins] (added to) of alpha_i - s_ij, alpha_i the (k+1)-th largest of s_i + bias; scratch [E], best [k+1].
template <typename T>
void margins(i64* counts, T* scratch, i64* best, const T* scores, const T* bias, i64 N, i64 E, i64 k, i64 bins,
             double low, double width) {
    for (i64 r = 0; r < N; r++, scores += E) {
        for (i64 e = 0; e < E; e++) scratch[e] = scores[e] + bias[e];
        top(best, scratch, E, k + 1);
        const T alpha = scores[best[k]] + bias[best[k]];
        for (i64 e = 0; e < E; e++) {
            const i64 bin = i64((alpha - scores[e] - T(low)) / T(width));
            counts[e * bins + (bin < 0 ? 0 : bin < bins ? bin : bins - 1)]++;
        }
    }
}

BOTH(router_forward,
     (T* scores, T* weights, i64* experts, T* scratch, const T* logits, const T* bias, i64 N, i64 E, i64 k, i64 replay,
      i64 renormalize, double scale),
     (scores, weights, experts, scratch, logits, bias, N, E, k, replay, renormalize, scale))
BOTH(router_backward,
     (T* d_logits, const T* d_scores, const T* d_weights, const T* scores, const i64* experts, i64 N, i64 E, i64 k,
      i64 renormalize, double scale),
     (d_logits, d_scores, d_weights, scores, experts, N, E, k, renormalize, scale))
BOTH(order, (T* kind, i64* back, i64* counts, i64* next, const i64* experts, i64 choices, i64 E),
     (kind, back, counts, next, experts, choices, E))
BOTH(scatter, (T* rows, const T* z, const i64* back, i64 N, i64 k, i64 Z), (rows, z, back, N, k, Z))
BOTH(gather, (T* u, const T* rows, const i64* back, const T* weights, i64 N, i64 k, i64 Z),
     (u, rows, back, weights, N, k, Z))
BOTH(gather_backward,
     (T* d_rows, T* d_weights, const T* d_u, const T* rows, const i64* back, const T* weights, i64 N, i64 k, i64 Z),
     (d_rows, d_weights, d_u, rows, back, weights, N, k, Z))
BOTH(margins,
     (i64* counts, T* scratch, i64* best, const T* scores, const T* bias, i64 N, i64 E, i64 k, i64 bins, double low,
      double width),
     (counts, scratch, best, scores, bias, N, E, k, bins, low, width))

// The feed-forwards of one decoding step, dense and with experts; the formulas are in decode_ffn.py.
#include "product.h"
#include "residual.h"
#include "room.h"

// y [N, D] = down( gated(gate x, up x) ), or added to y; h [N, 2 W], sum [N, D]
template <typename T>
void glu(T* y, const T* x, const T* gate, const T* up, const T* down, i64 N, i64 D, i64 W, T gate_cap, T up_cap,
         T* h, T* panel, T* sum = nullptr) {
    linear(h, 2 * W, x, D, gate, D, N, D, W, panel, up);
    linear(h + W, 2 * W, x, D, up, D, N, D, W, panel, down);
    gated_rows(h, 2 * W, h, h + W, N, W, 2 * W, gate_cap, up_cap);
    linear(sum ? sum : y, D, h, 2 * W, down, W, N, W, D, panel);
    if (sum)
        for (i64 i = 0; i < N * D; i += LANES) store<T>(y + i, load(y + i, N * D - i) + load(sum + i, N * D - i), N * D - i);
}

inline i64 widest(i64 a, i64 b) { return a > b ? a : b; }

// w: gate, up [W, D], down [D, W]; y and the residual's sources [N, D].
template <typename T>
void dense_step(T* y, const T* const* from, const T* const* w, i64 sources, i64 keeps, i64 N, i64 D, i64 W,
                double eps, double depth_eps, double gate_cap, double up_cap) {
    const Residual<T> residual{from, sources, keeps, eps, depth_eps};
    Room<T> room(N * (D + 2 * W) + D + widest(D, W) * PANEL);
    T *x = room.take(N * D), *h = room.take(N * 2 * W), *query = room.take(D), *panel = room.take(widest(D, W) * PANEL);
    residual.read(x, query, N, D);
    glu(y, x, w[0], w[1], w[2], N, D, W, T(gate_cap), T(up_cap), h, panel);
    residual.add(y, N, D);
}

// u [N, Z] = sum over a token's experts of weight * expert(z); choices [N k] lie in the experts' order.
template <typename T>
void routed(T* u, const T* z, const T* gate_up, const T* down, const T* weights, const i64* choices, const i64* counts,
            i64 N, i64 E, i64 k, i64 Z, i64 I, T gate_cap, T up_cap, T* rows, T* h, T* out) {
    std::memset(u, 0, N * Z * sizeof(T));
    for (i64 e = 0; e < E; choices += counts[e++]) {
        const i64 m = counts[e];
        if (!m) continue;
        i64 after = e + 1;  // the expert whose weights are fetched meanwhile
        while (after < E && !counts[after]) after++;
        const T* next_in = after < E ? gate_up + after * Z * 2 * I : nullptr;
        const T* next_out = after < E ? down + after * I * Z : nullptr;
        for (i64 r = 0; r < m; r++) std::memcpy(rows + r * Z, z + choices[r] / k * Z, Z * sizeof(T));
        product(h, 2 * I, rows, Z, i64(1), gate_up + e * Z * 2 * I, 2 * I, m, Z, 2 * I, next_in);
        gated_rows(h, 2 * I, h, h + I, m, I, 2 * I, gate_cap, up_cap);
        product(out, Z, h, 2 * I, i64(1), down + e * I * Z, Z, m, I, Z, next_out);
        for (i64 r = 0; r < m; r++) {
            T* to = u + choices[r] / k * Z;
            for (i64 c = 0; c < Z; c += LANES) {
                const i64 n = Z - c;
                store<T>(to + c, load(to + c, n) + weights[choices[r]] * load(out + r * Z + c, n), n);
            }
        }
    }
}

// w: router [E, D], bias [E], gate_up [E, Z, 2 I], down [E, I, Z]; latent down [Z, D], norm [Z] and up [D, Z], or null
// and Z = D; shared gate, up [S, D] and down [D, S], or null. y and the residual's sources [N, D]; scores [N, E];
// experts [N, k]; counts [E].
template <typename T>
void experts_step(T* y, T* scores, i64* experts, i64* counts, const T* const* from, const T* const* w, i64 sources,
                  i64 keeps, i64 N, i64 D, i64 E, i64 k, i64 Z, i64 I, i64 S, i64 renormalize, i64 softmax,
                  i64 groups, i64 k_groups, double scale,
                  double gate_cap, double up_cap, double latent_eps, double eps, double depth_eps) {
    const Residual<T> residual{from, sources, keeps, eps, depth_eps};
    const i64 W = widest(I, S), K = widest(widest(D, Z), S);
    Room<T> room(N * (k + E + 4 * Z + 2 * D + 2 * W) + E + D + K * PANEL);
    T *x = room.take(N * D), *weights = room.take(N * k), *logits = room.take(N * E), *biased = room.take(E);
    T *z = room.take(N * Z), *u = room.take(N * Z), *rows = room.take(N * Z), *out = room.take(N * Z);
    T *sum = room.take(N * D), *h = room.take(N * 2 * W), *query = room.take(D), *panel = room.take(K * PANEL);
    Room<i64> places(N * k + E);
    i64 *choices = places.take(N * k), *next = places.take(E);

    residual.read(x, query, N, D);
    linear(logits, E, x, D, w[0], D, N, D, E, panel, w[4]);
    route(scores, weights, experts, biased, logits, w[1], N, E, k, i64(0), renormalize, scale, softmax, groups,
          k_groups);
    for (i64 e = 0; e < E; e++) counts[e] = 0;
    for (i64 i = 0; i < N * k; i++) counts[experts[i]]++;
    for (i64 e = 0, at = 0; e < E; at += counts[e++]) next[e] = at;
    for (i64 i = 0; i < N * k; i++) choices[next[experts[i]]++] = i;

    const bool latent = w[4];
    if (latent) linear(z, Z, x, D, w[4], D, N, D, Z, panel);
    routed(latent ? u : y, latent ? z : x, w[2], w[3], weights, choices, counts, N, E, k, Z, I, T(gate_cap), T(up_cap),
           rows, h, out);
    if (latent) {
        for (i64 r = 0; r < N; r++) norm_row<T>(u + r * Z, u + r * Z, w[5], nullptr, Z, latent_eps);
        linear(y, D, u, Z, w[6], Z, N, Z, D, panel, w[7]);
    }
    if (w[7]) glu(y, x, w[7], w[8], w[9], N, D, S, T(gate_cap), T(up_cap), h, panel, sum);
    residual.add(y, N, D);
}

BOTH(dense_step,
     (T* y, const T* const* from, const T* const* w, i64 sources, i64 keeps, i64 N, i64 D, i64 W, double eps,
      double depth_eps, double gate_cap, double up_cap),
     (y, from, w, sources, keeps, N, D, W, eps, depth_eps, gate_cap, up_cap))
BOTH(experts_step,
     (T* y, T* scores, i64* experts, i64* counts, const T* const* from, const T* const* w, i64 sources, i64 keeps,
      i64 N, i64 D, i64 E, i64 k, i64 Z, i64 I, i64 S, i64 renormalize, i64 softmax, i64 groups, i64 k_groups,
      double scale, double gate_cap, double up_cap, double latent_eps, double eps, double depth_eps),
     (y, scores, experts, counts, from, w, sources, keeps, N, D, E, k, Z, I, S, renormalize, softmax, groups, k_groups,
      scale, gate_cap, up_cap, latent_eps, eps, depth_eps))

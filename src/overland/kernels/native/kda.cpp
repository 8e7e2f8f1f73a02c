// Kimi Delta Attention in chunks of 16 tokens, forward and backward, and token by token for decoding.
//
// With a = exp(g), a document's first token has a = 0: what came before is forgotten. Inside a chunk, with the products
// written over tokens r and every sum over channels c,
//
//     in_i = prod_{r<=i} a_r        out_i = prod_{r>i} a_r        between_ij = prod_{j<r<=i} a_r
//     A_ij = beta_i sum k_i k_j between_ij  (j < i)               P_ij = sum q_i k_j between_ij  (j <= i)
//     (I + A) U = beta (V - (k in) S)     O = (q in) S + P U      S <- in_15 S + (k out)^T U
//
// Every product is formed by multiplying, never as exp(G_i) exp(-G_j): all factors are at most 1, so nothing can
// overflow however strong the decay. A padded token (past a row's length) has k = q = v = 0, beta = 0, a = 1.
#include <initializer_list>

#include "common.h"

constexpr i64 C = 16;  // tokens in a chunk: one vector

// x with rows of NB vectors; rows and columns past what the tensor has are zero.
template <typename T, i64 NB> struct Tile {
    static constexpr i64 width = NB * LANES;
    alignas(64) T x[C][width];
    INLINE T* operator[](i64 i) { return x[i]; }
    INLINE const T* operator[](i64 i) const { return x[i]; }
    INLINE Vec<T> at(i64 i, i64 b) const { return load(&x[i][b * LANES]); }
    INLINE void set(i64 i, i64 b, Vec<T> y) { store<T>(&x[i][b * LANES], y); }
    void read(const T* from, i64 stride, i64 tokens, i64 n) {
        for (i64 i = 0; i < C; i++)
            for (i64 b = 0; b < NB; b++)
                set(i, b, i < tokens && b * LANES < n ? load(from + i * stride + b * LANES, n - b * LANES) : Vec<T>{});
    }
    void write(T* to, i64 stride, i64 tokens, i64 n) const {
        for (i64 i = 0; i < tokens; i++)
            for (i64 b = 0; b * LANES < n; b++) store<T>(to + i * stride + b * LANES, at(i, b), n - b * LANES);
    }
    static void clear(T* to, i64 stride, i64 from, i64 tokens, i64 n) {  // what padding gives is zero
        for (i64 i = from; i < tokens; i++) std::memset(to + i * stride, 0, n * sizeof(T));
    }
};

// The state, keys as rows.
template <typename T, i64 NB> struct State {
    static constexpr i64 width = NB * LANES;
    alignas(64) T x[width][width];
    INLINE Vec<T> at(i64 c, i64 b) const { return load(&x[c][b * LANES]); }
    INLINE void set(i64 c, i64 b, Vec<T> y) { store<T>(&x[c][b * LANES], y); }
    void read(const T* from, i64 K, i64 V) {
        for (i64 c = 0; c < width; c++)
            for (i64 b = 0; b < NB; b++)
                set(c, b, from && c < K && b * LANES < V ? load(from + c * V + b * LANES, V - b * LANES) : Vec<T>{});
    }
    void write(T* to, i64 K, i64 V) const {
        for (i64 c = 0; c < K; c++)
            for (i64 b = 0; b * LANES < V; b++) store<T>(to + c * V + b * LANES, at(c, b), V - b * LANES);
    }
};

template <typename T> struct Square {  // [i][j], a row is a vector
    alignas(64) T x[C][C];
    INLINE Vec<T> row(i64 i) const { return load(x[i]); }
    INLINE void set(i64 i, Vec<T> y) { store<T>(x[i], y); }
};

template <typename T> INLINE Vec<T> lanes() { return Vec<T>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
template <typename T> INLINE Vec<T> one_at(i64 lane) {
    return lanes<T>() == splat(T(lane)) ? splat(T(1)) : Vec<T>{};
}
template <typename T> INLINE Vec<T> keep_below(Vec<T> x, i64 count) {
    return lanes<T>() < splat(T(count)) ? x : Vec<T>{};
}

template <typename T> __attribute__((noinline)) void transpose(T* to, i64 stride_to, const T* from, i64 stride) {
    for (i64 i = 0; i < C; i++)
        for (i64 j = 0; j < C; j++) to[j * stride_to + i] = from[i * stride + j];
}
// [C][width] to [width][C]: a row is then one channel, its lanes the tokens; and back.
template <typename T, i64 NB> void tokens_last(T (*to)[C], const Tile<T, NB>& from) {
    for (i64 b = 0; b < NB; b++) transpose<T>(to[b * LANES], C, &from.x[0][b * LANES], from.width);
}
template <typename T, i64 NB> void tokens_first(Tile<T, NB>& to, const T (*from)[C]) {
    for (i64 b = 0; b < NB; b++) transpose<T>(&to.x[0][b * LANES], to.width, from[b * LANES], C);
}

// y (+)= x S for the chunk's 16 rows, in blocks that fit the registers.
template <typename T, i64 NB> void times_state(Tile<T, NB>& y, const Tile<T, NB>& x, const State<T, NB>& S, i64 K) {
    constexpr i64 N = NB < 4 ? NB : 4, R = 16 / N < C ? 16 / N : C;
    for (i64 b = 0; b < NB; b += N)
        for (i64 i = 0; i < C; i += R) {
            Vec<T> acc[R][N] = {};
            for (i64 c = 0; c < K; c++) {
                Vec<T> s[N];
                UNROLL for (i64 n = 0; n < N; n++) s[n] = S.at(c, b + n);
                UNROLL for (i64 r = 0; r < R; r++)
                    UNROLL for (i64 n = 0; n < N; n++) acc[r][n] += x[i + r][c] * s[n];
            }
            UNROLL for (i64 r = 0; r < R; r++)
                UNROLL for (i64 n = 0; n < N; n++) y.set(i + r, b + n, acc[r][n]);
        }
}

// S <- scale S + x^T u (rows of S scaled), or with `minus` also - y^T w.
template <typename T, i64 NB, bool minus>
void add_outer(State<T, NB>& S, const T* scale, const Tile<T, NB>& x, const Tile<T, NB>& u, const Tile<T, NB>* y,
               const Tile<T, NB>* w, i64 K) {
    constexpr i64 N = NB < 4 ? NB : 4, R = 8 / N > 2 ? 8 / N : 2;
    for (i64 b = 0; b < NB; b += N)
        for (i64 c = 0; c < K; c += R) {
            Vec<T> acc[R][N];
            UNROLL for (i64 r = 0; r < R; r++)
                UNROLL for (i64 n = 0; n < N; n++) acc[r][n] = scale[c + r] * S.at(c + r, b + n);
            for (i64 i = 0; i < C; i++)
                UNROLL for (i64 r = 0; r < R; r++)
                    UNROLL for (i64 n = 0; n < N; n++) {
                        acc[r][n] += x[i][c + r] * u.at(i, b + n);
                        if (minus) acc[r][n] -= (*y)[i][c + r] * w->at(i, b + n);
                    }
            UNROLL for (i64 r = 0; r < R; r++)
                UNROLL for (i64 n = 0; n < N; n++) S.set(c + r, b + n, acc[r][n]);
        }
}

// One head of one row of the batch: where its tensors begin, and how far apart tokens are.
template <typename T> struct Head {
    const T *q, *k, *v, *g, *beta;
    const i64* documents;
    i64 H, K, V, tokens, padded;
    bool unit;
};

// What forward and backward both need of a chunk.
template <typename T, i64 NB> struct Chunk {
    static constexpr i64 width = NB * LANES;
    Tile<T, NB> q, k, v, a, in, out, k_in, u;
    T beta[C], q_scale[C], k_scale[C];  // 1 / length, and for q also K^-1/2
    bool reset[C];
    Square<T> A, P;  // A without its beta
    i64 first, tokens;

    void read(const Head<T>& h, i64 from) {
        first = from;
        tokens = h.tokens - from < C ? h.tokens - from : C;
        const i64 sk = h.H * h.K, sv = h.H * h.V;
        q.read(h.q + first * sk, sk, tokens, h.K);
        k.read(h.k + first * sk, sk, tokens, h.K);
        v.read(h.v + first * sv, sv, tokens, h.V);
        a.read(h.g + first * sk, sk, tokens, h.K);
        for (i64 i = 0; i < C; i++) {
            const i64 t = first + i;
            beta[i] = i < tokens ? h.beta[t * h.H] : T(0);
            reset[i] = i < tokens && t > 0 && h.documents && h.documents[t] != h.documents[t - 1];
            q_scale[i] = h.unit ? scale(q, i, T(1) / std::sqrt(T(h.K))) : T(1);
            k_scale[i] = h.unit ? scale(k, i, T(1)) : T(1);
            for (i64 b = 0; b < NB; b++) {
                a.set(i, b, reset[i] ? Vec<T>{} : exp(a.at(i, b)));
                in.set(i, b, i ? in.at(i - 1, b) * a.at(i, b) : a.at(i, b));
            }
        }
        for (i64 i = C - 1; i >= 0; i--)
            for (i64 b = 0; b < NB; b++)
                out.set(i, b, i < C - 1 ? out.at(i + 1, b) * a.at(i + 1, b) : splat(T(1)));
        for (i64 i = 0; i < C; i++)
            for (i64 b = 0; b < NB; b++) k_in.set(i, b, k.at(i, b) * in.at(i, b));
    }

    // A_ij and P_ij: t holds k_j between_ij, one channel a vector, its lanes the tokens j.
    void pairs(i64 K) {
        Vec<T> t[width];
        for (i64 c = 0; c < K; c++) t[c] = Vec<T>{};
        const i64 even = K & ~i64(1);
        for (i64 i = 0; i < C; i++) {
            const Vec<T> e = one_at<T>(i);
            Vec<T> sum_a[2] = {}, sum_p[2] = {};
            auto step = [&](i64 c, i64 way) __attribute__((always_inline)) {
                t[c] *= a[i][c];
                sum_a[way] += t[c] * k[i][c];
                t[c] += e * k[i][c];
                sum_p[way] += t[c] * q[i][c];
            };
            for (i64 c = 0; c < even; c += 2) step(c, 0), step(c + 1, 1);
            if (even < K) step(even, 0);
            A.set(i, sum_a[0] + sum_a[1]);
            P.set(i, sum_p[0] + sum_p[1]);
        }
    }

    // u from x = beta (v - k_in S), row by row.
    void solve() {
        for (i64 i = 0; i < C; i++) {
            Vec<T> sum[NB] = {};
            for (i64 j = 0; j < i; j++)
                UNROLL for (i64 b = 0; b < NB; b++) sum[b] += A.x[i][j] * u.at(j, b);
            UNROLL for (i64 b = 0; b < NB; b++) u.set(i, b, u.at(i, b) - beta[i] * sum[b]);
        }
    }

  private:
    T scale(Tile<T, NB>& x, i64 i, T factor) {
        Vec<T> squares{};
        for (i64 b = 0; b < NB; b++) squares += x.at(i, b) * x.at(i, b);
        const T by = factor / std::sqrt(sum<T>(squares) + T(1e-6));
        for (i64 b = 0; b < NB; b++) x.set(i, b, x.at(i, b) * by);
        return by;
    }
};

template <typename T, i64 NB> void forward_head(const Head<T>& h, State<T, NB>& S, T* o, T* states) {
    Chunk<T, NB> x;
    Tile<T, NB> y, q_in, k_out;
    y.clear(o, h.H * h.V, h.tokens, h.padded, h.V);
    for (i64 first = 0; first < h.tokens; first += C) {
        if (states) S.write(states + first / C * h.K * h.V, h.K, h.V);
        x.read(h, first);
        x.pairs(h.K);
        times_state(x.u, x.k_in, S, h.K);
        for (i64 i = 0; i < C; i++)
            for (i64 b = 0; b < NB; b++) {
                x.u.set(i, b, x.beta[i] * (x.v.at(i, b) - x.u.at(i, b)));
                q_in.set(i, b, x.q.at(i, b) * x.in.at(i, b));
                k_out.set(i, b, x.k.at(i, b) * x.out.at(i, b));
            }
        x.solve();
        times_state(y, q_in, S, h.K);
        for (i64 i = 0; i < C; i++)
            for (i64 b = 0; b < NB; b++) {
                Vec<T> acc = y.at(i, b);
                for (i64 j = 0; j <= i; j++) acc += x.P.x[i][j] * x.u.at(j, b);
                y.set(i, b, acc);
            }
        y.write(o + first * h.H * h.V, h.H * h.V, x.tokens, h.V);
        add_outer<T, NB, false>(S, x.in[C - 1], k_out, x.u, nullptr, nullptr, h.K);
    }
}

template <typename T> struct HeadGradient {
    const T* o;
    T *q, *k, *v, *g, *beta;
};

template <typename T, i64 NB>
void backward_head(const Head<T>& h, const HeadGradient<T>& d, State<T, NB>& dS, const T* states) {
    constexpr i64 width = NB * LANES;
    Chunk<T, NB> x;
    State<T, NB> S;
    Tile<T, NB> d_o, rest, d_u, d_q, d_k, d_g, q_in, k_out;
    alignas(64) T o_t[width][C], v_t[width][C], u_t[width][C], q_c[width][C], k_c[width][C], out_c[width][C];
    alignas(64) T kept[width];
    Square<T> d_A, d_P;
    const i64 sk = h.H * h.K, sv = h.H * h.V;
    for (T* to : {d.q, d.k, d.g}) d_q.clear(to, sk, h.tokens, h.padded, h.K);
    d_u.clear(d.v, sv, h.tokens, h.padded, h.V);
    for (i64 t = h.tokens; t < h.padded; t++) d.beta[t * h.H] = 0;
    for (i64 first = (h.tokens - 1) / C * C; first >= 0; first -= C) {
        S.read(states + first / C * h.K * h.V, h.K, h.V);
        x.read(h, first);
        x.pairs(h.K);
        times_state(rest, x.k_in, S, h.K);
        for (i64 i = 0; i < C; i++)
            for (i64 b = 0; b < NB; b++) {
                rest.set(i, b, x.v.at(i, b) - rest.at(i, b));
                x.u.set(i, b, x.beta[i] * rest.at(i, b));
                q_in.set(i, b, x.q.at(i, b) * x.in.at(i, b));
                k_out.set(i, b, x.k.at(i, b) * x.out.at(i, b));
            }
        x.solve();

        // through O = (q in) S + P U and S' = in S + (k out)^T U to U, and through the solve to beta (v - k_in S)
        d_o.read(d.o + first * sv, sv, x.tokens, h.V);
        times_state(d_u, k_out, dS, h.K);
        for (i64 j = C - 1; j >= 0; j--)
            for (i64 b = 0; b < NB; b++) {
                Vec<T> acc = d_u.at(j, b);
                for (i64 i = j; i < C; i++) acc += x.P.x[i][j] * d_o.at(i, b);
                for (i64 i = j + 1; i < C; i++) acc -= x.beta[i] * x.A.x[i][j] * d_u.at(i, b);
                d_u.set(j, b, acc);
            }

        tokens_last(u_t, x.u);
        for (i64 i = 0; i < C; i++) {
            Vec<T> to_p{}, to_a{}, to_beta{};
            for (i64 v = 0; v < h.V; v++) {
                to_p += d_o[i][v] * load(u_t[v]);
                to_a -= d_u[i][v] * load(u_t[v]);
            }
            to_a = keep_below<T>(to_a, i);
            d_P.set(i, keep_below<T>(to_p, i + 1));
            d_A.set(i, x.beta[i] * to_a);
            to_beta = to_a * x.A.row(i);
            for (i64 b = 0; b < NB; b++) {
                to_beta += d_u.at(i, b) * rest.at(i, b);
                d_u.set(i, b, x.beta[i] * d_u.at(i, b));  // from here on the gradient of v
            }
            if (i < x.tokens) d.beta[(first + i) * h.H] = sum<T>(to_beta);
        }
        d_u.write(d.v + first * sv, sv, x.tokens, h.V);

        // to q_in, k_in and k_out, channel by channel; the state's decay collects in `kept`
        tokens_last(o_t, d_o);
        tokens_last(v_t, d_u);
        for (i64 c = 0; c < width; c += 4) {
            Vec<T> to_q[4] = {}, to_k[4] = {}, to_out[4] = {};
            for (i64 v = 0; v < h.V; v++)
                UNROLL for (i64 r = 0; r < 4; r++) {
                    to_q[r] += S.x[c + r][v] * load(o_t[v]);
                    to_k[r] -= S.x[c + r][v] * load(v_t[v]);
                    to_out[r] += dS.x[c + r][v] * load(u_t[v]);
                }
            UNROLL for (i64 r = 0; r < 4; r++) {
                store<T>(q_c[c + r], to_q[r]), store<T>(k_c[c + r], to_k[r]), store<T>(out_c[c + r], to_out[r]);
                Vec<T> both{};
                for (i64 b = 0; b < NB; b++) both += S.at(c + r, b) * dS.at(c + r, b);
                kept[c + r] = sum<T>(both);
            }
        }
        tokens_first(d_q, q_c);
        tokens_first(d_k, k_c);
        tokens_first(d_g, out_c);  // of k_out, for now
        add_outer<T, NB, true>(dS, x.in[C - 1], q_in, d_o, &x.k_in, &d_u, h.K);

        // the pairs, both ways: as i (rows of A and P) and as j (columns); then the decay's exponents
        for (i64 b = 0; b < NB; b++) {
            Vec<T> t[C], kk[C], qq[C], row_k[C], column[C];
            for (i64 i = 0; i < C; i++) {
                Vec<T> to_k{}, to_q{};
                for (i64 j = 0; j < i; j++) {
                    t[j] *= x.a.at(i, b);
                    to_k += d_A.x[i][j] * t[j];
                    to_q += d_P.x[i][j] * t[j];
                }
                t[i] = x.k.at(i, b);
                row_k[i] = to_k + x.in.at(i, b) * d_k.at(i, b);
                d_q.set(i, b, to_q + d_P.x[i][i] * t[i] + x.in.at(i, b) * d_q.at(i, b));
            }
            for (i64 j = C - 1; j >= 0; j--) {
                Vec<T> acc{};
                for (i64 i = j + 1; i < C; i++) {
                    kk[i] *= x.a.at(j + 1, b), qq[i] *= x.a.at(j + 1, b);
                    acc += d_A.x[i][j] * kk[i] + d_P.x[i][j] * qq[i];
                }
                kk[j] = x.k.at(j, b), qq[j] = x.q.at(j, b);
                column[j] = acc + d_P.x[j][j] * qq[j];
            }
            Vec<T> later = load(kept + b * LANES) * x.in.at(C - 1, b);
            for (i64 i = 0; i < C; i++) later += k_out.at(i, b) * d_g.at(i, b);
            for (i64 i = C - 1; i >= 0; i--) {
                const Vec<T> to_out = x.out.at(i, b) * d_g.at(i, b);
                later += x.q.at(i, b) * d_q.at(i, b) + x.k.at(i, b) * (row_k[i] - column[i] - to_out);
                d_k.set(i, b, row_k[i] + column[i] + to_out);
                d_g.set(i, b, x.reset[i] ? Vec<T>{} : later);
            }
        }
        if (h.unit) {
            const T root = std::sqrt(T(h.K));
            for (i64 i = 0; i < C; i++) {  // y = s x with s = f / |x|: dx = s (dy - y (y . dy) / f^2)
                Vec<T> along_q{}, along_k{};
                for (i64 b = 0; b < NB; b++) {
                    along_q += x.q.at(i, b) * d_q.at(i, b);
                    along_k += x.k.at(i, b) * d_k.at(i, b);
                }
                const T by_q = sum<T>(along_q) * root * root, by_k = sum<T>(along_k);
                for (i64 b = 0; b < NB; b++) {
                    d_q.set(i, b, x.q_scale[i] * (d_q.at(i, b) - by_q * x.q.at(i, b)));
                    d_k.set(i, b, x.k_scale[i] * (d_k.at(i, b) - by_k * x.k.at(i, b)));
                }
            }
        }
        d_q.write(d.q + first * sk, sk, x.tokens, h.K);
        d_k.write(d.k + first * sk, sk, x.tokens, h.K);
        d_g.write(d.g + first * sk, sk, x.tokens, h.K);
    }
}

// Token by token, the state where it lies: what decoding uses.
template <typename T, i64 NB> void step_head(const Head<T>& h, T* S, const T* before, T* o) {
    if (h.tokens == 0) std::memcpy(S, before, h.K * h.V * sizeof(T));
    const i64 blocks = (h.V + LANES - 1) / LANES;
    Tile<T, NB>::clear(o, h.H * h.V, h.tokens, h.padded, h.V);
    alignas(64) T q[NB * LANES], k[NB * LANES], a[NB * LANES];
    for (i64 t = 0; t < h.tokens; t++) {
        const i64 at = t * h.H * h.K;
        const bool reset = t > 0 && h.documents && h.documents[t] != h.documents[t - 1];
        T qs = 1, ks = 1;
        if (h.unit) {
            Vec<T> qq{}, kk{};
            for (i64 c = 0; c < h.K; c += LANES) {
                const Vec<T> x = load(h.q + at + c, h.K - c), y = load(h.k + at + c, h.K - c);
                qq += x * x, kk += y * y;
            }
            qs = 1 / std::sqrt(T(h.K) * (sum<T>(qq) + T(1e-6))), ks = 1 / std::sqrt(sum<T>(kk) + T(1e-6));
        }
        for (i64 c = 0; c < h.K; c += LANES) {
            store<T>(q + c, load(h.q + at + c, h.K - c) * qs);
            store<T>(k + c, load(h.k + at + c, h.K - c) * ks);
            store<T>(a + c, reset ? Vec<T>{} : exp(load(h.g + at + c, h.K - c)));
        }
        Vec<T> u[NB] = {}, y[NB] = {};
        const T* old = t ? S : before;
        for (i64 c = 0; c < h.K; c++)
            for (i64 b = 0; b < blocks; b++) {
                const Vec<T> s = a[c] * load(old + c * h.V + b * LANES, h.V - b * LANES);
                store<T>(S + c * h.V + b * LANES, s, h.V - b * LANES);
                u[b] += k[c] * s;
            }
        for (i64 b = 0; b < blocks; b++)
            u[b] = h.beta[t * h.H] * (load(h.v + t * h.H * h.V + b * LANES, h.V - b * LANES) - u[b]);
        for (i64 c = 0; c < h.K; c++)
            for (i64 b = 0; b < blocks; b++) {
                const Vec<T> s = load(S + c * h.V + b * LANES, h.V - b * LANES) + k[c] * u[b];
                store<T>(S + c * h.V + b * LANES, s, h.V - b * LANES);
                y[b] += q[c] * s;
            }
        for (i64 b = 0; b < blocks; b++)
            store<T>(o + t * h.H * h.V + b * LANES, y[b], h.V - b * LANES);
    }
}

template <typename T, typename F>
void each_head(i64 B, i64 Tn, i64 H, i64 K, i64 V, const T* q, const T* k, const T* v, const T* g, const T* beta,
               const i64* documents, const i64* lengths, i64 unit, F run) {
    for (i64 b = 0; b < B; b++)
        for (i64 h = 0; h < H; h++) {
            const i64 sk = b * Tn * H * K + h * K, sv = b * Tn * H * V + h * V, tokens = lengths ? lengths[b] : Tn;
            run(Head<T>{q + sk, k + sk, v + sv, g + sk, beta + b * Tn * H + h,
                        documents ? documents + b * Tn : nullptr, H, K, V, tokens < Tn ? tokens : Tn, Tn, unit != 0},
                sk, sv, b * Tn * H + h, b * H + h);
        }
}

// Calls run with the least number of vectors, of 1, 2, 4 and 8, that holds a row, as a constant.
template <i64 N> struct Constant {
    static constexpr i64 value = N;
};
template <typename T, typename F> void by_width(i64 size, F run) {
    constexpr bool narrow = sizeof(T) == 4;  // doubles are for checking: two widths compile in half the time
    if (narrow && size <= 16) run(Constant<narrow ? 1 : 2>{});
    else if (size <= 32) run(Constant<2>{});
    else if (narrow && size <= 64) run(Constant<narrow ? 4 : 8>{});
    else run(Constant<8>{});
}

// q, k, g [B, T, H, K], v, o [B, T, H, V], beta [B, T, H]; state (or null), final [B, H, K, V]; states (or null)
// [B, H, chunks, K, V] receives the state that enters each chunk.
template <typename T>
void kda_forward(T* o, T* final, T* states, const T* q, const T* k, const T* v, const T* g, const T* beta,
                 const T* state, const i64* documents, const i64* lengths, i64 B, i64 Tn, i64 H, i64 K, i64 V,
                 i64 unit) {
    each_head(B, Tn, H, K, V, q, k, v, g, beta, documents, lengths, unit,
              [&](const Head<T>& h, i64, i64 at_v, i64, i64 at) {
                  by_width<T>(K > V ? K : V, [&](auto blocks) {
                      State<T, decltype(blocks)::value> S;
                      S.read(state ? state + at * K * V : nullptr, K, V);
                      forward_head(h, S, o + at_v, states ? states + at * ((Tn + C - 1) / C) * K * V : nullptr);
                      S.write(final + at * K * V, K, V);
                  });
              });
}

template <typename T>
void kda_backward(T* d_q, T* d_k, T* d_v, T* d_g, T* d_beta, T* d_state, const T* d_o, const T* d_final,
                  const T* states, const T* q, const T* k, const T* v, const T* g, const T* beta,
                  const i64* documents, const i64* lengths, i64 B, i64 Tn, i64 H, i64 K, i64 V, i64 unit) {
    each_head(B, Tn, H, K, V, q, k, v, g, beta, documents, lengths, unit,
              [&](const Head<T>& h, i64 sk, i64 sv, i64 sb, i64 at) {
                  const HeadGradient<T> d{d_o + sv, d_q + sk, d_k + sk, d_v + sv, d_g + sk, d_beta + sb};
                  by_width<T>(K > V ? K : V, [&](auto blocks) {
                      State<T, decltype(blocks)::value> dS;
                      dS.read(d_final ? d_final + at * K * V : nullptr, K, V);
                      backward_head(h, d, dS, states + at * ((Tn + C - 1) / C) * K * V);
                      dS.write(d_state + at * K * V, K, V);
                  });
              });
}

template <typename T>
void kda_step(T* o, T* final, const T* state, const T* q, const T* k, const T* v, const T* g, const T* beta, const i64* documents,
              const i64* lengths, i64 B, i64 Tn, i64 H, i64 K, i64 V, i64 unit) {
    each_head(B, Tn, H, K, V, q, k, v, g, beta, documents, lengths, unit,
              [&](const Head<T>& h, i64, i64 at_v, i64, i64 at) {
                  by_width<T>(K > V ? K : V, [&](auto blocks) {
                      step_head<T, decltype(blocks)::value>(h, final + at * K * V, state + at * K * V, o + at_v);
                  });
              });
}

BOTH(kda_forward,
     (T* o, T* final, T* states, const T* q, const T* k, const T* v, const T* g, const T* beta, const T* state,
      const i64* documents, const i64* lengths, i64 B, i64 Tn, i64 H, i64 K, i64 V, i64 unit),
     (o, final, states, q, k, v, g, beta, state, documents, lengths, B, Tn, H, K, V, unit))
BOTH(kda_backward,
     (T* d_q, T* d_k, T* d_v, T* d_g, T* d_beta, T* d_state, const T* d_o, const T* d_final, const T* states,
      const T* q, const T* k, const T* v, const T* g, const T* beta, const i64* documents, const i64* lengths, i64 B,
      i64 Tn, i64 H, i64 K, i64 V, i64 unit),
     (d_q, d_k, d_v, d_g, d_beta, d_state, d_o, d_final, states, q, k, v, g, beta, documents, lengths, B, Tn, H, K, V,
      unit))
BOTH(kda_step,
     (T* o, T* final, const T* state, const T* q, const T* k, const T* v, const T* g, const T* beta, const i64* documents,
      const i64* lengths, i64 B, i64 Tn, i64 H, i64 K, i64 V, i64 unit),
     (o, final, state, q, k, v, g, beta, documents, lengths, B, Tn, H, K, V, unit))

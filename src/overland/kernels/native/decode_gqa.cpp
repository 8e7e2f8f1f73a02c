// A stack of layers with grouped-query attention and gated feed-forwards, from input to output, for tokens whose keys
// and values go into a cache; the formula is in decode_gqa.py. Sums are fp32; what products read is rounded to bf16.
#include <type_traits>

#include "bf16.h"
#include "room.h"
#include "rows.h"

namespace {

struct Matrix {  // bf16, or packed where there are scales
    const void* w;
    const uint8_t* scales;
};

// What products read: rows in bf16, and again in the order of packed matrices where one of them is packed.
struct Rounded {
    bf16 *plain, *packed;
    i64 width;

    INLINE void take(i64 m, const float* x, i64 K, bool also_packed) {
        width = K;
        bf16* to = plain + m * K;
        for (i64 c = 0; c < K; c += LANES) narrowed(to + c, load(x + c));
        if (also_packed) quartered(packed + m * K, to, K);
    }
    void times(float* y, const Matrix& matrix, i64 M, i64 O) const {
        if (matrix.scales) product(y, O, packed, width, (const uint8_t*)matrix.w, matrix.scales, M, width, O);
        else product(y, O, plain, width, (const bf16*)matrix.w, M, width, O);
    }
};

// y = w x / rms(x); y may be x
INLINE void norm_row(float* y, const float* x, const bf16* w, i64 D, double eps) {
    const float by = inverse_rms(x, D, eps);
    for (i64 c = 0; c < D; c += LANES) store<float>(y + c, load(x + c) * by * widened(w + c));
}

INLINE void rotate_row(float* x, const float* cos, const float* sin, i64 half) {
    for (i64 c = 0; c < half; c += LANES) {
        const Vec<float> a = load(x + c), b = load(x + half + c), t = load(cos + c), s = load(sin + c);
        store<float>(x + c, a * t - b * s), store<float>(x + half + c, b * t + a * s);
    }
}

struct Query {  // one head of one token: q, o [K], and how many slots it sees
    const bf16* q;
    float* o;
    i64 n;
};

// p [R, n] = softmax(scale q . k_s), zero behind a query's own slots; keys `step` apart, rows of p `slots` apart
template <i64 R>
void weigh(float* p, i64 slots, const Query* query, const bf16* keys, i64 step, i64 n, i64 K, float scale) {
    constexpr i64 N = LANES / R;
    float out[LANES];
    for (i64 s = 0; s < n; s += N) {
        const bf16* key[N];
        UNROLL for (i64 i = 0; i < N; i++) key[i] = keys + (s + i < n ? s + i : s) * step;
        Vec<float> acc[LANES] = {};
        for (i64 k = 0; k < K; k += 32) {
            Pairs left[R];
            UNROLL for (i64 r = 0; r < R; r++) left[r] = pairs(query[r].q + k);
            UNROLL for (i64 i = 0; i < N; i++) {
                const Pairs right = pairs(key[i] + k);
                UNROLL for (i64 r = 0; r < R; r++) acc[r * N + i] = add_dots(acc[r * N + i], left[r], right);
            }
        }
        store<float>(out, sums<float>(acc) * scale);
        for (i64 r = 0; r < R; r++) std::memcpy(p + r * slots + s, out + r * N, N * sizeof(float));
    }
    for (i64 r = 0; r < R; r++, p += slots) {
        const i64 own = query[r].n;
        const float top = largest(p, own);
        Vec<float> total{};
        for (i64 s = 0; s < own; s += LANES) {
            Vec<float> w = exp(load(p + s) - top);
            for (i64 j = own - s; j < LANES; j++) w[j] = 0;
            total += w;
            store<float>(p + s, w);
        }
        const float by = 1 / sum<float>(total);
        for (i64 s = 0; s < own; s += LANES) store<float>(p + s, load(p + s) * by);
        for (i64 s = own; s < n; s++) p[s] = 0;
    }
}

// o = p [R, n] v: values `step` apart
template <i64 R>
void gather(const Query* query, const float* p, i64 slots, const bf16* values, i64 step, i64 n, i64 K) {
    for (i64 k = 0; k < K; k += 32) {
        Vec<float> even[R] = {}, odd[R] = {};
        for (i64 s = 0; s < n; s++) {
            const Pairs v = pairs(values + s * step + k);
            const Vec<float> a = evens(v), b = odds(v);
            UNROLL for (i64 r = 0; r < R; r++) even[r] += p[r * slots + s] * a, odd[r] += p[r * slots + s] * b;
        }
        for (i64 r = 0; r < R; r++) {
            float both[2][LANES];
            store<float>(both[0], even[r]), store<float>(both[1], odd[r]);
            for (i64 i = 0; i < LANES; i++)
                query[r].o[k + 2 * i] = both[0][i], query[r].o[k + 2 * i + 1] = both[1][i];
        }
    }
}

constexpr i64 TOGETHER = 4;

// Up to four queries that look at one row's slots; the last sees the most.
void attend(const Query* query, i64 count, float* p, i64 slots, const bf16* keys, const bf16* values, i64 step, i64 K,
            float scale) {
    const i64 n = query[count - 1].n;
    auto some = [&](auto number, i64 first) {
        constexpr i64 R = decltype(number)::value;
        weigh<R>(p, slots, query + first, keys, step, n, K, scale);
        gather<R>(query + first, p, slots, values, step, n, K);
    };
    if (count == 4) return some(std::integral_constant<i64, 4>(), 0);
    if (count >= 2) some(std::integral_constant<i64, 2>(), 0);
    if (count % 2) some(std::integral_constant<i64, 1>(), count - 1);
}

enum { Q, KEY, VALUE, OUT, GATE, UP, DOWN, MATRICES };
enum { BEFORE_MIXER, QUERY, KEYS, BEFORE_FEED_FORWARD, NORMS };

struct Layer {
    Matrix matrices[MATRICES];
    const bf16* norms[NORMS];  // those of queries and keys may be null
    bf16 *keys, *values;
};

INLINE i64 wider(i64 a, i64 b) { return a > b ? a : b; }

}  // namespace

// out, x [M, D]; `raw` like out, before the final norm `norm` [D]. parts: for each of L layers 7 matrices and their
// scales (or null), 4 norms, and the cache's keys and values [rows, slots, G, K], whose rows lie `stride` apart. Token m
// goes into slot at[m] of row row[m]; tokens of a row in order. cos, sin [M, K/2] fp32. All but those bf16.
extern "C" __attribute__((visibility("default"))) void gqa_stack_bf16(
    bf16* out, bf16* raw, const bf16* x, const void* const* parts, const bf16* norm, const i64* row, const i64* at,
    const float* cos, const float* sin, i64 M, i64 L, i64 D, i64 H, i64 G, i64 K, i64 W, i64 slots, i64 stride,
    double scale, double eps) {
    const i64 R = H / G, most = (slots / LANES + 2) * LANES, widest = wider(wider(D, W), H * K);
    Room<float> room(M * (D + 2 * H * K + 2 * G * K + D + 2 * W + widest) + TOGETHER * most + D, 24);
    float *s = room.take(M * D), *q = room.take(M * H * K), *o = room.take(M * H * K), *k = room.take(M * G * K);
    float *v = room.take(M * G * K), *y = room.take(M * D), *gate = room.take(M * W), *up = room.take(M * W);
    float *p = room.take(TOGETHER * most), *h = room.take(D);
    bf16* rounded = (bf16*)room.take(M * widest);
    Rounded read{rounded, rounded + M * widest, 0};
    bf16* q_rounded = rounded;

    for (i64 i = 0; i < M * D; i += LANES) store<float>(s + i, widened(x + i));
    for (i64 l = 0; l < L; l++) {
        Layer layer;
        for (i64 i = 0; i < MATRICES; i++, parts += 2) layer.matrices[i] = {parts[0], (const uint8_t*)parts[1]};
        for (i64 i = 0; i < NORMS; i++) layer.norms[i] = (const bf16*)*parts++;
        layer.keys = (bf16*)*parts++, layer.values = (bf16*)*parts++;
        const Matrix* w = layer.matrices;

        bool packed = w[Q].scales || w[KEY].scales || w[VALUE].scales;
        for (i64 m = 0; m < M; m++) {
            norm_row(h, s + m * D, layer.norms[BEFORE_MIXER], D, eps);
            read.take(m, h, D, packed);
        }
        read.times(q, w[Q], M, H * K), read.times(k, w[KEY], M, G * K), read.times(v, w[VALUE], M, G * K);
        for (i64 m = 0; m < M; m++) {
            bf16 *key = layer.keys + row[m] * stride + at[m] * G * K, *value = layer.values + (key - layer.keys);
            for (i64 head = 0; head < H + G; head++) {
                float* one = head < H ? q + (m * H + head) * K : k + (m * G + head - H) * K;
                const bf16* weight = layer.norms[head < H ? QUERY : KEYS];
                if (weight) norm_row(one, one, weight, K, eps);
                if (cos) rotate_row(one, cos + m * K / 2, sin + m * K / 2, K / 2);
                bf16* to = head < H ? q_rounded + (m * H + head) * K : key + (head - H) * K;
                for (i64 c = 0; c < K; c += LANES) narrowed(to + c, load(one + c));
            }
            for (i64 c = 0; c < G * K; c += LANES) narrowed(value + c, load(v + m * G * K + c));
        }
        for (i64 g = 0; g < G; g++) {
            Query query[TOGETHER];
            i64 count = 0;
            for (i64 m = 0; m < M; m++)
                for (i64 head = g * R; head < (g + 1) * R; head++) {
                    query[count++] = {q_rounded + (m * H + head) * K, o + (m * H + head) * K, at[m] + 1};
                    const bool last = head + 1 == (g + 1) * R && (m + 1 == M || row[m + 1] != row[m]);
                    if (count < TOGETHER && !last) continue;
                    const i64 from = row[m] * stride + g * K;
                    attend(query, count, p, most, layer.keys + from, layer.values + from, G * K, K, float(scale));
                    count = 0;
                }
        }
        for (i64 m = 0; m < M; m++) read.take(m, o + m * H * K, H * K, w[OUT].scales);
        read.times(y, w[OUT], M, D);
        packed = w[GATE].scales || w[UP].scales;
        for (i64 m = 0; m < M; m++) {
            for (i64 c = m * D; c < (m + 1) * D; c += LANES) store<float>(s + c, load(s + c) + load(y + c));
            norm_row(h, s + m * D, layer.norms[BEFORE_FEED_FORWARD], D, eps);
            read.take(m, h, D, packed);
        }
        read.times(gate, w[GATE], M, W), read.times(up, w[UP], M, W);
        gated_rows(gate, W, gate, up, M, W, W, 0.0f, 0.0f);
        for (i64 m = 0; m < M; m++) read.take(m, gate + m * W, W, w[DOWN].scales);
        read.times(y, w[DOWN], M, D);
        for (i64 i = 0; i < M * D; i += LANES) store<float>(s + i, load(s + i) + load(y + i));
    }
    for (i64 m = 0; m < M; m++) {
        norm_row(h, s + m * D, norm, D, eps);
        for (i64 c = 0; c < D; c += LANES)
            narrowed(out + m * D + c, load(h + c)), narrowed(raw + m * D + c, load(s + m * D + c));
    }
}

// y [M, O] fp32 = x [M, K] w^T
extern "C" __attribute__((visibility("default"))) void linear_bf16(const bf16* x, const bf16* w, float* y, i64 M, i64 K,
                                                                   i64 O) {
    product(y, O, x, K, w, M, K, O);
}

// Products of bf16 with sums in fp32, also with matrices in MXFP4. The sum for a row and an output runs over k in one
// fixed order, whatever is computed beside it: a row's result does not depend on the other rows, to the last bit.
//
// 32 bf16 are looked at as 16 pairs in lanes of 32 bits; a lane sums its pairs, and the lanes are summed at the end.
#pragma once
#include "product.h"
#ifdef __AVX512BW__
#include <immintrin.h>
#endif

typedef uint16_t bf16;
typedef uint32_t Pairs __attribute__((vector_size(64)));
typedef uint32_t UnalignedPairs __attribute__((vector_size(64), aligned(2), may_alias));
typedef bf16 Sixteen __attribute__((vector_size(32)));
typedef bf16 UnalignedSixteen __attribute__((vector_size(32), aligned(2), may_alias));

INLINE Pairs pairs(const bf16* p) { return *(const UnalignedPairs*)p; }
INLINE Vec<float> evens(Pairs x) { return (Vec<float>)(x << 16); }
INLINE Vec<float> odds(Pairs x) { return (Vec<float>)(x & 0xFFFF0000u); }

INLINE Vec<float> add_dots(Vec<float> sum, Pairs a, Pairs b) {
#ifdef __AVX512BF16__
    return (Vec<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum += odds(a) * odds(b);
    return sum + evens(a) * evens(b);
#endif
}

INLINE Vec<float> widened(const bf16* p) {
    return (Vec<float>)(__builtin_convertvector(*(const UnalignedSixteen*)p, Pairs) << 16);
}
INLINE void narrowed(bf16* p, Vec<float> x) {  // to the nearest, ties to even
    const Pairs bits = (Pairs)x;
    const Pairs rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const Pairs kept = x == x ? rounded : rounded | 0x40u;  // a NaN stays one
    *(UnalignedSixteen*)p = __builtin_convertvector(kept, Sixteen);
}
INLINE float wide(bf16 x) {
    const uint32_t bits = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}

// ---- plain matrices: w [O, K] bf16

// y [M, O] (rows ldy apart) = x [M, K] w^T; K a multiple of 32
inline void product(float* y, i64 ldy, const bf16* x, i64 ldx, const bf16* w, i64 M, i64 K, i64 O) {
    float out[LANES];
    if (M == 1) {
        for (i64 o = 0; o < O; o += LANES) {
            const i64 n = O - o < LANES ? O - o : LANES;
            Vec<float> acc[LANES] = {};
            UNROLL for (i64 c = 0; c < LANES; c += 4) {  // four rows at a time: few enough for the prefetcher
                const bf16* row[4];
                UNROLL for (i64 i = 0; i < 4; i++) row[i] = w + (o + (c + i < n ? c + i : 0)) * K;
                Vec<float> four[4] = {};
                for (i64 k = 0; k < K; k += 32) {
                    const Pairs left = pairs(x + k);
                    UNROLL for (i64 i = 0; i < 4; i++) four[i] = add_dots(four[i], left, pairs(row[i] + k));
                }
                UNROLL for (i64 i = 0; i < 4; i++) acc[c + i] = four[i];
            }
            store<float>(out, sums<float>(acc));
            std::memcpy(y + o, out, n * sizeof(float));
        }
        return;
    }
    for (i64 o = 0; o < O; o += 4)
        for (i64 m = 0; m < M; m += 4) {
            const i64 rows = M - m < 4 ? M - m : 4, n = O - o < 4 ? O - o : 4;
            const bf16 *left[4], *right[4];
            const i64 ahead = o + 4 + m / 4;  // with four blocks of rows each brings in a row of what comes next
            const bf16* next = w + (m < 16 && ahead < O ? ahead : o) * K;
            UNROLL for (i64 i = 0; i < 4; i++) {
                left[i] = x + (m + (i < rows ? i : 0)) * ldx;
                right[i] = w + (o + (i < n ? i : 0)) * K;
            }
            Vec<float> acc[LANES] = {};
            for (i64 k = 0; k < K; k += 32) {
                Pairs b[4];
                __builtin_prefetch(next + k);
                UNROLL for (i64 i = 0; i < 4; i++) b[i] = pairs(right[i] + k);
                UNROLL for (i64 r = 0; r < 4; r++) {
                    const Pairs a = pairs(left[r] + k);
                    UNROLL for (i64 i = 0; i < 4; i++) acc[4 * r + i] = add_dots(acc[4 * r + i], a, b[i]);
                }
            }
            store<float>(out, sums<float>(acc));
            for (i64 r = 0; r < rows; r++) std::memcpy(y + (m + r) * ldy + o, out + 4 * r, n * sizeof(float));
        }
}

// ---- MXFP4: 128 values are 64 bytes; lane j of 16 bits holds the values 4 j .. 4 j + 3, lowest bits first

constexpr i64 STRETCH = 128;

// Value q of every lane, as bf16 without scale
struct Quarters {
    Pairs part[4];
};
INLINE Quarters quarters(const uint8_t* packed) {
    Quarters out;
#ifdef __AVX512BW__
    alignas(64) static constexpr bf16 table[32] = {
        0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
        0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
        0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
    const __m512i values = _mm512_load_si512(table), lanes = _mm512_loadu_si512(packed);
    out.part[0] = (Pairs)_mm512_permutexvar_epi16(lanes, values);  // looks at the low five bits
    out.part[1] = (Pairs)_mm512_permutexvar_epi16(_mm512_srli_epi16(lanes, 4), values);
    out.part[2] = (Pairs)_mm512_permutexvar_epi16(_mm512_srli_epi16(lanes, 8), values);
    out.part[3] = (Pairs)_mm512_permutexvar_epi16(_mm512_srli_epi16(lanes, 12), values);
#else
    static constexpr bf16 table[16] = {0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
                                       0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
    bf16 lane[4][32];
    for (i64 j = 0; j < 64; j++) {
        lane[2 * (j % 2)][j / 2] = table[packed[j] & 15];
        lane[2 * (j % 2) + 1][j / 2] = table[packed[j] >> 4];
    }
    for (i64 q = 0; q < 4; q++) out.part[q] = pairs(lane[q]);
#endif
    return out;
}

// The scales 2^(e - 127) of four blocks, each for the four lanes of 32 bits that sum its values
INLINE Vec<float> scales_of(const uint8_t* e) {
#ifdef __AVX512BW__
    int four;
    std::memcpy(&four, e, 4);
    const int at = int(0x80808000u);  // byte 0 is taken from the block's number, the others are zero
    const __m512i places = _mm512_setr_epi32(at, at, at, at, at + 1, at + 1, at + 1, at + 1, at + 2, at + 2, at + 2,
                                             at + 2, at + 3, at + 3, at + 3, at + 3);
    const __m512i spread = _mm512_shuffle_epi8(_mm512_set1_epi32(four), places);
    return (Vec<float>)_mm512_slli_epi32(spread, 23);
#else
    Pairs bits;
    for (i64 i = 0; i < LANES; i++) bits[i] = uint32_t(e[i / 4]) << 23;
    return (Vec<float>)bits;
#endif
}

// R rows of x (in `quartered` order) times one row of the matrix
template <i64 R>
INLINE void dots(Vec<float>* acc, const bf16* x, i64 ldx, const uint8_t* packed, const uint8_t* scales, i64 K) {
    for (i64 k = 0; k < K; k += STRETCH, packed += STRETCH / 2, scales += STRETCH / 32, x += STRETCH) {
        const Quarters w = quarters(packed);
        const Vec<float> by = scales_of(scales);
        UNROLL for (i64 r = 0; r < R; r++) {
            Vec<float> sum{};
            UNROLL for (i64 q = 0; q < 4; q++) sum = add_dots(sum, pairs(x + r * ldx + 32 * q), w.part[q]);
            acc[r] += sum * by;
        }
    }
}

template <i64 R>
void packed_rows(float* y, i64 ldy, const bf16* x, i64 ldx, const uint8_t* packed, const uint8_t* scales, i64 K, i64 O) {
    constexpr i64 N = LANES / R;
    float out[LANES];
    for (i64 o = 0; o < O; o += N) {
        Vec<float> acc[LANES] = {};
        const i64 n = O - o < N ? O - o : N;
        for (i64 i = 0; i < n; i++) dots<R>(acc + i * R, x, ldx, packed + (o + i) * K / 2, scales + (o + i) * K / 32, K);
        store<float>(out, sums<float>(acc));
        for (i64 i = 0; i < n; i++)
            UNROLL for (i64 r = 0; r < R; r++) y[r * ldy + o + i] = out[i * R + r];
    }
}

// The same with w packed [O, K/2] and its scales [O, K/32]; x as `quartered` leaves it; K a multiple of 128
inline void product(float* y, i64 ldy, const bf16* x, i64 ldx, const uint8_t* w, const uint8_t* scales, i64 M, i64 K,
                    i64 O) {
    i64 m = 0;
    for (; m + 4 <= M; m += 4) packed_rows<4>(y + m * ldy, ldy, x + m * ldx, ldx, w, scales, K, O);
    for (; m + 2 <= M; m += 2) packed_rows<2>(y + m * ldy, ldy, x + m * ldx, ldx, w, scales, K, O);
    for (; m < M; m++) packed_rows<1>(y + m * ldy, ldy, x + m * ldx, ldx, w, scales, K, O);
}

// to [K] = x [K] in the order in which `quarters` gives the values of every stretch
inline void quartered(bf16* to, const bf16* x, i64 K) {
    for (i64 k = 0; k < K; k += STRETCH)
        for (i64 j = 0; j < 32; j++)
            for (i64 q = 0; q < 4; q++) to[k + 32 * q + j] = x[k + 4 * j + q];
}

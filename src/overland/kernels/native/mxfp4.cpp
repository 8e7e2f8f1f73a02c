// MXFP4: encode, decode, round in place of a weight, and the product with packed weights; the format is in mxfp4.py.
#include <type_traits>

#include "common.h"
#ifdef __AVX512BW__
#include <immintrin.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

constexpr i64 BLOCK = 32;
constexpr int NAN_SCALE = 255, MAX_SCALE = 252;

// The scale byte of a block from the bits of its largest magnitude in fp32; `bump` is the rule's (MXFP4_RULES).
INLINE int scale_byte(uint32_t amax, uint32_t bump) {
    if (amax >= 0x7F800000u) return NAN_SCALE;
    const int e = int((amax + bump) >> 23) - 2;
    return e < 0 ? 0 : (e > MAX_SCALE ? MAX_SCALE : e);
}
INLINE float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
INLINE float scale_value(int e) {  // 2^(e-127); byte 0 is below the least normal number
    return from_bits(e == NAN_SCALE ? 0x7FC00000u : (e == 0 ? 1u << 22 : uint32_t(e) << 23));
}

// ---- encode: the code of |x| / 2^(e-127) from the bits alone, in lanes of 16 bits (bf16) or 32 (fp32).
//
// Above 1 the bits, rounded to one mantissa bit (ties to even), count the codes up; below, two comparisons do.
// HALF, ONE... are the bits of 0.25 and so on. Bits are linear in the exponent only among normal numbers, so scales
// below 3, where 0.25 * scale is none, take the slow way.
template <typename Bits> struct Lanes;
template <> struct Lanes<int16_t> {
    typedef int16_t V __attribute__((vector_size(64), aligned(2), may_alias));
    static constexpr int mantissa = 7, widen = 16;
};
template <> struct Lanes<int32_t> {
    typedef int32_t V __attribute__((vector_size(64), aligned(4), may_alias));
    static constexpr int mantissa = 23, widen = 0;
};

template <typename Bits> INLINE typename Lanes<Bits>::V codes_of(typename Lanes<Bits>::V bits, int e) {
    typedef typename Lanes<Bits>::V V;
    constexpr int m = Lanes<Bits>::mantissa;
    constexpr Bits quarter = Bits(125) << m, three_quarters = (Bits(126) << m) + (Bits(1) << (m - 1));
    const V magnitude = bits & V(V{} + Bits(~(Bits(1) << (sizeof(Bits) * 8 - 1))));
    const V scaled = magnitude - Bits(Bits(e - 127) * (Bits(1) << m));  // below 8 by every rule: no overflow
    const V rounded = (scaled + Bits((Bits(1) << (m - 2)) - 1) + ((scaled >> (m - 1)) & 1)) >> (m - 1);
    V code = rounded - Bits(2 * 127 - 2);
    const V low = -(V)(scaled > quarter) - (V)(scaled >= three_quarters);
    code = code > low ? code : low;
    return code > 7 ? V{} + Bits(7) : code;
}

INLINE int slow_code(float magnitude) {
    return (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) + (magnitude >= 1.75f) +
           (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
}

// One block of 32: 16 bytes, the even element in the low nibble. Returns the scale byte.
template <typename Bits> INLINE int encode_block(const Bits* x, uint8_t* packed, uint32_t bump) {
    typedef typename Lanes<Bits>::V V;
    typedef typename std::conditional<sizeof(Bits) == 2, uint16_t, uint32_t>::type U;
    constexpr int n = 64 / sizeof(Bits), registers = BLOCK / n, top = sizeof(Bits) * 8 - 1;
    U amax = 0;
    for (i64 i = 0; i < BLOCK; i++) {
        const U magnitude = U(x[i]) & U(~(U(1) << top));
        amax = magnitude > amax ? magnitude : amax;
    }
    const int e = scale_byte(uint32_t(amax) << Lanes<Bits>::widen, bump);
    Bits codes[BLOCK];
    if (e >= 3 && e != NAN_SCALE) {
        for (int r = 0; r < registers; r++) {
            const V bits = *(const V*)(x + r * n);
            const V sign = (bits >> (top - 3)) & Bits(8);
            *(V*)(codes + r * n) = codes_of<Bits>(bits, e) | sign;
        }
    } else {
        const float inverse = e == NAN_SCALE ? 0.0f : from_bits(uint32_t(254 - e) << 23);
        for (i64 i = 0; i < BLOCK; i++) {
            const uint32_t bits = uint32_t(U(x[i])) << Lanes<Bits>::widen;
            codes[i] = Bits(slow_code(from_bits(bits & 0x7FFFFFFFu) * inverse) | (bits >> 31 << 3));
        }
    }
    for (i64 i = 0; i < BLOCK / 2; i++) packed[i] = uint8_t(codes[2 * i] | codes[2 * i + 1] << 4);
    return e;
}

EXPORT void encode_f32(const float* x, uint8_t* packed, uint8_t* scales, i64 blocks, i64 bump) {
    for (i64 b = 0; b < blocks; b++)
        scales[b] = encode_block<int32_t>((const int32_t*)x + b * BLOCK, packed + b * BLOCK / 2, bump);
}
EXPORT void encode_bf16(const int16_t* x, uint8_t* packed, uint8_t* scales, i64 blocks, i64 bump) {
    for (i64 b = 0; b < blocks; b++) scales[b] = encode_block<int16_t>(x + b * BLOCK, packed + b * BLOCK / 2, bump);
}

// ---- decode

// The 16 even and the 16 odd elements of a block, before the scale.
struct Halves {
    Vec<float> even, odd;
};
#ifdef __AVX512F__
INLINE Halves halves(const uint8_t* packed) {
    const __m512 table = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)packed));
    return {(Vec<float>)_mm512_permutexvar_ps(bytes, table),  // looks at the low four bits only
            (Vec<float>)_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table)};
}
INLINE void decode_block(float* out, const uint8_t* packed, float scale) {
    const Halves h = halves(packed);
    const __m512 even = (__m512)h.even * scale, odd = (__m512)h.odd * scale;
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(even, first, odd));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd));
}
#else
// Both values of every byte: without a permutation of registers, a table is quickest.
struct Pairs {
    float even[256], odd[256];
    constexpr Pairs() : even(), odd() {
        constexpr float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
        for (int b = 0; b < 256; b++) {
            even[b] = b & 8 ? -magnitudes[b & 7] : magnitudes[b & 7];
            odd[b] = b >> 4 & 8 ? -magnitudes[b >> 4 & 7] : magnitudes[b >> 4 & 7];
        }
    }
};
constexpr Pairs PAIRS;
INLINE Halves halves(const uint8_t* packed) {
    float even[16], odd[16];
    for (int i = 0; i < 16; i++) even[i] = PAIRS.even[packed[i]], odd[i] = PAIRS.odd[packed[i]];
    return {load(even), load(odd)};
}
INLINE void decode_block(float* out, const uint8_t* packed, float scale) {
    for (int i = 0; i < 16; i++) {
        out[2 * i] = PAIRS.even[packed[i]] * scale;
        out[2 * i + 1] = PAIRS.odd[packed[i]] * scale;
    }
}
#endif

EXPORT void decode_f32(float* out, const uint8_t* packed, const uint8_t* scales, i64 blocks) {
    for (i64 b = 0; b < blocks; b++) decode_block(out + b * BLOCK, packed + b * BLOCK / 2, scale_value(scales[b]));
}
EXPORT void decode_bf16(uint16_t* out, const uint8_t* packed, const uint8_t* scales, i64 blocks) {
    for (i64 b = 0; b < blocks; b++) {
        uint32_t wide[BLOCK];
        decode_block((float*)wide, packed + b * BLOCK / 2, scale_value(scales[b]));
        for (i64 i = 0; i < BLOCK; i++) out[b * BLOCK + i] = uint16_t(wide[i] >> 16);  // two bits of mantissa: exact
    }
}

// ---- round: what x becomes under MXFP4, with blocks along the middle of [outer, 32 * blocks, inner].

INLINE void round_rows(float* y, const float* x, i64 blocks, uint32_t bump) {
    for (i64 b = 0; b < blocks; b++, x += BLOCK, y += BLOCK) {
        uint8_t packed[BLOCK / 2];
        const int e = encode_block<int32_t>((const int32_t*)x, packed, bump);
        decode_block(y, packed, scale_value(e));
    }
}

// 16 columns (n of them real) of a block whose elements lie `inner` apart.
INLINE void round_columns(float* y, const float* x, i64 inner, i64 n, uint32_t bump) {
    typedef Vector<float>::I I;
    Vec<float> column[BLOCK];
    I amax{};
    for (i64 i = 0; i < BLOCK; i++) {
        column[i] = n == 16 ? load(x + i * inner) : load(x + i * inner, n);
        const I magnitude = (I)column[i] & 0x7FFFFFFF;
        amax = magnitude > amax ? magnitude : amax;
    }
    I e = ((amax + int32_t(bump)) >> 23) - 2;
    e = e < 0 ? I{} : (e > MAX_SCALE ? I{} + MAX_SCALE : e);
    const Vec<float> inverse = (Vec<float>)((254 - e) << 23);
    const Vec<float> finite = (Vec<float>)(e == 0 ? I{} + (1 << 22) : e << 23);
    const Vec<float> scale = amax < 0x7F800000 ? finite : splat(__builtin_nanf(""));
    for (i64 i = 0; i < BLOCK; i++) {
        const I sign = (I)column[i] & INT32_MIN;
        const Vec<float> magnitude = (Vec<float>)((I)column[i] & 0x7FFFFFFF) * inverse;
        const I bits = (I)magnitude;
        const Vec<float> above = (Vec<float>)((bits + 0x1FFFFF + ((bits >> 22) & 1)) & ~0x3FFFFF);
        const Vec<float> below = (magnitude + 6291456.0f) - 6291456.0f;  // 1.5 * 2^22: to a multiple of a half
        Vec<float> rounded = magnitude < 1.0f ? below : above;
        rounded = rounded > 6.0f ? splat(6.0f) : rounded;
        const Vec<float> value = (Vec<float>)((I)rounded | sign) * scale;
        if (n == 16) store(y + i * inner, value);
        else store(y + i * inner, value, n);
    }
}

EXPORT void round_f32(float* y, const float* x, i64 outer, i64 blocks, i64 inner, i64 bump) {
    if (inner == 1) return round_rows(y, x, outer * blocks, bump);
    for (i64 b = 0; b < outer * blocks; b++, x += BLOCK * inner, y += BLOCK * inner)
        for (i64 c = 0; c < inner; c += 16) round_columns(y + c, x + c, inner, inner - c < 16 ? inner - c : 16, bump);
}

// ---- product: y [M, N] = x [M, K] W^T for packed W [N, K/2], one pass over the weights for up to eight rows of x.
//
// `even_odd` is x with every block's even elements before its odd ones. A block's weights are formed once, in registers.
template <int ROWS>
INLINE void product_rows(float* y, const float* even_odd, const uint8_t* packed, const uint8_t* scales, i64 N, i64 K) {
    const i64 blocks = K / BLOCK;
    for (i64 n = 0; n < N; n++, packed += K / 2, scales += blocks) {
        Vec<float> total[ROWS] = {};
        for (i64 b = 0; b < blocks; b++) {
            const Halves h = halves(packed + b * BLOCK / 2);
            const float scale = scale_value(scales[b]);
            const float* x = even_odd + b * BLOCK;
            if (ROWS <= 2) {
                for (int m = 0; m < ROWS; m++)
                    total[m] += (h.even * load(x + m * K) + h.odd * load(x + m * K + 16)) * scale;
            } else {
                const Vec<float> even = h.even * scale, odd = h.odd * scale;
                for (int m = 0; m < ROWS; m++) total[m] += even * load(x + m * K) + odd * load(x + m * K + 16);
            }
        }
        for (int m = 0; m < ROWS; m++) y[m * N + n] = sum<float>(total[m]);
    }
}

INLINE void product_any(float* y, const float* x, const uint8_t* packed, const uint8_t* scales, float* even_odd, i64 M,
                        i64 N, i64 K) {
    for (i64 i = 0; i < M * K; i += BLOCK)
        for (i64 j = 0; j < BLOCK / 2; j++)
            even_odd[i + j] = x[i + 2 * j], even_odd[i + BLOCK / 2 + j] = x[i + 2 * j + 1];
    while (M > 0) {
        const i64 rows = M >= 8 ? 8 : (M >= 4 ? 4 : (M >= 2 ? 2 : 1));
        if (rows == 8) product_rows<8>(y, even_odd, packed, scales, N, K);
        else if (rows == 4) product_rows<4>(y, even_odd, packed, scales, N, K);
        else if (rows == 2) product_rows<2>(y, even_odd, packed, scales, N, K);
        else product_rows<1>(y, even_odd, packed, scales, N, K);
        M -= rows, y += rows * N, even_odd += rows * K;
    }
}

// Experts: the rows of x come sorted, counts[e] for expert e, whose weights are packed[e]. even_odd holds x's floats.
EXPORT void product_f32(float* y, const float* x, const uint8_t* packed, const uint8_t* scales, float* even_odd,
                        const i64* counts, i64 experts, i64 N, i64 K) {
    for (i64 e = 0; e < experts; e++, packed += N * K / 2, scales += N * K / BLOCK) {
        product_any(y, x, packed, scales, even_odd, counts[e], N, K);
        y += counts[e] * N, x += counts[e] * K;
    }
}

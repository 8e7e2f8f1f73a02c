// A score's bounds from keys and queries in eight bits: four products to each of fp32's, on whole panels of keys.
//
// A key k is taken for k' = s b with whole b in -127 .. 127, a head's query q_j for q'_j = r_j a_j likewise. relu moves
// no further than its argument, so that for some c_j in 0 .. 1
//
//     sum_j w_j relu(q_j.k) - sum_j w_j relu(q'_j.k')
//         =  (sum_j c_j w_j q_j).(k - k') + (sum_j c_j w_j (q_j - q'_j)).k'
//
// and |a.b| <= |a| |b|. The norms are measured, not estimated; the largest |sum_j c_j v_j| follows from the v_j's
// products with each other. What fp32 rounds on either side is at most (I + 2 J + 16) 2^-24 of
// sum_j |w_j| |q_j| |k| and enters fourfold. A panel has one bound: that of its worst key.
#pragma once
#include "common.h"

#include <limits>
#include <vector>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#define FIRST_LOOK

// Of each panel: bytes b + 128 [ceil(I / 4)][PANEL][4], scales s [PANEL], the largest |k - k'| and the largest |k|.
template <i64 PANEL> struct EightBitKeys {
    i64 groups = 0;  // of four numbers
    std::vector<int32_t> bytes;
    std::vector<float> scale, far, norm;
    float usual_far = 0, usual_norm = 0;  // averages over the panels

    void make(const float* k, i64 S, i64 I) {
        const i64 panels = (S + PANEL - 1) / PANEL;
        groups = (I + 3) / 4;
        bytes.assign(panels * groups * PANEL, int32_t(0x80808080u));
        scale.assign(panels * PANEL, 0), far.assign(panels, 0), norm.assign(panels, 0);
        double all_far = 0, all_norm = 0;
        for (i64 p = 0; p < panels; p++) {
            float worst = 0, longest = 0;
            for (i64 l = 0; l < PANEL && p * PANEL + l < S; l++) {
                const float* row = k + (p * PANEL + l) * I;
                __m512 most = _mm512_setzero_ps(), squares = _mm512_setzero_ps(), off = _mm512_setzero_ps();
                for (i64 i = 0; i < I; i += LANES) {
                    const __m512 x = (__m512)load(row + i, I - i);
                    most = _mm512_max_ps(most, _mm512_abs_ps(x));
                    squares = _mm512_fmadd_ps(x, x, squares);
                }
                const float top = _mm512_reduce_max_ps(most), length = std::sqrt(_mm512_reduce_add_ps(squares));
                const bool calm = length < 1e18f;  // neither NaN nor infinite, and no product can overflow
                const float by = calm && top > 1e-30f ? 127 / top : 0, s = by > 0 ? top / 127 : 0;
                int32_t* to = bytes.data() + p * groups * PANEL + l;
                for (i64 i = 0; i < I; i += LANES) {
                    const __m512 x = calm ? (__m512)load(row + i, I - i) : _mm512_setzero_ps();
                    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(by)));
                    const __m512 left = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(s), x);
                    off = _mm512_fmadd_ps(left, left, off);
                    int32_t four[4];
                    _mm_storeu_si128((__m128i*)four, _mm_xor_si128(_mm512_cvtepi32_epi8(whole), _mm_set1_epi8(-128)));
                    for (i64 g = 0; g < 4 && i / 4 + g < groups; g++) to[(i / 4 + g) * PANEL] = four[g];
                }
                scale[p * PANEL + l] = s;
                const float distance = calm ? std::sqrt(_mm512_reduce_add_ps(off)) : INFINITY;
                worst = distance > worst ? distance : worst, longest = length < longest ? longest : length;
            }
            // Rounded up; below 1e-18 squares vanish.
            far[p] = worst * 1.0001f + 1e-18f, norm[p] = longest == longest ? longest * 1.0001f + 1e-18f : INFINITY;
            if (far[p] < INFINITY) all_far += far[p], all_norm += norm[p];
        }
        usual_far = float(all_far / panels), usual_norm = float(all_norm / panels);
    }
};

// One query: bytes a [J][groups * 4], w_j r_j, and what takes the keys' 128 away again.
struct EightBitQuery {
    std::vector<int32_t> bytes, start;
    std::vector<float> weight, own, left;  // w_j q_j and w_j (q_j - q'_j)
    float per_far = 0, per_norm = 0, always = 0;  // a panel's bound is per_far far + per_norm norm + always
    bool usable = false;                          // else every score is formed in fp32

    void make(const float* q, const float* w, i64 J, i64 I) {
        const i64 groups = (I + 3) / 4;
        bytes.assign(J * groups, 0), start.resize(J), weight.resize(J);
        own.resize(J * I), left.resize(J * I);
        double weights = 0, longest = 0;
        for (i64 j = 0; j < J; j++, q += I) {
            float top = 0;
            double squares = 0;
            for (i64 i = 0; i < I; i++) {
                top = std::fabs(q[i]) > top ? std::fabs(q[i]) : top;
                squares += double(q[i]) * q[i];
            }
            const float by = top > 1e-30f ? 127 / top : 0, r = by > 0 ? top / 127 : 0;
            int32_t sum = 0;
            for (i64 i = 0; i < I; i++) {
                const float near = std::nearbyint(q[i] * by);
                const int a = near >= -127 && near <= 127 ? int(near) : 0;
                ((int8_t*)&bytes[j * groups])[i] = int8_t(a), sum += a;
                own[j * I + i] = w[j] * q[i], left[j * I + i] = w[j] * float(double(q[i]) - double(r) * a);
            }
            start[j] = -128 * sum, weight[j] = w[j] * r;
            weights += std::fabs(double(w[j]));
            longest = squares > longest || squares != squares ? squares : longest;
        }
        double whole = 0;
        const double far = reach(own.data(), whole, J, I), off = reach(left.data(), whole, J, I);
        const double rounding = double(I + 2 * J + 16) * 0x1p-22 * whole;
        per_far = float((far + off + rounding) * 1.000001);
        per_norm = float((off + rounding) * 1.000001 + double(J * I) * 0x1p-120);
        always = float((weights * I + J + 2) * 0x1p-120);  // of what underflows
        usable = whole < 1e15 && longest < 1e30 && weights < 1e15;  // no NaN, and no product overflows
    }
    // The largest |sum_j c_j v_j| for c_j in 0 .. 1, or more: c = 1/2 + d/2. Adds sum_j |v_j| to `lengths`.
    double reach(const float* v, double& lengths, i64 J, i64 I) {
        double pairs = 0, sum = 0;
        for (i64 j = 0; j < J; j++) {
            for (i64 l = 0; l <= j; l++) {
                Vec<float> dots{};
                for (i64 i = 0; i < I; i += LANES) dots += load(v + j * I + i, I - i) * load(v + l * I + i, I - i);
                const double dot = ::sum<float>(dots);
                pairs += (l < j ? 2 : 1) * std::fabs(dot), sum += (l < j ? 2 : 1) * dot;
                if (l == j) lengths += std::sqrt(dot);
            }
        }
        return 0.5 * (std::sqrt(std::fabs(sum)) + std::sqrt(pairs));
    }
    template <i64 PANEL> INLINE float bound(const EightBitKeys<PANEL>& keys, i64 p) const {
        const float e = per_far * keys.far[p] + (per_norm * keys.norm[p] + always);
        return e < INFINITY ? e : INFINITY;
    }
};

// Heads j .. j + H - 1 into x.
template <i64 H, i64 PANEL>
INLINE void add_heads(__m512 x[4], const EightBitQuery& q, const int32_t* panel, i64 groups, i64 j) {
    __m512i dot[H][4];
    UNROLL for (i64 h = 0; h < H; h++)
        UNROLL for (i64 v = 0; v < 4; v++) dot[h][v] = _mm512_set1_epi32(q.start[j + h]);
    const int32_t* a = q.bytes.data() + j * groups;
    for (i64 g = 0; g < groups; g++) {
        __m512i b[4];
        UNROLL for (i64 v = 0; v < 4; v++) b[v] = _mm512_loadu_si512(panel + g * PANEL + v * LANES);
        UNROLL for (i64 h = 0; h < H; h++) {
            const __m512i by = _mm512_set1_epi32(a[h * groups + g]);
            UNROLL for (i64 v = 0; v < 4; v++)  // as the intrinsic, whose sums gcc 12 moves from register to register
                asm("vpdpbusd %2, %1, %0" : "+v"(dot[h][v]) : "v"(b[v]), "v"(by));
        }
    }
    UNROLL for (i64 h = 0; h < H; h++) {
        const __m512 w = _mm512_set1_ps(q.weight[j + h]);
        UNROLL for (i64 v = 0; v < 4; v++) {
            const __m512i positive = _mm512_max_epi32(dot[h][v], _mm512_setzero_si512());
            x[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(positive), w, x[v]);
        }
    }
}

// The scores of panel p's 64 keys, each within the panel's bound.
template <i64 PANEL>
INLINE void first_look(__m512 x[4], const EightBitQuery& q, const EightBitKeys<PANEL>& keys, i64 p, i64 J) {
    static_assert(PANEL == 4 * LANES);
    const int32_t* panel = keys.bytes.data() + p * keys.groups * PANEL;
    UNROLL for (i64 v = 0; v < 4; v++) x[v] = _mm512_setzero_ps();
    i64 j = 0;
    for (; j + 4 <= J; j += 4) add_heads<4, PANEL>(x, q, panel, keys.groups, j);
    for (; j < J; j++) add_heads<1, PANEL>(x, q, panel, keys.groups, j);
    UNROLL for (i64 v = 0; v < 4; v++)
        x[v] = _mm512_mul_ps(x[v], _mm512_loadu_ps(keys.scale.data() + p * PANEL + v * LANES));
}
#endif

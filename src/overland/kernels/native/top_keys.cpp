// The best-scored keys of each query, without the scores of all; the formula is in top_keys.py.
#include "common.h"

#include <algorithm>
#include <limits>
#include <vector>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

constexpr i64 PANEL = 64;    // keys beside each other in a panel: four vectors
constexpr i64 HEADS = 4;     // heads whose dots are formed together: 16 sums in registers
constexpr i64 GROUP = 32;    // queries that share a panel while it is in the cache
constexpr i64 SAMPLE = 2048; // keys that a query looks at first, to guess how good its topk-th will be

// Keys that may still be among a query's best, in the order in which they were met: ascending.
template <typename T> struct Candidates {
    std::vector<T> score, scratch;
    std::vector<int32_t> id;
    i64 n = 0, topk = 0;
    T floor = -INFINITY;  // what a key must exceed

    void start(i64 k, T f) {
        topk = k, floor = f, n = 0;
        const i64 room = 2 * k + PANEL + LANES;
        if ((i64)score.size() < room) score.resize(room), id.resize(room), scratch.resize(room);
    }
    // The best topk stay; of equal ones the earlier. A later key has to be better than the worst of them.
    void cut() {
        if (n <= topk) return;
        std::copy(score.begin(), score.begin() + n, scratch.begin());
        std::nth_element(scratch.begin(), scratch.begin() + topk - 1, scratch.begin() + n, std::greater<T>());
        floor = scratch[topk - 1];
        i64 room = topk;
        for (i64 c = 0; c < n; c++) room -= score[c] > floor;
        i64 kept = 0;
        for (i64 c = 0; c < n; c++) {
            const bool equal = score[c] == floor && room > 0, stays = score[c] > floor || equal;
            room -= equal;
            score[kept] = score[c], id[kept] = id[c], kept += stays;
        }
        n = kept;
    }
    INLINE void offer(Vec<T> x, i64 first, i64 begin, i64 end) {  // scores of the keys first .. first + 15
#ifdef __AVX512F__
        if constexpr (sizeof(T) == 4) {
            __mmask16 good = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(floor), _CMP_GT_OQ);
            const __m512i ids = _mm512_add_epi32(_mm512_set1_epi32((int)first),
                                                 _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
            if (first < begin || first + LANES > end)
                good &= _mm512_cmpge_epi32_mask(ids, _mm512_set1_epi32((int)begin)) &
                        _mm512_cmplt_epi32_mask(ids, _mm512_set1_epi32((int)end));
            if (!good) return;
            _mm512_storeu_ps(score.data() + n, _mm512_maskz_compress_ps(good, (__m512)x));
            _mm512_storeu_si512(id.data() + n, _mm512_maskz_compress_epi32(good, ids));
            n += __builtin_popcount(good);
            return;
        }
#endif
        for (i64 l = 0; l < LANES; l++) {
            const i64 s = first + l;
            score[n] = x[l], id[n] = (int32_t)s;
            n += x[l] > floor && s >= begin && s < end;
        }
    }
};

// Scores of the PANEL keys of `panel` [I, PANEL] for one query [J, I] with weights [J]: x [4 vectors].
template <typename T> INLINE void score_panel(Vec<T> x[4], const T* q, const T* w, const T* panel, i64 J, i64 I) {
    UNROLL for (i64 v = 0; v < 4; v++) x[v] = Vec<T>{};
    i64 j = 0;
    for (; j + HEADS <= J; j += HEADS) {
        Vec<T> dot[HEADS][4] = {};
        const T* at = q + j * I;
        for (i64 i = 0; i < I; i++) {
            Vec<T> k[4];
            UNROLL for (i64 v = 0; v < 4; v++) {
                k[v] = load(panel + i * PANEL + v * LANES);
#ifdef __AVX512F__
                if constexpr (sizeof(T) == 4) asm("" : "+v"(k[v]));  // loaded once, not by each of its four products
#endif
            }
            UNROLL for (i64 h = 0; h < HEADS; h++) {
                const Vec<T> by = splat(at[h * I + i]);
                UNROLL for (i64 v = 0; v < 4; v++) dot[h][v] += by * k[v];
            }
        }
        UNROLL for (i64 h = 0; h < HEADS; h++)
            UNROLL for (i64 v = 0; v < 4; v++) x[v] += w[j + h] * (dot[h][v] > 0 ? dot[h][v] : Vec<T>{});
    }
    for (; j < J; j++) {
        Vec<T> dot[4] = {};
        for (i64 i = 0; i < I; i++) {
            const Vec<T> by = splat(q[j * I + i]);
            UNROLL for (i64 v = 0; v < 4; v++) dot[v] += by * load(panel + i * PANEL + v * LANES);
        }
        UNROLL for (i64 v = 0; v < 4; v++) x[v] += w[j] * (dot[v] > 0 ? dot[v] : Vec<T>{});
    }
}

// 16 x 16 numbers turned in registers: at each step blocks of half the size change places.
template <typename T> INLINE void turn(Vec<T> r[LANES]) {
    typedef typename Vector<T>::I I;
    UNROLL for (i64 step = 8; step > 0; step /= 2) {
        I low, high;
        UNROLL for (i64 l = 0; l < LANES; l++) {
            low[l] = (l & step) ? LANES + l - step : l;
            high[l] = (l & step) ? LANES + l : l + step;
        }
        UNROLL for (i64 i = 0; i < LANES; i++)
            if (!(i & step)) {
                const Vec<T> a = r[i], b = r[i + step];
                r[i] = __builtin_shuffle(a, b, low), r[i + step] = __builtin_shuffle(a, b, high);
            }
    }
}

// Keys first, first + stride, ... of [S, I] as a panel [I, PANEL]; past the end there are zeros.
template <typename T> void transpose(T* panel, const T* k, i64 first, i64 stride, i64 S, i64 I) {
    if (I % LANES == 0 && first + (PANEL - 1) * stride < S) {
        for (i64 l = 0; l < PANEL; l += LANES)
            for (i64 i = 0; i < I; i += LANES) {
                Vec<T> r[LANES];
                UNROLL for (i64 n = 0; n < LANES; n++) r[n] = load(k + (first + (l + n) * stride) * I + i);
                turn<T>(r);
                UNROLL for (i64 n = 0; n < LANES; n++) store(panel + (i + n) * PANEL + l, r[n]);
            }
        return;
    }
    for (i64 l = 0; l < PANEL; l++) {
        const i64 s = first + l * stride;
        for (i64 i = 0; i < I; i++) panel[i * PANEL + l] = s < S ? k[s * I + i] : 0;
    }
}

// A guess at the query's topk-th score that is rarely too high: among a sample, a rank a few deviations too low.
template <typename T>
T guess(std::vector<T>& seen, const T* q, const T* w, const T* sample, i64 stride, i64 begin, i64 end, i64 topk, i64 J,
        i64 I) {
    seen.clear();
    for (i64 p = 0; p < SAMPLE / PANEL; p++) {
        if (p * PANEL * stride >= end) break;
        Vec<T> x[4];
        score_panel<T>(x, q, w, sample + p * PANEL * I, J, I);
        for (i64 l = 0; l < PANEL; l++) {
            const i64 s = (p * PANEL + l) * stride;
            const T score = x[l / LANES][l % LANES];
            if (s >= begin && s < end && score == score) seen.push_back(score);
        }
    }
    const double expected = double(topk) * double(seen.size()) / double(end - begin);
    const i64 rank = i64(expected + 3.5 * std::sqrt(expected) + 4);
    if (rank >= (i64)seen.size()) return -INFINITY;
    std::nth_element(seen.begin(), seen.begin() + rank, seen.end(), std::greater<T>());
    return std::nextafter(seen[rank], -std::numeric_limits<T>::infinity());  // keys that equal it must pass
}

// ids [T, topk] ascending, -1 behind the last; q [T, J, I]; w [T, J]; k [S, I]; query t may see begin[t] .. end[t] - 1.
template <typename T>
void top_keys(i64* ids, const T* q, const T* w, const T* k, const i64* begin, const i64* end, i64 B, i64 Tn, i64 J,
              i64 I, i64 S, i64 topk) {
    const i64 panels = (S + PANEL - 1) / PANEL, stride = std::max<i64>(1, S / SAMPLE);
    const bool few = Tn <= 2;  // then a panel is used once or twice, and is not worth keeping
    const bool samples = S > 2 * topk && S >= 2 * SAMPLE;
    std::vector<T> all((few ? 1 : panels) * PANEL * I), sample(samples ? SAMPLE * I : 0);
    std::vector<T> seen;
    std::vector<Candidates<T>> best(std::min(GROUP, Tn));
    for (i64 b = 0; b < B; b++, k += S * I) {
        if (!few)
            for (i64 p = 0; p < panels; p++) transpose(&all[p * PANEL * I], k, p * PANEL, 1, S, I);
        if (samples)
            for (i64 p = 0; p < SAMPLE / PANEL; p++)
                transpose(&sample[p * PANEL * I], k, p * PANEL * stride, stride, S, I);
        for (i64 t0 = 0; t0 < Tn; t0 += GROUP) {
            const i64 here = std::min(GROUP, Tn - t0);
            i64 from = S, to = 0;
            for (i64 g = 0; g < here; g++) {
                const i64 t = b * Tn + t0 + g;
                from = std::min(from, begin[t]), to = std::max(to, end[t]);
                const bool guesses = samples && end[t] - begin[t] > 2 * topk;
                const T* own = q + t * J * I;
                const T floor = guesses ? guess<T>(seen, own, w + t * J, sample.data(), stride, begin[t], end[t], topk, J, I)
                                        : -std::numeric_limits<T>::infinity();
                best[g].start(topk, floor);
            }
            for (i64 again = 0; again < 2; again++) {  // a second time for those whose guess was too high
                bool missed = false;
                for (i64 p = from / PANEL; p * PANEL < to; p++) {
                    if (few) transpose(all.data(), k, p * PANEL, 1, S, I);
                    const T* panel = few ? all.data() : &all[p * PANEL * I];
                    for (i64 g = 0; g < here; g++) {
                        const i64 t = b * Tn + t0 + g;
                        Candidates<T>& c = best[g];
                        if (p * PANEL >= end[t] || (p + 1) * PANEL <= begin[t] || c.topk == 0) continue;
                        Vec<T> x[4];
                        score_panel<T>(x, q + t * J * I, w + t * J, panel, J, I);
                        UNROLL for (i64 v = 0; v < 4; v++) c.offer(x[v], p * PANEL + v * LANES, begin[t], end[t]);
                        if (c.n > 2 * topk) c.cut();
                    }
                }
                for (i64 g = 0; g < here; g++) {
                    const i64 t = b * Tn + t0 + g;
                    Candidates<T>& c = best[g];
                    if (c.topk == 0) continue;
                    c.cut();
                    if (again == 0 && c.n < std::min(topk, end[t] - begin[t]) && c.floor > -INFINITY) {
                        c.start(topk, -std::numeric_limits<T>::infinity());
                        missed = true;
                        continue;
                    }
                    i64* out = ids + t * topk;
                    for (i64 n = 0; n < topk; n++) out[n] = n < c.n ? c.id[n] : -1;
                    c.topk = 0;  // done
                }
                if (!missed) break;
            }
        }
    }
}

BOTH(top_keys,
     (i64* ids, const T* q, const T* w, const T* k, const i64* begin, const i64* end, i64 B, i64 Tn, i64 J, i64 I,
      i64 S, i64 topk),
     (ids, q, w, k, begin, end, B, Tn, J, I, S, topk))

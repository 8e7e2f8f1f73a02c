// The best-scored keys of each query, without the scores of all; the formula is in top_keys.py.
#include "common.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "first_look.h"
#include "kth_largest.h"
#include "product.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

constexpr i64 HEADS = 4;        // heads whose dots are formed together: 16 sums in registers
constexpr i64 GROUP = 64;       // queries that share a block of panels while it is in the cache
constexpr i64 BLOCK = 4;        // panels that a query looks through before the next one does
constexpr i64 SAMPLE = 2048;    // keys that a query looks at first, to guess how good its topk-th will be
constexpr i64 QUERIES = 8;      // so many at least pay for a first look in eight bits
constexpr double SHARE = 0.15;  // of the keys: where more would be looked at twice, all are once

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
        floor = kth_largest(score.data(), n, topk, scratch.data());
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
    // The scores of PANEL keys, of which the first `count` are offered: ids[l], within begin .. end - 1.
    INLINE void offer(const Vec<T> x[4], const int32_t* ids, i64 begin, i64 end) {
        UNROLL for (i64 v = 0; v < 4; v++) offer(x[v], ids + v * LANES, begin, end);
        if (n > 2 * topk) cut();
    }
    INLINE void offer(Vec<T> x, const int32_t* ids, i64 begin, i64 end) {
#ifdef __AVX512F__
        if constexpr (sizeof(T) == 4) {
            const __m512i id16 = _mm512_loadu_si512(ids);
            const __mmask16 good = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(floor), _CMP_GT_OQ) &
                                   _mm512_cmpge_epi32_mask(id16, _mm512_set1_epi32((int)begin)) &
                                   _mm512_cmplt_epi32_mask(id16, _mm512_set1_epi32((int)end));
            if (!good) return;
            _mm512_storeu_ps(score.data() + n, _mm512_maskz_compress_ps(good, (__m512)x));
            _mm512_storeu_si512(id.data() + n, _mm512_maskz_compress_epi32(good, id16));
            n += __builtin_popcount(good);
            return;
        }
#endif
        for (i64 l = 0; l < LANES; l++) {
            score[n] = x[l], id[n] = ids[l];
            n += x[l] > floor && ids[l] >= begin && ids[l] < end;
        }
    }
};

// Scores of the PANEL keys of `panel` [I, PANEL] for one query [J, I] with weights [J]: x [4 vectors]. Never inlined,
// so that a key has one score, wherever it is asked for.
template <typename T>
__attribute__((noinline)) void score_panel(Vec<T> x[4], const T* q, const T* w, const T* panel, i64 J, i64 I) {
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

// The keys ids [PANEL] of [S, I] as a panel [I, PANEL]; past the end there are zeros.
template <typename T> void gather(T* panel, const T* k, const int32_t* ids, i64 S, i64 I) {
    if (I % LANES == 0 && ids[PANEL - 1] < S) {  // they ascend
        for (i64 l = 0; l < PANEL; l += LANES)
            for (i64 i = 0; i < I; i += LANES) {
                Vec<T> r[LANES];
                UNROLL for (i64 n = 0; n < LANES; n++) r[n] = load(k + ids[l + n] * I + i);
                turn<T>(r);
                UNROLL for (i64 n = 0; n < LANES; n++) store(panel + (i + n) * PANEL + l, r[n]);
            }
        return;
    }
    for (i64 l = 0; l < PANEL; l++)
        for (i64 i = 0; i < I; i++) panel[i * PANEL + l] = ids[l] < S ? k[ids[l] * I + i] : 0;
}

struct Places {  // first, first + stride, ...
    int32_t id[PANEL];
    Places(i64 first, i64 stride) {
        for (i64 l = 0; l < PANEL; l++) id[l] = (int32_t)(first + l * stride);
    }
};

// All keys of a row as panels, each made when it is first asked for; kept where more than two queries ask.
template <typename T> struct Panels {
    const T* k;
    i64 S, I;
    bool keeps;
    std::vector<std::vector<T>> made;

    Panels(const T* keys, i64 S, i64 I, bool keeps) : k(keys), S(S), I(I), keeps(keeps) {
        made.resize(keeps ? (S + PANEL - 1) / PANEL : 1);
    }
    const T* at(i64 p) {
        std::vector<T>& panel = made[keeps ? p : 0];
        if (!keeps || panel.empty()) {
            panel.resize(PANEL * I);
            gather(panel.data(), k, Places(p * PANEL, 1).id, S, I);
        }
        return panel.data();
    }
};

// Asks for a share of the block at panel p, so that it lies in the cache when its turn comes.
template <typename T> INLINE void fetch(const T* k, i64 S, i64 I, i64 p, i64 part, i64 parts) {
    const i64 bytes = (std::min(S, (p + BLOCK) * PANEL) - p * PANEL) * I * sizeof(T);
    const i64 share = (bytes / parts + 63) / 64 * 64;
    const char* from = (const char*)(k + p * PANEL * I);
    for (i64 c = part * share; c < std::min(bytes, (part + 1) * share); c += 64) __builtin_prefetch(from + c);
}

// A query, what it may see, and how good a key has to be: a guess at its topk-th score that is rarely too high.
template <typename T> struct Query {
    const T *q, *w;
    i64 begin, end, topk, J, I;
    T floor = -INFINITY;

    // Among a sample, a rank a few deviations too low. `seen` keeps the sample's scores.
    void guess(std::vector<T>& seen, std::vector<T>& scratch, const T* sample, i64 stride) {
        seen.clear();
        for (i64 p = 0; p < SAMPLE / PANEL && p * PANEL * stride < end; p++) {
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
        if (rank >= (i64)seen.size()) return;
        scratch.resize(SAMPLE);
        const T found = kth_largest(seen.data(), seen.size(), rank + 1, scratch.data());
        floor = std::nextafter(found, -std::numeric_limits<T>::infinity());  // keys that equal it must pass
    }
};

#ifdef FIRST_LOOK
// Keys that passed a first look wait here until there is a panel of them; then their scores are formed.
struct Waiting {
    std::vector<float> panel;
    int32_t id[2 * PANEL + LANES];
    i64 n = 0, S = 0;
    const float* k = nullptr;

    void start(const float* keys, i64 number, i64 I) { n = 0, k = keys, S = number, panel.resize(PANEL * I); }
    // The keys of panels p .. to - 1 that have a chance.
    __attribute__((noinline)) void scan(const EightBitQuery& small, const EightBitKeys<PANEL>& keys, i64 p, i64 to,
                                        const Query<float>& query, Candidates<float>& best) {
        const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i begin = _mm512_set1_epi32((int)query.begin), end = _mm512_set1_epi32((int)query.end);
        for (; p < to; p++) {
            __m512 x[4];
            first_look(x, small, keys, p, query.J);
            const __m512 least = _mm512_set1_ps(best.floor), by = _mm512_set1_ps(small.bound(keys, p));
            UNROLL for (i64 v = 0; v < 4; v++) {
                const __m512i ids = _mm512_add_epi32(_mm512_set1_epi32((int)(p * PANEL + v * LANES)), count);
                const __mmask16 seen = _mm512_cmpge_epi32_mask(ids, begin) & _mm512_cmplt_epi32_mask(ids, end);
                const __mmask16 good = _mm512_mask_cmp_ps_mask(seen, _mm512_add_ps(x[v], by), least, _CMP_GT_OQ);
                _mm512_storeu_si512(id + n, _mm512_maskz_compress_epi32(good, ids));
                n += __builtin_popcount(good);
            }
            if (n < PANEL) continue;
            look(PANEL, query, best);
            std::memmove(id, id + PANEL, PANEL * sizeof *id), n -= PANEL;
        }
    }
    void look(i64 number, const Query<float>& query, Candidates<float>& best) {
        for (i64 l = number; l < PANEL; l++) id[l] = (int32_t)S;
        Vec<float> x[4];
        gather(panel.data(), k, id, S, query.I);
        score_panel<float>(x, query.q, query.w, panel.data(), query.J, query.I);
        best.offer(x, id, query.begin, query.end);
    }
};
#endif

// ids [T, topk] ascending, -1 behind the last; q [T, J, I]; w [T, J]; k [S, I]; query t may see begin[t] .. end[t] - 1.
// `coarse` 0 leaves out the first look in eight bits; the ids are the same.
template <typename T>
void top_keys(i64* ids, const T* q, const T* w, const T* k, const i64* begin, const i64* end, i64 B, i64 Tn, i64 J,
              i64 I, i64 S, i64 topk, i64 coarse) {
    const i64 stride = std::max<i64>(1, S / SAMPLE);
    const bool samples = S > 2 * topk && S >= 2 * SAMPLE;
    std::vector<T> sample(samples ? SAMPLE * I : 0), seen, scratch;
    std::vector<Candidates<T>> best(std::min(GROUP, Tn));
    std::vector<Query<T>> query(std::min(GROUP, Tn));
    std::vector<char> whole(std::min(GROUP, Tn)), done(std::min(GROUP, Tn));
#ifdef FIRST_LOOK
    const bool looks = coarse && sizeof(T) == 4 && samples && Tn >= QUERIES;
    EightBitKeys<PANEL> keys;
    std::vector<EightBitQuery> small(looks ? GROUP : 0);
    std::vector<Waiting> waiting(looks ? GROUP : 0);
#endif
    for (i64 b = 0; b < B; b++, k += S * I) {
        Panels<T> panels(k, S, I, Tn > 2);
        if (samples)
            for (i64 p = 0; p < SAMPLE / PANEL; p++)
                gather(&sample[p * PANEL * I], k, Places(p * PANEL * stride, stride).id, S, I);
#ifdef FIRST_LOOK
        if constexpr (sizeof(T) == 4)
            if (looks) keys.make(k, S, I);
#endif
        for (i64 t0 = 0; t0 < Tn; t0 += GROUP) {
            const i64 here = std::min(GROUP, Tn - t0);
            i64 from = S, to = 0;
            for (i64 g = 0; g < here; g++) {
                const i64 t = b * Tn + t0 + g;
                query[g] = {q + t * J * I, w + t * J, begin[t], end[t], topk, J, I};
                from = std::min(from, begin[t]), to = std::max(to, end[t]);
                if (samples && end[t] - begin[t] > 2 * topk) query[g].guess(seen, scratch, sample.data(), stride);
                best[g].start(topk, query[g].floor);
                whole[g] = true, done[g] = false;
#ifdef FIRST_LOOK
                if constexpr (sizeof(T) == 4)
                    if (looks && query[g].floor > -INFINITY) {
                        small[g].make(query[g].q, query[g].w, J, I);
                        const T off = small[g].per_far * keys.usual_far + small[g].per_norm * keys.usual_norm;
                        i64 twice = 0;
                        for (const T x : seen) twice += x + off > query[g].floor;
                        whole[g] = !(small[g].usable && double(twice) <= SHARE * double(seen.size()));
                        waiting[g].start(k, S, I);
                    }
#endif
            }
            for (i64 again = 0; again < 2; again++) {  // a second time for those whose guess was too high
                bool missed = false;
                for (i64 p = from / PANEL; p * PANEL < to; p += BLOCK) {
                    const i64 last = std::min(p + BLOCK, (to + PANEL - 1) / PANEL);
                    for (i64 g = 0; g < here; g++) {
                        fetch(k, S, I, p + BLOCK, g, here);
                        Query<T>& one = query[g];
                        const i64 own = std::max(p, one.begin / PANEL);
                        const i64 stop = std::min(last, (one.end + PANEL - 1) / PANEL);
                        if (done[g]) continue;
#ifdef FIRST_LOOK
                        if constexpr (sizeof(T) == 4)
                            if (!whole[g]) {
                                waiting[g].scan(small[g], keys, own, stop, one, best[g]);
                                continue;
                            }
#endif
                        for (i64 at = own; at < stop; at++) {
                            Vec<T> x[4];
                            score_panel<T>(x, one.q, one.w, panels.at(at), J, I);
                            best[g].offer(x, Places(at * PANEL, 1).id, one.begin, one.end);
                        }
                    }
                }
                for (i64 g = 0; g < here; g++) {
                    if (done[g]) continue;
                    i64* out = ids + (b * Tn + t0 + g) * topk;
                    Query<T>& one = query[g];
                    Candidates<T>& c = best[g];
                    done[g] = true;
#ifdef FIRST_LOOK
                    if constexpr (sizeof(T) == 4)
                        if (!whole[g] && waiting[g].n) waiting[g].look(waiting[g].n, one, c);
#endif
                    c.cut();
                    if (again == 0 && std::min(topk, one.end - one.begin) > c.n && c.floor > -INFINITY) {
                        done[g] = false, missed = true, whole[g] = true;
                        c.start(topk, -INFINITY);
                        continue;
                    }
                    for (i64 n = 0; n < topk; n++) out[n] = n < c.n ? c.id[n] : -1;
                }
                if (!missed) break;
            }
        }
    }
}

BOTH(top_keys,
     (i64* ids, const T* q, const T* w, const T* k, const i64* begin, const i64* end, i64 B, i64 Tn, i64 J, i64 I,
      i64 S, i64 topk, i64 coarse),
     (ids, q, w, k, begin, end, B, Tn, J, I, S, topk, coarse))

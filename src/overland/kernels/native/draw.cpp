// One token a row from whole distributions, and its log-probability; the formula is in draw.py.
#include "room.h"
#include "rows.h"

// The first token whose cumulated weight exceeds u times the whole; e [V] weights, V a multiple of 16 with zeros behind.
template <typename T> i64 pick(const T* e, i64 V, double u, double total, i64 limit) {
    double before = 0;
    const double wanted = u * total;
    for (i64 c = 0; c < V; c += LANES) {
        const double here = sum<T>(load(e + c));
        if (before + here > wanted || c + LANES >= V)
            for (i64 i = c; i < c + LANES; i++)
                if ((before += e[i]) > wanted && e[i] > 0) return i < limit ? i : limit - 1;
        before = c + LANES < V ? before + here : before;
    }
    i64 last = limit - 1;  // rounding left nothing: the last token that can be drawn
    while (last > 0 && !(e[last] > 0)) last--;
    return last;
}

// logits [*, V]; for each of n rows its line, temperature (0: greedy), u in [0, 1) and the token that is forced (or -1).
// Writes tokens [n] and logprobs [n]. What the row before drew from is not computed again.
template <typename T>
void draw(T* logprobs, i64* tokens, const T* logits, const i64* lines, const double* temperature, const double* u,
          const i64* forced, i64 n, i64 V) {
    const i64 padded = (V + LANES - 1) / LANES * LANES;
    Room<T> room(2 * padded);
    T *x = room.take(padded), *e = room.take(padded), top = 0;
    i64 best = 0;
    double total = 0;
    for (i64 i = V; i < padded; i++) x[i] = -INFINITY;
    for (i64 r = 0; r < n; r++) {
        if (!r || lines[r] != lines[r - 1] || temperature[r] != temperature[r - 1]) {
            const T heat = temperature[r] == 0 ? T(1) : T(temperature[r]);
            for (i64 c = 0; c < V; c += LANES) store<T>(x + c, load(logits + lines[r] * V + c, V - c) / heat, V - c);
            top = largest(x, padded);
            for (best = 0; best < V - 1 && !(x[best] == top);) best++;
            total = 0;
            for (i64 c = 0; c < padded; c += LANES) {
                const Vec<T> w = exp(load(x + c) - top);
                store<T>(e + c, w);
                total += sum<T>(w);
            }
        }
        i64 token = forced[r];
        if (token < 0) token = temperature[r] == 0 ? best : pick(e, padded, u[r], total, V);
        tokens[r] = token;
        logprobs[r] = x[token] - top - T(std::log(total));
    }
}

BOTH(draw,
     (T* logprobs, i64* tokens, const T* logits, const i64* lines, const double* temperature, const double* u,
      const i64* forced, i64 n, i64 V),
     (logprobs, tokens, logits, lines, temperature, u, forced, n, V))

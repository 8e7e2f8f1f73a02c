// KDA's forget gates, bounded and not, with their gradients; the formulas are in log_decay.py.
#include "rows.h"

// z, g [rows, H, K]; bias [H, K]; rate [H]; bound 0 stands for none.
template <typename T>
void decay_forward(T* g, const T* z, const T* bias, const T* rate, i64 rows, i64 H, i64 K, double bound) {
    for (i64 r = 0; r < rows; r++)
        for (i64 h = 0; h < H; h++)
            for (i64 c = 0; c < K; c += LANES) {
                const i64 at = (r * H + h) * K + c, n = K - c;
                const Vec<T> x = load(z + at, n) + load(bias + h * K + c, n);
                store<T>(g + at, log_decay<T>(x, rate[h], T(bound)), n);
            }
}

// d_bias [H, K] and d_rate [H] are added to.
template <typename T>
void decay_backward(T* d_z, T* d_bias, T* d_rate, const T* d_g, const T* z, const T* bias, const T* rate, i64 rows,
                    i64 H, i64 K, double bound) {
    for (i64 h = 0; h < H; h++)
        for (i64 c = 0; c < K; c += LANES) {
            const i64 n = K - c;
            Vec<T> to_bias{}, to_rate{};
            for (i64 r = 0; r < rows; r++) {
                const i64 at = (r * H + h) * K + c;
                const Vec<T> x = load(z + at, n) + load(bias + h * K + c, n), d = load(d_g + at, n);
                Vec<T> d_x, d_r;
                if (bound != 0) {
                    const Vec<T> s = sigmoid<T>(rate[h] * x), slope = d * T(bound) * s * (1 - s);
                    d_x = slope * rate[h], d_r = slope * x;
                } else {
                    d_x = -rate[h] * d * sigmoid<T>(x), d_r = -d * softplus<T>(x);
                }
                store<T>(d_z + at, d_x, n);
                to_bias += d_x;
                for (i64 i = 0; i < LANES; i++) to_rate[i] += i < n ? d_r[i] : T(0);
            }
            store<T>(d_bias + h * K + c, load(d_bias + h * K + c, n) + to_bias, n);
            d_rate[h] += sum<T>(to_rate);
        }
}

BOTH(decay_forward, (T* g, const T* z, const T* bias, const T* rate, i64 rows, i64 H, i64 K, double bound),
     (g, z, bias, rate, rows, H, K, bound))
BOTH(decay_backward,
     (T* d_z, T* d_bias, T* d_rate, const T* d_g, const T* z, const T* bias, const T* rate, i64 rows, i64 H, i64 K,
      double bound),
     (d_z, d_bias, d_rate, d_g, z, bias, rate, rows, H, K, bound))

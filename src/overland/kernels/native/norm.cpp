// Root-mean-square norm over the last dimension, with a weight and optionally a sigmoid gate; the formula is in norm.py.
#include "rows.h"

// x, y, gate (or null) [rows, D]; w [D]
template <typename T> void norm_forward(T* y, const T* x, const T* w, const T* gate, i64 rows, i64 D, double eps) {
    for (i64 r = 0; r < rows; r++) norm_row(y + r * D, x + r * D, w, gate ? gate + r * D : nullptr, D, eps);
}

// d_w [D] is added to.
template <typename T>
void norm_backward(T* d_x, T* d_w, T* d_gate, const T* d_y, const T* x, const T* w, const T* gate, i64 rows, i64 D,
                   double eps) {
    for (i64 r = 0; r < rows; r++, x += D, d_x += D, d_y += D) {
        const T by = inverse_rms(x, D, eps);
        Vec<T> along{};
        for (i64 c = 0; c < D; c += LANES) {
            const i64 n = D - c;
            const Vec<T> unit = load(x + c, n) * by, weight = load(w + c, n);
            Vec<T> d = load(d_y + c, n);
            if (gate) {
                const Vec<T> open = sigmoid<T>(load(gate + r * D + c, n));
                store<T>(d_gate + r * D + c, d * unit * weight * open * (1 - open), n);
                d *= open;
            }
            store<T>(d_w + c, load(d_w + c, n) + d * unit, n);
            d *= weight;
            store<T>(d_x + c, d, n);  // for now the gradient of the normed x
            along += d * unit;
        }
        const T mean = sum<T>(along) / D;
        for (i64 c = 0; c < D; c += LANES) {
            const i64 n = D - c;
            store<T>(d_x + c, by * (load(d_x + c, n) - load(x + c, n) * (by * mean)), n);
        }
    }
}

BOTH(norm_forward, (T* y, const T* x, const T* w, const T* gate, i64 rows, i64 D, double eps),
     (y, x, w, gate, rows, D, eps))
BOTH(norm_backward,
     (T* d_x, T* d_w, T* d_gate, const T* d_y, const T* x, const T* w, const T* gate, i64 rows, i64 D, double eps),
     (d_x, d_w, d_gate, d_y, x, w, gate, rows, D, eps))

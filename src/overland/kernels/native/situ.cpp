// SiTU-GLU's product and its gradient in one pass each; the formula is in situ.py.
#include "rows.h"

// gate, up: [rows, width] with rows `stride` apart (they may be halves of one matrix); y [rows, width].
template <typename T>
void situ_forward(T* y, const T* gate, const T* up, i64 rows, i64 width, i64 stride, double gate_cap, double up_cap) {
    gated_rows(y, width, gate, up, rows, width, stride, T(gate_cap), T(up_cap));
}

template <typename T>
void situ_backward(T* d_gate, T* d_up, const T* d_y, const T* gate, const T* up, i64 rows, i64 width, i64 stride,
                   double gate_cap, double up_cap) {
    for (i64 r = 0; r < rows; r++, d_y += width, gate += stride, up += stride, d_gate += stride, d_up += stride)
        for (i64 c = 0; c < width; c += LANES) {
            const i64 n = width - c;
            const Situ<T> s(load(gate + c, n), load(up + c, n), gate_cap, up_cap);
            const Vec<T> scaled = load(d_y + c, n) * s.open;
            store<T>(d_up + c, scaled * s.tanh_gate * T(gate_cap) * (1 - s.tanh_up * s.tanh_up), n);
            const Vec<T> slope = 1 + s.tanh_gate * (T(gate_cap) * (1 - s.open) - s.tanh_gate);
            store<T>(d_gate + c, scaled * s.tanh_up * T(up_cap) * slope, n);
        }
}

BOTH(situ_forward, (T* y, const T* gate, const T* up, i64 rows, i64 width, i64 stride, double gate_cap, double up_cap),
     (y, gate, up, rows, width, stride, gate_cap, up_cap))
BOTH(situ_backward,
     (T* d_gate, T* d_up, const T* d_y, const T* gate, const T* up, i64 rows, i64 width, i64 stride, double gate_cap,
      double up_cap),
     (d_gate, d_up, d_y, gate, up, rows, width, stride, gate_cap, up_cap))

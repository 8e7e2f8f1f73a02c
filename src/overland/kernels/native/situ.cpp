// SiTU-GLU's product and its gradient in one pass each; the formula is in situ.py.
#include "common.h"

template <typename T> struct Situ {
    Vec<T> open, tanh_gate, tanh_up;
    INLINE Situ(Vec<T> gate, Vec<T> up, T gate_cap, T up_cap)
        : open(sigmoid<T>(gate)), tanh_gate(tanh(gate * (1 / gate_cap))), tanh_up(tanh(up * (1 / up_cap))) {}
};

// gate, up: [rows, width] with row strides of their own (they may be halves of one matrix); y [rows, width].
template <typename T>
void situ_forward(T* y, const T* gate, const T* up, i64 rows, i64 width, i64 stride, double gate_cap, double up_cap) {
    const T caps = gate_cap * up_cap;
    auto block = [&](Vec<T> g, Vec<T> u) {
        const Situ<T> s(g, u, gate_cap, up_cap);
        return caps * s.tanh_gate * s.open * s.tanh_up;
    };
    for (i64 r = 0; r < rows; r++, y += width, gate += stride, up += stride) {
        i64 c = 0;
        for (; c + Vector<T>::size <= width; c += Vector<T>::size) store(y + c, block(load(gate + c), load(up + c)));
        if (c < width) {
            const i64 n = width - c;
            store_some(y + c, block(load_some(gate + c, n), load_some(up + c, n)), n);
        }
    }
}

template <typename T>
void situ_backward(T* d_gate, T* d_up, const T* d_y, const T* gate, const T* up, i64 rows, i64 width, i64 stride,
                   double gate_cap, double up_cap) {
    auto block = [&](Vec<T> d, Vec<T> g, Vec<T> u, Vec<T>& dg, Vec<T>& du) {
        const Situ<T> s(g, u, gate_cap, up_cap);
        const Vec<T> scaled = d * s.open;
        du = scaled * s.tanh_gate * T(gate_cap) * (1 - s.tanh_up * s.tanh_up);
        dg = scaled * s.tanh_up * T(up_cap) * (1 + s.tanh_gate * (T(gate_cap) * (1 - s.open) - s.tanh_gate));
    };
    for (i64 r = 0; r < rows; r++, d_y += width, gate += stride, up += stride, d_gate += stride, d_up += stride) {
        i64 c = 0;
        Vec<T> dg, du;
        for (; c + Vector<T>::size <= width; c += Vector<T>::size) {
            block(load(d_y + c), load(gate + c), load(up + c), dg, du);
            store(d_gate + c, dg);
            store(d_up + c, du);
        }
        if (c < width) {
            const i64 n = width - c;
            block(load_some(d_y + c, n), load_some(gate + c, n), load_some(up + c, n), dg, du);
            store_some(d_gate + c, dg, n);
            store_some(d_up + c, du, n);
        }
    }
}

BOTH(situ_forward, (T* y, const T* gate, const T* up, i64 rows, i64 width, i64 stride, double gate_cap, double up_cap),
     (y, gate, up, rows, width, stride, gate_cap, up_cap))
BOTH(situ_backward,
     (T* d_gate, T* d_up, const T* d_y, const T* gate, const T* up, i64 rows, i64 width, i64 stride, double gate_cap,
      double up_cap),
     (d_gate, d_up, d_y, gate, up, rows, width, stride, gate_cap, up_cap))

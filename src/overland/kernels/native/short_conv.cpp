// SiLU of a causal depthwise convolution, with a tail from before and one for after; the formula is in short_conv.py.
#include "common.h"

// One row of the batch, 16 channels: where its inputs begin. `tail` may be null: zeros.
template <typename T> struct Line {
    const T *u, *tail;
    i64 P, tail_stride, channels;
    INLINE Vec<T> at(i64 t, i64 taps) const {  // t < 0 reaches into the tail
        if (t >= 0) return load(u + t * P, channels);
        return tail ? load(tail + (t + taps - 1) * tail_stride, channels) : Vec<T>{};
    }
};
template <typename T, i64 W> INLINE void read_taps(Vec<T> (&tap)[W], const T* w, i64 channels) {
    for (i64 j = 0; j < W; j++) {
        tap[j] = Vec<T>{};
        for (i64 i = 0; i < (channels < LANES ? channels : LANES); i++) tap[j][i] = w[i * W + j];
    }
}

// u, y [B, T, P]; w [P, W]; tail and next [B, W-1, tail_stride], of which the P columns from 0 on are ours.
template <typename T, i64 W>
void forward(T* y, T* next, const T* u, const T* w, const T* tail, const i64* documents, const i64* lengths, i64 B,
             i64 Tn, i64 P, i64 tail_stride) {
    for (i64 b = 0; b < B; b++)
        for (i64 c = 0; c < P; c += LANES) {
            const i64 n = P - c, tokens = lengths ? lengths[b] : Tn;
            const Line<T> line{u + b * Tn * P + c, tail ? tail + b * (W - 1) * tail_stride + c : nullptr, P, tail_stride, n};
            Vec<T> tap[W], h[W];
            read_taps<T, W>(tap, w + c * W, n);
            UNROLL for (i64 j = 0; j < W - 1; j++) h[j] = line.at(j - (W - 1), W);
            for (i64 t = 0; t < Tn; t++) {
                if (t >= tokens) {
                    store<T>(y + (b * Tn + t) * P + c, Vec<T>{}, n);
                    continue;
                }
                if (documents && t > 0 && documents[b * Tn + t] != documents[b * Tn + t - 1])
                    UNROLL for (i64 j = 0; j < W - 1; j++) h[j] = Vec<T>{};
                h[W - 1] = line.at(t, W);
                Vec<T> p{};
                UNROLL for (i64 j = 0; j < W; j++) p += tap[j] * h[j];
                store<T>(y + (b * Tn + t) * P + c, p * sigmoid<T>(p), n);
                UNROLL for (i64 j = 0; j < W - 1; j++) h[j] = h[j + 1];
            }
            for (i64 j = 0; j < W - 1; j++)
                store<T>(next + (b * (W - 1) + j) * tail_stride + c, line.at(tokens - (W - 1) + j, W), n);
        }
}

// d_w [P, W] is added to; d_tail and d_next may be null.
template <typename T, i64 W>
void backward(T* d_u, T* d_w, T* d_tail, const T* d_y, const T* d_next, const T* u, const T* w, const T* tail,
              const i64* documents, const i64* lengths, i64 B, i64 Tn, i64 P, i64 tail_stride) {
    for (i64 c = 0; c < P; c += LANES) {
        const i64 n = P - c;
        Vec<T> tap[W], d_tap[W] = {};
        read_taps<T, W>(tap, w + c * W, n);
        for (i64 b = 0; b < B; b++) {
            const i64 tokens = lengths ? lengths[b] : Tn;
            const Line<T> line{u + b * Tn * P + c, tail ? tail + b * (W - 1) * tail_stride + c : nullptr, P, tail_stride, n};
            auto write = [&](i64 t, Vec<T> d) {  // the gradient of the input at t is complete
                if (t >= 0) store<T>(d_u + (b * Tn + t) * P + c, d, n);
                else if (d_tail) store<T>(d_tail + (b * (W - 1) + t + W - 1) * tail_stride + c, d, n);
            };
            Vec<T> h[W], d[W] = {};
            i64 valid = 0;  // taps before this one lie in another document
            UNROLL for (i64 j = 0; j < W - 1; j++) h[j] = line.at(j - (W - 1), W);
            for (i64 t = 0; t < tokens; t++) {
                if (documents && t > 0 && documents[b * Tn + t] != documents[b * Tn + t - 1]) valid = W - 1;
                h[W - 1] = line.at(t, W);
                Vec<T> p{};
                UNROLL for (i64 j = 0; j < W; j++) if (j >= valid) p += tap[j] * h[j];
                const Vec<T> open = sigmoid<T>(p), s = load(d_y + (b * Tn + t) * P + c, n) * open * (1 + p * (1 - open));
                UNROLL for (i64 j = 0; j < W; j++)
                    if (j >= valid) {
                        d_tap[j] += s * h[j];
                        d[j] += s * tap[j];
                    }
                write(t - (W - 1), d[0]);
                UNROLL for (i64 j = 0; j < W - 1; j++) h[j] = h[j + 1], d[j] = d[j + 1];
                d[W - 1] = Vec<T>{};
                if (valid) valid--;
            }
            for (i64 j = 0; j < W - 1; j++) {
                const T* from = d_next ? d_next + (b * (W - 1) + j) * tail_stride + c : nullptr;
                write(tokens - (W - 1) + j, from ? d[j] + load(from, n) : d[j]);
            }
            for (i64 t = tokens; t < Tn; t++) store<T>(d_u + (b * Tn + t) * P + c, Vec<T>{}, n);
        }
        for (i64 j = 0; j < W; j++)
            for (i64 i = 0; i < (n < LANES ? n : LANES); i++) d_w[(c + i) * W + j] += d_tap[j][i];
    }
}

template <typename T>
void conv_forward(T* y, T* next, const T* u, const T* w, const T* tail, const i64* documents, const i64* lengths,
                  i64 B, i64 Tn, i64 P, i64 W, i64 first, i64 tail_stride) {
    next += first, tail = tail ? tail + first : nullptr;
    if (W == 2) forward<T, 2>(y, next, u, w, tail, documents, lengths, B, Tn, P, tail_stride);
    if (W == 3) forward<T, 3>(y, next, u, w, tail, documents, lengths, B, Tn, P, tail_stride);
    if (W == 4) forward<T, 4>(y, next, u, w, tail, documents, lengths, B, Tn, P, tail_stride);
}
template <typename T>
void conv_backward(T* d_u, T* d_w, T* d_tail, const T* d_y, const T* d_next, const T* u, const T* w, const T* tail,
                   const i64* documents, const i64* lengths, i64 B, i64 Tn, i64 P, i64 W, i64 first, i64 tail_stride) {
    d_tail = d_tail ? d_tail + first : nullptr, d_next = d_next ? d_next + first : nullptr;
    tail = tail ? tail + first : nullptr;
    if (W == 2) backward<T, 2>(d_u, d_w, d_tail, d_y, d_next, u, w, tail, documents, lengths, B, Tn, P, tail_stride);
    if (W == 3) backward<T, 3>(d_u, d_w, d_tail, d_y, d_next, u, w, tail, documents, lengths, B, Tn, P, tail_stride);
    if (W == 4) backward<T, 4>(d_u, d_w, d_tail, d_y, d_next, u, w, tail, documents, lengths, B, Tn, P, tail_stride);
}

BOTH(conv_forward,
     (T* y, T* next, const T* u, const T* w, const T* tail, const i64* documents, const i64* lengths, i64 B, i64 Tn,
      i64 P, i64 W, i64 first, i64 tail_stride),
     (y, next, u, w, tail, documents, lengths, B, Tn, P, W, first, tail_stride))
BOTH(conv_backward,
     (T* d_u, T* d_w, T* d_tail, const T* d_y, const T* d_next, const T* u, const T* w, const T* tail,
      const i64* documents, const i64* lengths, i64 B, i64 Tn, i64 P, i64 W, i64 first, i64 tail_stride),
     (d_u, d_w, d_tail, d_y, d_next, u, w, tail, documents, lengths, B, Tn, P, W, first, tail_stride))

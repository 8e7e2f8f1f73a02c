// What every kernel source shares: vectors of 64 bytes, their exp and sigmoid, and how a function is exported.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

typedef int64_t i64;

// BOTH(name, (T* y, const T* x, i64 n), (y, x, n)) exports name_f32 and name_f64, which call name<float> and
// name<double>. T is the element type in the parameter list.
#define BOTH(name, params, args)                                                                   \
    namespace f32_##name {                                                                         \
    typedef float T;                                                                               \
    extern "C" __attribute__((visibility("default"))) void name##_f32 params { name<float> args; } \
    }                                                                                              \
    namespace f64_##name {                                                                         \
    typedef double T;                                                                              \
    extern "C" __attribute__((visibility("default"))) void name##_f64 params { name<double> args; } \
    }

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")  // before the short loops over registers

// A vector of 16 elements: of floats one register with AVX-512, two with AVX2, four with NEON; the compiler splits it.
constexpr i64 LANES = 16;
template <typename T> struct Vector;
template <> struct Vector<float> {
    typedef float V __attribute__((vector_size(64)));
    typedef float Unaligned __attribute__((vector_size(64), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(64)));
};
template <> struct Vector<double> {
    typedef double V __attribute__((vector_size(128)));
    typedef double Unaligned __attribute__((vector_size(128), aligned(8), may_alias));
    typedef int64_t I __attribute__((vector_size(128)));
};
template <typename T> using Vec = typename Vector<T>::V;

template <typename T> INLINE Vec<T> load(const T* p) { return *(const typename Vector<T>::Unaligned*)p; }
template <typename T> INLINE void store(T* p, Vec<T> x) { *(typename Vector<T>::Unaligned*)p = x; }
template <typename T> INLINE Vec<T> splat(T x) { return x - Vec<T>{}; }

// The first n elements where there are fewer than 16; the rest is zero, and is not written.
template <typename T> INLINE Vec<T> load(const T* p, i64 n) {
    if (n >= LANES) return load(p);
    Vec<T> x{};
    for (i64 i = 0; i < n; i++) x[i] = p[i];
    return x;
}
template <typename T> INLINE void store(T* p, Vec<T> x, i64 n) {
    if (n >= LANES) return store(p, x);
    for (i64 i = 0; i < n; i++) p[i] = x[i];
}

// Halves are added to halves: the order is fixed, and each step is one instruction.
template <typename T> INLINE T sum(Vec<T> x) {
    typedef T Half __attribute__((vector_size(8 * sizeof(T))));
    typedef T Quarter __attribute__((vector_size(4 * sizeof(T))));
    Half halves[2];
    std::memcpy(halves, &x, sizeof x);
    const Half half = halves[0] + halves[1];
    Quarter quarters[2];
    std::memcpy(quarters, &half, sizeof half);
    const Quarter four = quarters[0] + quarters[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// e^x to one unit in the last place or two; NaN stays NaN, what overflows becomes infinity, what underflows zero.
INLINE Vec<float> exp(Vec<float> x) {
    typedef Vector<float>::I I;
    const Vec<float> high = splat(88.7228f), low = splat(-87.3365f);
    const Vec<float> clipped = x > high ? high : (x < low ? low : x);
    const Vec<float> shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec<float> shifted = clipped * 1.44269504f + shift;
    const Vec<float> n = shifted - shift;
    const Vec<float> r = (clipped - n * 0.693359375f) - n * -2.12194440e-4f;
    Vec<float> p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const I half = ((I)shifted - (I)shift) >> 1, rest = ((I)shifted - (I)shift) - half;
    p = p * (Vec<float>)((half + 127) << 23) * (Vec<float>)((rest + 127) << 23);
    p = x > high ? splat(__builtin_inff()) : (x < low ? splat(0.0f) : p);
    return x == x ? p : x;
}
INLINE Vec<double> exp(Vec<double> x) {
    Vec<double> y;
    for (i64 i = 0; i < LANES; i++) y[i] = std::exp(x[i]);
    return y;
}
template <typename T> INLINE Vec<T> sigmoid(Vec<T> x) { return T(1) / (T(1) + exp(-x)); }

// A polynomial near zero, where 2 sigmoid(2x) - 1 would lose digits.
INLINE Vec<float> tanh(Vec<float> x) {
    const Vec<float> z = x * x;
    Vec<float> p = splat(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    return z < 0.390625f ? x + x * z * p : 2.0f / (1.0f + exp(x * -2.0f)) - 1.0f;
}
INLINE Vec<double> tanh(Vec<double> x) {
    Vec<double> y;
    for (i64 i = 0; i < LANES; i++) y[i] = std::tanh(x[i]);
    return y;
}

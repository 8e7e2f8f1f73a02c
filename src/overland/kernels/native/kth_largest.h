// The k-th largest of many numbers without moving them.
#pragma once
#include "common.h"

#include <type_traits>

// Of x [n], k from 1 to n, none of them NaN; scratch [n rounded up to 16]. The answer's bits are bisected: numbers of
// one sign are ordered as their bits are, and counting those above has no branch to mispredict.
template <typename T> T kth_largest(const T* x, i64 n, i64 k, T* scratch) {
    typedef typename Vector<T>::I I;
    typedef std::remove_reference_t<decltype(I{}[0])> Bits;
    typedef std::make_unsigned_t<Bits> Distance;
    constexpr Bits sign = Bits(1) << (8 * sizeof(Bits) - 1), low_bits = ~sign;
    const I spread = I{} + Bits(8 * sizeof(Bits) - 1);
    I least = I{} + low_bits, most = I{} + sign;
    i64 vectors = 0;
    for (i64 c = 0; c < n; c += LANES, vectors++) {
        const Vec<T> here = load(x + c, n - c);
        I bits = (I)here;
        bits ^= (bits >> spread) & low_bits;
        if (n - c < LANES)
            for (i64 l = n - c; l < LANES; l++) bits[l] = sign;  // below everything
        least = bits < least && bits != sign ? bits : least, most = bits > most ? bits : most;
        store(scratch + c, (Vec<T>)bits);
    }
    Bits low = low_bits, high = sign;  // at least k are >= low, fewer than k are >= high
    for (i64 l = 0; l < LANES; l++) low = least[l] < low ? least[l] : low, high = most[l] > high ? most[l] : high;
    high++;
    while (low + 1 < high) {
        const Bits middle = Bits(low + Bits((Distance(high) - Distance(low)) / 2));
        I counts{};
        for (i64 v = 0; v < vectors; v++) counts -= (I)load(scratch + v * LANES) >= middle;
        i64 count = 0;
        for (i64 l = 0; l < LANES; l++) count += counts[l];
        (count >= k ? low : high) = middle;
        if (count == k) {  // then it is the least of these
            I found = I{} + low_bits;
            for (i64 v = 0; v < vectors; v++) {
                const I bits = (I)load(scratch + v * LANES);
                found = bits >= middle && bits < found ? bits : found;
            }
            for (i64 l = 0; l < LANES; l++) low = l == 0 || found[l] < low ? found[l] : low;
            break;
        }
    }
    low ^= (low >> (8 * sizeof(Bits) - 1)) & low_bits;
    T answer;
    std::memcpy(&answer, &low, sizeof low);
    return answer;
}

// Products of bfloat16 numbers, two at a time, summed in float.
//
// A word holds two bfloat16 numbers that are neighbours along the inner dimension of a product, the first in its lower
// half; words lie where the floats of a float product would lie, so that panels, tiles and packed weights keep their
// shape and are half as deep. A unit without AVX512-BF16 has no such products, except where the tests ask for them
// (LEM_EMULATE_BF16): the same sums from shifted halves.
#pragma once
#include "vecmath.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512BF16__) || defined(LEM_EMULATE_BF16)
constexpr bool has_bf16 = true;
#else
constexpr bool has_bf16 = false;
#endif
template <class T> constexpr bool can_pair = has_bf16 && sizeof(T) == sizeof(float);

// Keeps a broadcast in a register: folded into every multiply-add it would be loaded again and again.
template <class T> inline void pin(vec<T>& v) {
#if LEM_REGISTERS >= 32 && LEM_VECTOR_BYTES == 64 && defined(__AVX512F__)
    asm("" : "+v"(v));
#else
    (void)v;
#endif
}

// One operand in all lanes.
template <class T, bool Paired> inline vec<T> spread(const T* x) {
    vec<T> b;
    if constexpr (Paired) {
        int32_t word;
        __builtin_memcpy(&word, x, sizeof word);
        b = (vec<T>)(word - typename simd<T>::ints{});
    } else {
        b = splat(*x);
    }
    pin<T>(b);
    return b;
}

template <class T, bool Paired> inline vec<T> multiply_add(vec<T> x, vec<T> w, vec<T> sum) {
    if constexpr (!Paired) {
        return sum + x * w;
    } else {
#if defined(__AVX512BF16__)
        return (vec<T>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
#else
        using ints = typename simd<T>::ints;
        const ints high = ints{} - 65536;  // 0xffff0000
        sum += (vec<T>)((ints)x & high) * (vec<T>)((ints)w & high);
        return sum + (vec<T>)((ints)x << 16) * (vec<T>)((ints)w << 16);
#endif
    }
}

// The nearest bfloat16, as its bits; halfway cases to the even one.
inline uint16_t bf16_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    if (x != x) return uint16_t(bits >> 16 | 0x40);  // NaN must not become an infinity
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The 2 L numbers of `low` and `high` as L words, in this order.
inline vec<float> words_of(vec<float> low, vec<float> high) {
#if defined(__AVX512BF16__)
    return (vec<float>)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
    constexpr ptrdiff_t L = simd<float>::lanes;
    uint16_t half[2 * L];
    for (ptrdiff_t i = 0; i < L; ++i) half[i] = bf16_of(low[i]), half[L + i] = bf16_of(high[i]);
    vec<float> words;
    __builtin_memcpy(&words, half, sizeof words);
    return words;
#endif
}

// Word i from item i of `first` and item i of `second`.
inline vec<float> woven(vec<float> first, vec<float> second) {
#if defined(__AVX512BF16__)
    typedef uint16_t halves __attribute__((vector_size(32)));
    using ints = simd<float>::ints;
    const ints a = __builtin_convertvector((halves)_mm512_cvtneps_pbh((__m512)first), ints);
    const ints b = __builtin_convertvector((halves)_mm512_cvtneps_pbh((__m512)second), ints);
    return (vec<float>)(a | b << 16);
#else
    constexpr ptrdiff_t L = simd<float>::lanes;
    uint16_t half[2 * L];
    for (ptrdiff_t i = 0; i < L; ++i) half[2 * i] = bf16_of(first[i]), half[2 * i + 1] = bf16_of(second[i]);
    vec<float> words;
    __builtin_memcpy(&words, half, sizeof words);
    return words;
#endif
}

}  // namespace

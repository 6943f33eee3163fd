// Vectors of the compiler's own kind, and the two functions of the cell on them.
//
// exp by range reduction to |r| <= ln 2 / 2 and a minimax polynomial for expm1; sigmoid = 1 / (1 + exp(-x)) and
// tanh = -e / (e + 2) with e = expm1(-2 |x|). Error against the exact value, over the whole range, held by the sweep
// in tests/test_native.py: float sigmoid 2.5 ulp, tanh 3 ulp; double sigmoid 2.5 ulp, tanh 3 ulp. A sigmoid below the
// smallest normal number is zero. NaN stays NaN, infinities give the limits.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace {

template <class T> struct bits_of;
template <> struct bits_of<float> { using type = int32_t; };
template <> struct bits_of<double> { using type = int64_t; };

template <class T> struct simd {
    static constexpr ptrdiff_t lanes = LEM_VECTOR_BYTES / sizeof(T);
    using bits = typename bits_of<T>::type;
    typedef T vec __attribute__((vector_size(LEM_VECTOR_BYTES)));
    typedef bits ints __attribute__((vector_size(LEM_VECTOR_BYTES)));
    typedef T loose __attribute__((vector_size(LEM_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
};
template <class T> using vec = typename simd<T>::vec;

template <class T> inline vec<T> load(const T* p) { return *reinterpret_cast<const vec<T>*>(p); }
template <class T> inline void store(T* p, vec<T> v) { *reinterpret_cast<vec<T>*>(p) = v; }
template <class T> inline vec<T> load_loose(const T* p) { return *reinterpret_cast<const typename simd<T>::loose*>(p); }
template <class T> inline void store_loose(T* p, vec<T> v) { *reinterpret_cast<typename simd<T>::loose*>(p) = v; }
template <class T> inline vec<T> splat(T x) { return x - vec<T>{}; }  // x - 0 is x for every x, -0 and NaN included

template <class T> inline vec<T> clamp(vec<T> x, T low, T high) {  // NaN passes
    x = x < low ? splat(low) : x;
    return x > high ? splat(high) : x;
}

template <class T> struct expm1_of;
template <> struct expm1_of<float> {
    static constexpr float log2e = 0x1.715476p+0f, ln2_high = 0x1.62e400p-1f, ln2_low = 0x1.7f7d1cp-20f;
    static constexpr float magic = 0x1.8p23f, lowest = -87.0f, highest = 88.0f, tanh_lowest = -40.0f;
    static constexpr int shift = 23;
    static constexpr int32_t one = 0x3f800000;
    // relative error of r + r^2 q(r) against expm1(r): 1.4e-8
    static inline vec<float> q(vec<float> r) {
        return (((0x1.6beeb6p-10f * r + 0x1.1229f0p-7f) * r + 0x1.55567ap-5f) * r + 0x1.5554aep-3f) * r + 0x1.fffffep-2f;
    }
};
template <> struct expm1_of<double> {
    static constexpr double log2e = 0x1.71547652b82fep+0, ln2_high = 0x1.62e42fefa3800p-1, ln2_low = 0x1.ef35793c76730p-45;
    static constexpr double magic = 0x1.8p52, lowest = -708.0, highest = 709.0, tanh_lowest = -80.0;
    static constexpr int shift = 52;
    static constexpr int64_t one = 0x3ff0000000000000;
    // relative error: 3e-19
    static inline vec<double> q(vec<double> r) {
        vec<double> p = 0x1.1ef6b479ffda9p-29 * r + 0x1.af609d0be0b4ep-26;
        p = (p * r + 0x1.27e52d994e7a0p-22) * r + 0x1.71ddf75e8c239p-19;
        p = (p * r + 0x1.a01a017f765b9p-16) * r + 0x1.a01a01b039fedp-13;
        p = (p * r + 0x1.6c16c16c1e60ap-10) * r + 0x1.111111110f5fap-7;
        p = (p * r + 0x1.5555555555540p-5) * r + 0x1.5555555555559p-3;
        return p * r + 0x1.0000000000000p-1;
    }
};

// exp(x) = scale + scale * reduced, with reduced = expm1(r); x must lie in [lowest, highest] or be NaN.
template <class T> inline void exp_parts(vec<T> x, vec<T>& scale, vec<T>& reduced) {
    using c = expm1_of<T>;
    const vec<T> shifted = x * c::log2e + c::magic;  // the nearest integer n sits in the low bits
    const vec<T> n = shifted - c::magic;
    const vec<T> r = (x - n * c::ln2_high) - n * c::ln2_low;
    scale = (vec<T>)(((typename simd<T>::ints)shifted << c::shift) + c::one);
    reduced = (r * r) * c::q(r) + r;
}

template <class T> inline vec<T> sigmoid(vec<T> x) {
    vec<T> scale, reduced;
    exp_parts<T>(clamp<T>(-x, expm1_of<T>::lowest, expm1_of<T>::highest), scale, reduced);
    return T(1) / (scale * reduced + scale + T(1));
}

template <class T> inline vec<T> tanh(vec<T> x) {
    using ints = typename simd<T>::ints;
    const ints sign = (ints)x & (ints)splat(T(-0.0));
    const vec<T> size = (vec<T>)((ints)x ^ sign);
    vec<T> scale, reduced, twice = size * T(-2);
    twice = twice < expm1_of<T>::tanh_lowest ? splat(expm1_of<T>::tanh_lowest) : twice;
    exp_parts<T>(twice, scale, reduced);
    const vec<T> e = scale * reduced + (scale - T(1));
    return (vec<T>)((ints)((T(0) - e) / (e + T(2))) ^ sign);  // 0 - e, not -e: the zero keeps its sign
}

}  // namespace

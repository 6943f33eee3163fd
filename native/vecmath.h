// Vectors of the compiler's own kind, and the two functions of the cell on them.
//
// exp by range reduction to |r| <= ln 2 / 2 and a minimax polynomial for expm1; sigmoid = 1 / (1 + exp(-x)) and
// tanh = -e / (e + 2) with e = expm1(-2 |x|). Error against the exact value, over the whole range, held by the sweep
// in tests/test_native.py: float sigmoid 2.5 ulp, tanh 3 ulp; double sigmoid 2.5 ulp, tanh 3 ulp. A sigmoid below the
// smallest normal number is zero. NaN stays NaN, infinities give the limits.
//
// 1 - (1 - g)^e = -expm1(e log(1 - g)), with log(2^k (1 + f)) = k ln 2 + 2 atanh(f / (2 + f)): the logarithm within 3 ulp,
// the power within 4.5 ulp. The rounding error of 1 - g goes into f, so that small g are as exact as large ones.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace {

template <class T> struct bits_of;
template <> struct bits_of<float> { using type = int32_t; using positive = uint32_t; };
template <> struct bits_of<double> { using type = int64_t; using positive = uint64_t; };

template <class T> struct simd {
    static constexpr ptrdiff_t lanes = LEM_VECTOR_BYTES / sizeof(T);
    using bits = typename bits_of<T>::type;
    typedef T vec __attribute__((vector_size(LEM_VECTOR_BYTES)));
    typedef bits ints __attribute__((vector_size(LEM_VECTOR_BYTES)));
    typedef typename bits_of<T>::positive unsigned_ints __attribute__((vector_size(LEM_VECTOR_BYTES)));
    typedef T loose __attribute__((vector_size(LEM_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
};
template <class T> using vec = typename simd<T>::vec;

template <class T> inline vec<T> load(const T* p) { return *reinterpret_cast<const vec<T>*>(p); }
template <class T> inline void store(T* p, vec<T> v) { *reinterpret_cast<vec<T>*>(p) = v; }
template <class T> inline vec<T> load_loose(const T* p) { return *reinterpret_cast<const typename simd<T>::loose*>(p); }
template <class T> inline void store_loose(T* p, vec<T> v) { *reinterpret_cast<typename simd<T>::loose*>(p) = v; }
template <class T> inline vec<T> splat(T x) { return x - vec<T>{}; }  // x - 0 is x for every x, -0 and NaN included

// A product that is rounded before it is added. In a sum of two products the compiler may fuse either with the addition,
// and not the same one in every copy of the code; results would depend on which copy a row meets.
template <class T> inline vec<T> rounded(vec<T> product) {
    asm("" : "+m"(product));
    return product;
}

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
    static constexpr float bias = 127.0f;
    static constexpr int32_t half_root = 0x3f3504f3;  // the square root of a half
    static constexpr int atanh_terms = 4;             // relative error 2e-9
    // expm1(r) = r + r^2 q(r), q from its highest coefficient down; relative error 1.4e-8
    static constexpr int terms = 4;
    static constexpr float top = 0x1.6beeb6p-10f;
    static constexpr float rest[terms] = {0x1.1229f0p-7f, 0x1.55567ap-5f, 0x1.5554aep-3f, 0x1.fffffep-2f};
};
template <> struct expm1_of<double> {
    static constexpr double log2e = 0x1.71547652b82fep+0, ln2_high = 0x1.62e42fefa3800p-1, ln2_low = 0x1.ef35793c76730p-45;
    static constexpr double magic = 0x1.8p52, lowest = -708.0, highest = 709.0, tanh_lowest = -80.0;
    static constexpr int shift = 52;
    static constexpr int64_t one = 0x3ff0000000000000;
    static constexpr double bias = 1023.0;
    static constexpr int64_t half_root = 0x3fe6a09e667f3bcd;
    static constexpr int atanh_terms = 10;            // relative error 6e-19
    // relative error 3e-19
    static constexpr int terms = 10;
    static constexpr double top = 0x1.1ef6b479ffda9p-29;
    static constexpr double rest[terms] = {
        0x1.af609d0be0b4ep-26, 0x1.27e52d994e7a0p-22, 0x1.71ddf75e8c239p-19, 0x1.a01a017f765b9p-16, 0x1.a01a01b039fedp-13,
        0x1.6c16c16c1e60ap-10, 0x1.111111110f5fap-7,  0x1.5555555555540p-5,  0x1.5555555555559p-3,  0x1.0000000000000p-1};
};

// 2^n, where the low bits of `shifted` hold n. Unsigned here and below: a call that was interrupted may have left any bits,
// and a sum of signed integers must not overflow.
template <class T> inline vec<T> power_of_two(vec<T> shifted) {
    using unsigned_ints = typename simd<T>::unsigned_ints;
    return (vec<T>)(((unsigned_ints)shifted << expm1_of<T>::shift) + expm1_of<T>::one);
}

// The first S of the N values become their sigmoid, the others their tanh. All go in lock-step: one alone would spend most
// of its time waiting for its own last result.
template <class T, int N, int S> inline void squash(vec<T> (&x)[N]) {
    using c = expm1_of<T>;
    using ints = typename simd<T>::ints;
    vec<T> scale[N], p[N];
    ints sign[N];
    for (int i = 0; i < N; ++i) {
        sign[i] = (ints)x[i] & (ints)splat(T(-0.0));
        if (i < S) {
            x[i] = clamp<T>(-x[i], c::lowest, c::highest);
        } else {
            x[i] = (vec<T>)((ints)x[i] ^ sign[i]) * T(-2);
            x[i] = x[i] < c::tanh_lowest ? splat(c::tanh_lowest) : x[i];
        }
    }
    for (int i = 0; i < N; ++i) {
        const vec<T> shifted = x[i] * c::log2e + c::magic;  // the nearest integer n sits in the low bits
        const vec<T> n = shifted - c::magic;
        scale[i] = power_of_two<T>(shifted);
        x[i] = (x[i] - n * c::ln2_high) - n * c::ln2_low;
    }
    for (int i = 0; i < N; ++i) p[i] = c::top * x[i] + c::rest[0];
    for (int k = 1; k < c::terms; ++k)
        for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + c::rest[k];
    for (int i = 0; i < N; ++i) p[i] = (x[i] * x[i]) * p[i] + x[i];  // expm1 of what was left
    for (int i = 0; i < N; ++i) {
        if (i < S) {
            x[i] = T(1) / (scale[i] * p[i] + scale[i] + T(1));
        } else {
            const vec<T> e = scale[i] * p[i] + (scale[i] - T(1));
            x[i] = (vec<T>)((ints)((T(0) - e) / (e + T(2))) ^ sign[i]);  // 0 - e, not -e: the zero keeps its sign
        }
    }
}

// log(1 - x) for x in [0, 1), in lock-step.
template <class T, int N> inline void log_rest(vec<T> (&x)[N]) {
    using c = expm1_of<T>;
    using unsigned_ints = typename simd<T>::unsigned_ints;
    constexpr typename bits_of<T>::positive one = c::one, below = c::one - c::half_root, power = ~((decltype(below)(1) << c::shift) - 1);
    vec<T> f[N], square[N], p[N], k[N];
    for (int i = 0; i < N; ++i) {
        const vec<T> rest = T(1) - x[i], lost = (T(1) - rest) - x[i];
        // rest = 2^k (1 + f) with 1 + f from half_root to its double; `exponent` is k with the bias, in its place.
        const unsigned_ints bits = (unsigned_ints)rest, exponent = (bits + below) & power;
        k[i] = (vec<T>)((exponent >> c::shift) + (unsigned_ints)splat(c::magic)) - (c::magic + c::bias);
        f[i] = ((vec<T>)(bits - exponent + one) - T(1)) + lost * (vec<T>)(one - exponent + one);
    }
    for (int i = 0; i < N; ++i) x[i] = f[i] / (f[i] + T(2));
    for (int i = 0; i < N; ++i) square[i] = x[i] * x[i], p[i] = splat(T(2) / T(2 * c::atanh_terms + 1));
    for (int j = c::atanh_terms - 1; j >= 0; --j)
        for (int i = 0; i < N; ++i) p[i] = p[i] * square[i] + T(2) / T(2 * j + 1);
    for (int i = 0; i < N; ++i) x[i] = k[i] * c::ln2_high + (k[i] * c::ln2_low + rounded<T>(x[i] * p[i]));
}

// g becomes 1 - (1 - g)^e, in lock-step: 0 stays 0 and 1 stays 1 for every e > 0.
template <class T, int N> inline void stretch_gates(vec<T> (&g)[N], const vec<T> (&e)[N]) {
    using c = expm1_of<T>;
    vec<T> x[N], scale[N], p[N];
    for (int i = 0; i < N; ++i) x[i] = g[i];
    log_rest<T, N>(x);
    for (int i = 0; i < N; ++i) {
        x[i] = x[i] * e[i];
        x[i] = x[i] < c::lowest ? splat(c::lowest) : x[i];
        const vec<T> shifted = x[i] * c::log2e + c::magic;
        const vec<T> n = shifted - c::magic;
        scale[i] = power_of_two<T>(shifted);
        x[i] = (x[i] - n * c::ln2_high) - n * c::ln2_low;
    }
    for (int i = 0; i < N; ++i) p[i] = c::top * x[i] + c::rest[0];
    for (int k = 1; k < c::terms; ++k)
        for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + c::rest[k];
    for (int i = 0; i < N; ++i) p[i] = (x[i] * x[i]) * p[i] + x[i];
    for (int i = 0; i < N; ++i) {
        const vec<T> h = (T(1) - scale[i]) - scale[i] * p[i];
        g[i] = g[i] < T(1) ? h : g[i];
    }
}

// d(1 - (1 - g)^e) / de where h is its value: -(1 - h) log(1 - g), and 0 at g = 1.
template <class T> inline vec<T> stretch_slope(vec<T> g, vec<T> h) {
    vec<T> x[1] = {g};
    log_rest<T, 1>(x);
    return g < T(1) ? (h - T(1)) * x[0] : vec<T>{};
}

}  // namespace

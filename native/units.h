// Units that do not see each other (UnICORNN, IndRNN): every column of (T, n) is a separate sequence, so a step is one
// pass over a row. Forward and adjoint; the products with the input weights are left to the caller.
#pragma once
#include "call.h"
#include "threads.h"

namespace {

template <class T> struct columns {
    const lem_units& p;
    static constexpr ptrdiff_t L = simd<T>::lanes;
    ptrdiff_t n = p.count, live = L;  // live: the lanes of the vector at hand that are there

    static const T* in(const void* x) { return static_cast<const T*>(x); }
    static T* to(void* x) { return static_cast<T*>(x); }
    vec<T> get(const void* x, ptrdiff_t i) const { return x ? load_row(in(x) + i, live) : vec<T>{}; }
    void put(void* x, ptrdiff_t i, vec<T> v) const { store_row(to(x) + i, v, live); }

    template <class F> void each(ptrdiff_t first, ptrdiff_t last, const F& body) {
        for (ptrdiff_t i = first; i < last; i += L) {
            live = last - i < L ? last - i : L;
            body(i);
        }
    }

    void forward(ptrdiff_t first, ptrdiff_t last) {
        for (ptrdiff_t t = 0; t < p.steps && !stopped(p.stop); ++t)
            each(first, last, [&](ptrdiff_t i) {
                const ptrdiff_t at = t * n + i;
                vec<T> y = t ? get(p.y, at - n) : get(p.y_0, i);
                vec<T> v[1] = {get(p.w, i) * y + get(p.x, at)};
                if (p.kind == LEM_UNITS_RELU) {
                    put(p.y, at, v[0] < T(0) ? vec<T>{} : v[0]);
                    return;
                }
                squash<T, 1, 0>(v);
                const vec<T> s = get(p.s, i);
                vec<T> z = t ? get(p.z, p.keep ? at - n : i) : get(p.z_0, i);
                z = z - s * (v[0] + T(p.alpha) * y);
                put(p.z, p.keep ? at : i, z);
                if (p.keep) put(p.force, at, v[0]);
                put(p.y, at, y + s * z);
            });
    }

    // The gradients that travel back stand in grad_y_0 and grad_z_0 until they arrive there.
    void backward(ptrdiff_t first, ptrdiff_t last) {
        each(first, last, [&](ptrdiff_t i) {
            put(p.grad_y_0, i, get(p.grad_y_n, i));
            put(p.grad_w, i, vec<T>{});
            if (p.kind == LEM_UNITS_RELU) return;
            put(p.grad_z_0, i, get(p.grad_z_n, i));
            put(p.grad_s, i, vec<T>{});
        });
        for (ptrdiff_t t = p.steps - 1; t >= 0 && !stopped(p.stop); --t)
            each(first, last, [&](ptrdiff_t i) {
                const ptrdiff_t at = t * n + i;
                const vec<T> before = t ? get(p.y, at - n) : get(p.y_0, i), w = get(p.w, i);
                const vec<T> gy = get(p.grad_y_0, i) + get(p.grad_y, at);
                vec<T> inner, gy_before;
                if (p.kind == LEM_UNITS_RELU) {
                    inner = get(p.y, at) > T(0) ? gy : vec<T>{};
                    gy_before = w * inner;
                } else {
                    const vec<T> s = get(p.s, i), force = get(p.force, at);
                    const vec<T> gz = get(p.grad_z_0, i) + s * gy;
                    inner = -s * gz * (T(1) - force * force);
                    put(p.grad_s, i, get(p.grad_s, i) + (gy * get(p.z, at) - gz * (force + T(p.alpha) * before)));
                    put(p.grad_z_0, i, gz);
                    gy_before = gy + w * inner - T(p.alpha) * s * gz;
                }
                put(p.grad_x, at, inner);
                put(p.grad_w, i, get(p.grad_w, i) + inner * before);
                put(p.grad_y_0, i, gy_before);
            });
    }
};

template <class T> void units_of(const lem_units& p, bool backward) {
    parallel(p.threads, [&](ptrdiff_t t, ptrdiff_t count) {
        const ptrdiff_t line = 64 / ptrdiff_t(sizeof(T)), lines = (p.count + line - 1) / line;
        const ptrdiff_t first = lines * t / count * line, end = lines * (t + 1) / count * line;
        const ptrdiff_t last = end < p.count ? end : p.count;
        columns<T> mine{p};
        backward ? mine.backward(first, last) : mine.forward(first, last);
    });
}

}  // namespace

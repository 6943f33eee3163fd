// Weights, packed in the order in which the tiles read them.
#pragma once
#include "call.h"

namespace {

template <class T> struct weights {
    T *gates, *gates_bias;  // per unit block [K][3][L] (pairs of blocks [K][2][L] where not gated)
    T *value, *value_bias;  // pairs of blocks [K][2][L]
    weights(const call<T>& c, arena& a)
        : gates(a.take<T>(c.nb * c.K * c.nv * c.L)), gates_bias(a.take<T>(c.nb * c.nv * c.L)),
          value(a.take<T>(c.nb * c.K * c.L)), value_bias(a.take<T>(c.nb * c.L)) {}
};

template <class T> struct rows_of { const T *w, *u, *b; ptrdiff_t live; };

template <class T>
void pack_panel(const call<T>& c, const rows_of<T>* rows, ptrdiff_t nv, T* to, T* bias) {
    for (ptrdiff_t v = 0; v < nv; ++v)
        for (ptrdiff_t lane = 0; lane < c.L; ++lane) {
            const rows_of<T>& r = rows[v];
            const bool live = lane < r.live;
            bias[v * c.L + lane] = live && r.b ? r.b[lane] : T(0);
            T* t = to + v * c.L + lane;
            for (ptrdiff_t k = 0; k < c.d; ++k, t += nv * c.L) *t = live ? r.w[lane * c.d + k] : T(0);
            for (ptrdiff_t k = 0; k < c.m; ++k, t += nv * c.L) *t = live ? r.u[lane * c.m + k] : T(0);
        }
}

// The rows of one affine map: `w` (d, d) on the state, and rows of weight_u and bias from `first` on.
template <class T> rows_of<T> map_rows(const call<T>& c, const T* w, ptrdiff_t first, ptrdiff_t block) {
    const T *u = static_cast<const T*>(c.p.weight_u), *b = static_cast<const T*>(c.p.bias);
    const ptrdiff_t unit = block * c.L;
    return {w + unit * c.d, u + (first + unit) * c.m, b ? b + first + unit : nullptr, c.live(block)};
}

// Pack what belongs to pair number `pair` of unit blocks.
template <class T> void pack_pair(const call<T>& c, const weights<T>& to, ptrdiff_t pair) {
    const T *wy = static_cast<const T*>(c.p.weight_y), *wz = static_cast<const T*>(c.p.weight_z);
    const ptrdiff_t first = 2 * pair, nv = c.nb - first < 2 ? 1 : 2, dd = c.d * c.d;
    rows_of<T> value[2], candidate[2];
    for (ptrdiff_t v = 0; v < nv; ++v) {
        value[v] = map_rows(c, wz, c.first_value + c.d, first + v);
        candidate[v] = map_rows(c, wy, 0, first + v);
        if (c.gated) {
            const ptrdiff_t b = first + v;
            const rows_of<T> three[3] = {map_rows(c, wy, 0, b), map_rows(c, wy + dd, c.d, b),
                                         map_rows(c, wy + 2 * dd, 2 * c.d, b)};
            pack_panel(c, three, 3, to.gates + b * c.K * 3 * c.L, to.gates_bias + b * 3 * c.L);
        }
    }
    if (!c.gated) pack_panel(c, candidate, nv, to.gates + first * c.K * c.L, to.gates_bias + first * c.L);
    pack_panel(c, value, nv, to.value + first * c.K * c.L, to.value_bias + first * c.L);
}

// A matrix (rows, columns) as weights of a product over its rows: pairs of column blocks [row][2][L].
template <class T> void pack_columns(const T* from, ptrdiff_t rows, ptrdiff_t columns, T* to) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    for (ptrdiff_t first = 0; first < columns; first += 2 * L) {
        const ptrdiff_t end = first + 2 * L < columns ? first + 2 * L : columns;
        for (ptrdiff_t row = 0; row < rows; ++row)
            for (ptrdiff_t k = first; k < end; k += L, to += L)
                store(to, load_row(from + row * columns + k, columns - k < L ? columns - k : L));
    }
}

}  // namespace

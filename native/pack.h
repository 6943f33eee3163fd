// Weights, packed in the order in which the tiles read them.
#pragma once
#include "operands.h"

namespace {

template <class T> struct weights {
    T *gates, *gates_bias;  // per unit block of z [Ky][3][L], [Ky][2][L] past the units of y (pairs of blocks [Ky][2][L] where not gated)
    T *value, *value_bias;  // pairs of unit blocks of y [Kz][2][L]
    weights(const call<T>& c, arena& a)
        : gates(a.take<T>(c.vectors(c.nbz) * c.Ky * c.L)), gates_bias(a.take<T>(c.vectors(c.nbz) * c.L)),
          value(a.take<T>(c.nby * c.Kz * c.L)), value_bias(a.take<T>(c.nby * c.L)) {}
};

template <class T> struct rows_of { const T *w, *u, *b; ptrdiff_t live; };

// `count` weights of one lane along k, `jump` apart; zeros where `from` is null.
template <class T> void pack_lane(const call<T>& c, const T* from, ptrdiff_t count, T* to, ptrdiff_t jump) {
    if constexpr (can_pair<T>)
        if (c.paired) {
            for (ptrdiff_t k = 0; k < count; k += 2, to += jump) {
                const uint32_t low = from ? bf16_of(from[k]) : 0, high = from && k + 1 < count ? bf16_of(from[k + 1]) : 0;
                const uint32_t word = low | high << 16;
                __builtin_memcpy(to, &word, sizeof word);
            }
            return;
        }
    for (ptrdiff_t k = 0; k < count; ++k, to += jump) *to = from ? from[k] : T(0);
}

template <class T>
void pack_panel(const call<T>& c, const rows_of<T>* rows, ptrdiff_t nv, ptrdiff_t columns, T* to, T* bias) {
    for (ptrdiff_t v = 0; v < nv; ++v)
        for (ptrdiff_t lane = 0; lane < c.L; ++lane) {
            const rows_of<T>& r = rows[v];
            const bool live = lane < r.live;
            bias[v * c.L + lane] = live && r.b ? r.b[lane] : T(0);
            T* const t = to + v * c.L + lane;
            pack_lane(c, live ? r.w + lane * columns : nullptr, columns, t, nv * c.L);
            pack_lane(c, live ? r.u + lane * c.m : nullptr, c.m, t + c.depth(columns) * nv * c.L, nv * c.L);
        }
}

// Unit block `block` of an affine map of y, whose `units` rows begin at row `first` of weight_y, weight_u and bias.
template <class T> rows_of<T> rows_of_y(const call<T>& c, ptrdiff_t first, ptrdiff_t units, ptrdiff_t block) {
    const T *w = static_cast<const T*>(c.p.weight_y), *u = static_cast<const T*>(c.p.weight_u);
    const T* const b = static_cast<const T*>(c.p.bias);
    const ptrdiff_t row = first + block * c.L;
    return {w + row * c.dy, u + row * c.m, b ? b + row : nullptr, c.live(units, block)};
}
template <class T> rows_of<T> rows_of_z(const call<T>& c, ptrdiff_t block) {
    const T *w = static_cast<const T*>(c.p.weight_z), *u = static_cast<const T*>(c.p.weight_u);
    const T* const b = static_cast<const T*>(c.p.bias);
    const ptrdiff_t unit = block * c.L, row = c.first_value + c.dz + unit;
    return {w + unit * c.dz, u + row * c.m, b ? b + row : nullptr, c.live(c.dy, block)};
}

// Pack what belongs to pair number `pair` of unit blocks; y has no more blocks than z.
template <class T> void pack_pair(const call<T>& c, const weights<T>& to, ptrdiff_t pair) {
    const ptrdiff_t first = 2 * pair, of_z = c.nbz - first < 2 ? 1 : 2, of_y = c.nby - first < 2 ? c.nby - first : 2;
    rows_of<T> rows[3];
    for (ptrdiff_t b = first; c.gated && b < first + of_z; ++b) {
        ptrdiff_t nv = 0;
        rows[nv++] = rows_of_y(c, 0, c.dz, b);
        if (b < c.nby) rows[nv++] = rows_of_y(c, c.dz, c.dy, b);
        rows[nv++] = rows_of_y(c, c.first_value, c.dz, b);
        pack_panel(c, rows, nv, c.dy, to.gates + c.vectors(b) * c.Ky * c.L, to.gates_bias + c.vectors(b) * c.L);
    }
    if (!c.gated) {
        for (ptrdiff_t v = 0; v < of_z; ++v) rows[v] = rows_of_y(c, 0, c.dz, first + v);
        pack_panel(c, rows, of_z, c.dy, to.gates + first * c.Ky * c.L, to.gates_bias + first * c.L);
    }
    if (of_y <= 0) return;
    for (ptrdiff_t v = 0; v < of_y; ++v) rows[v] = rows_of_z(c, first + v);
    pack_panel(c, rows, of_y, c.dz, to.value + first * c.Kz * c.L, to.value_bias + first * c.L);
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

// The same for a call's operands: `parts` are the rows that come from one panel each.
template <class T>
void pack_columns(const call<T>& c, const void* weight, const ptrdiff_t* parts, ptrdiff_t count, ptrdiff_t columns, T* to) {
    const T* const from = static_cast<const T*>(weight);
    if constexpr (can_pair<T>)
        if (c.paired) {
            for (ptrdiff_t first = 0; first < columns; first += 2 * c.L) {
                const ptrdiff_t end = smaller(first + 2 * c.L, columns);
                const T* rows = from;
                for (const ptrdiff_t* part = parts; part < parts + count; rows += *part++ * columns)
                    for (ptrdiff_t row = 0; row < *part; row += 2)
                        for (ptrdiff_t k = first; k < end; k += c.L, to += c.L) {
                            const T* const here = rows + row * columns + k;
                            const ptrdiff_t live = smaller(columns - k, c.L);
                            store(to, woven(load_row(here, live), row + 1 < *part ? load_row(here + columns, live) : vec<T>{}));
                        }
            }
            return;
        }
    ptrdiff_t rows = 0;
    for (ptrdiff_t i = 0; i < count; ++i) rows += parts[i];
    pack_columns(from, rows, columns, to);
}

}  // namespace

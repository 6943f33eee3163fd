// The sums of the weights' gradients: kept in the order in which tiles add to them, written in the order of the weights.
#pragma once
#include "call.h"

namespace {

// The weights' gradients of one team, in packed order; k runs over the units of y (for the maps of y) or z, then over m
// inputs and a one (the bias).
template <class T> struct totals {
    ptrdiff_t ky, kz, ku;
    T *gates, *value;
    totals(const call<T>& c, arena& a)
        : ky(up(c.dy, outer_rows<T>())), kz(up(c.dz, outer_rows<T>())), ku(up(c.m + 1, outer_rows<T>())),
          gates(a.take<T>((ky + ku) * c.vectors(c.nbz) * c.L)), value(a.take<T>((kz + ku) * c.padded_y())) {}
    T* of_gates(const call<T>& c, ptrdiff_t b) const { return gates + c.vectors(b) * (ky + ku) * c.L; }
    T* of_value(const call<T>& c, ptrdiff_t b) const { return value + b * (kz + ku) * c.L; }
};

// Add the teams' totals and write one unit block of one map's gradient. `units`: what the map multiplies; `padded`: where
// its inputs begin in the totals.
template <class T> struct unpacking {
    const call<T>& c;
    ptrdiff_t team_jump, teams;
    void operator()(const T* first, ptrdiff_t nv, ptrdiff_t units, ptrdiff_t padded, ptrdiff_t live, T* grad_w, ptrdiff_t row) const {
        const auto sum = [&](ptrdiff_t k, ptrdiff_t lane) {
            T s = T(0);
            for (ptrdiff_t t = 0; t < teams; ++t)
                s += reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + t * team_jump)[k * nv * c.L + lane];
            return s;
        };
        T* const grad_u = static_cast<T*>(c.p.grad_weight_u) + row * c.m;
        T* const grad_bias = c.p.grad_bias ? static_cast<T*>(c.p.grad_bias) + row : nullptr;
        for (ptrdiff_t lane = 0; lane < live; ++lane) {
            for (ptrdiff_t k = 0; k < units; ++k) grad_w[lane * units + k] = sum(k, lane);
            for (ptrdiff_t k = 0; k < c.m; ++k) grad_u[lane * c.m + k] = sum(padded + k, lane);
            if (grad_bias) grad_bias[lane] = sum(padded + c.m, lane);
        }
    }
    void block(const totals<T>& total, ptrdiff_t b) const {
        const ptrdiff_t unit = b * c.L, pair = b / 2 * 2;
        T* const grad_y = static_cast<T*>(c.p.grad_weight_y);
        const auto of_y = [&](const T* from, ptrdiff_t nv, ptrdiff_t first, ptrdiff_t units) {
            const ptrdiff_t row = first + unit;
            (*this)(from, nv, c.dy, total.ky, c.live(units, b), grad_y + row * c.dy, row);
        };
        if (c.gated) {
            const T* from = total.of_gates(c, b);
            const ptrdiff_t nv = b < c.nby ? 3 : 2;
            of_y(from, nv, 0, c.dz);
            if (nv == 3) of_y(from += c.L, nv, c.dz, c.dy);
            of_y(from + c.L, nv, c.first_value, c.dz);
        } else {
            of_y(total.of_gates(c, pair) + (b - pair) * c.L, c.nbz - pair < 2 ? 1 : 2, 0, c.dz);
        }
        if (b < c.nby)
            (*this)(total.of_value(c, pair) + (b - pair) * c.L, c.nby - pair < 2 ? 1 : 2, c.dz, total.kz, c.live(c.dy, b),
                    static_cast<T*>(c.p.grad_weight_z) + unit * c.dz, c.first_value + c.dz + unit);
    }
};

}  // namespace

// One call: its sizes, the memory it hands out, rows as panels (tiles.h), and the rows of a group over time.
#pragma once
#include "target.h"
#include "threads.h"
#include "tiles.h"

namespace {

constexpr ptrdiff_t chunk_rows = LEM_CHUNK_ROWS;

inline ptrdiff_t up(ptrdiff_t n, ptrdiff_t to) { return (n + to - 1) / to * to; }
inline ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }
inline ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

struct range { ptrdiff_t first, last; };

// Ask for memory that will soon be read (Use = 0) or written (1). Inlined by force: to the compiler a function that does
// nothing else has no effect, and it drops the call.
template <int Use, class T> __attribute__((always_inline)) inline void fetch(const T* from, ptrdiff_t items) {
    for (ptrdiff_t i = 0; i < items * ptrdiff_t(sizeof(T)); i += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(from) + i, Use, 3);
}

// Hands out pieces of one block; with a null base it only counts.
struct arena {
    char* base;
    ptrdiff_t used = 0;
    template <class T> T* take(ptrdiff_t items) {
        used = up(used, 64);
        T* const piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += items * ptrdiff_t(sizeof(T));
        return piece;
    }
};

template <class T> struct call {
    static constexpr ptrdiff_t L = simd<T>::lanes;
    const lem_problem& p;
    const bool gated, clipped, paced;  // paced: the gates depend on the elapsed time
    const bool paired;                 // operands of the products are pairs of bfloat16 numbers
    const ptrdiff_t dy, dz, m, B;
    const ptrdiff_t nby, nbz, mb;      // blocks of units of y and of z, and of inputs
    const ptrdiff_t Ky, Kz;            // the depths of the two forward products, over y and over z
    const ptrdiff_t first_value;       // the row of weight_u at which V_z begins
    const T dt, low, high;
    explicit call(const lem_problem& q)
        : p(q), gated(q.gated), clipped(q.clipped), paced(q.gated && q.elapsed), paired(can_pair<T> && q.bfloat16),
          dy(q.outputs ? q.outputs : q.hidden),
          dz(q.hidden), m(q.inputs), B(q.batch), nby(up(dy, L) / L), nbz(up(dz, L) / L), mb(up(m, L) / L), Ky(depth(dy) + depth(m)),
          Kz(depth(dz) + depth(m)), first_value(q.gated ? dz + dy : 0), dt(T(q.dt)), low(T(q.clip_low)), high(T(q.clip_high)) {}
    ptrdiff_t depth(ptrdiff_t k) const { return paired ? (k + 1) / 2 : k; }  // of a product over k
    ptrdiff_t depth_y() const { return gated ? 2 * depth(dz) + depth(dy) : depth(dz); }  // over the rows of weight_y
    ptrdiff_t padded_y() const { return nby * L; }
    ptrdiff_t padded_z() const { return nbz * L; }
    static ptrdiff_t live(ptrdiff_t units, ptrdiff_t block) { return units - block * L < L ? units - block * L : L; }
    ptrdiff_t nv() const { return gated ? 3 : 1; }              // affine maps of y
    ptrdiff_t rows_y() const { return gated ? 2 * dz + dy : dz; }  // and their rows
    // Vectors of the maps of y before unit block b. Where y has fewer units than z, the last blocks have no gate of y.
    ptrdiff_t vectors(ptrdiff_t b) const { return !gated ? b : b <= nby ? 3 * b : 2 * b + nby; }
    // Blocks of the gate values of a step: s1, s2, tc, td and, where paced, h1 and h2.
    ptrdiff_t gate_blocks() const { return (paced ? 3 : 2) * (nbz + nby); }
    // The unit blocks, of `count`, of one member of a team: whole pairs, as the weights are packed.
    range blocks(const team& members, ptrdiff_t count) const {
        const ptrdiff_t pairs = (count + 1) / 2, end = 2 * (pairs * (members.member + 1) / members.size);
        return {2 * (pairs * members.member / members.size), end < count ? end : count};
    }
    vec<T> time_step(vec<T> s) const {
        const vec<T> t = dt * s;
        return clipped ? clamp<T>(t, low, high) : t;
    }
    // d(time step) / d(affine map)
    vec<T> time_step_slope(vec<T> s) const { return inside(s, dt * s * (T(1) - s)); }
    // The same for the time step h = 1 - (1 - g)^e, where g = dt s: e (1 - h) / (1 - g) of it, finite at g = 1 too.
    vec<T> paced_slope(vec<T> s, vec<T> h, T e) const {
        vec<T> slope = (e * dt) * s * (T(1) - h);
        if (dt != T(1)) slope *= (T(1) - s) / (T(1) - dt * s);
        return inside(s, slope);
    }
    vec<T> inside(vec<T> s, vec<T> slope) const {
        const vec<T> t = dt * s;
        return clipped ? (t < low ? vec<T>{} : t > high ? vec<T>{} : slope) : slope;
    }
};

template <class T> vec<T> load_row(const T* p, ptrdiff_t live) {
    if (live == simd<T>::lanes) return load_loose(p);
    alignas(LEM_VECTOR_BYTES) T lanes[simd<T>::lanes] = {};
    for (ptrdiff_t i = 0; i < live; ++i) lanes[i] = p[i];
    return load(lanes);
}

template <class T> void store_row(T* p, vec<T> v, ptrdiff_t live) {
    if (live == simd<T>::lanes) return store_loose(p, v);
    for (ptrdiff_t i = 0; i < live; ++i) p[i] = v[i];
}

// One row of `count` items into a panel whose blocks lie `jump` items apart, zeros behind it; and back.
template <class T> inline void to_panel(const T* row, ptrdiff_t count, T* panel, ptrdiff_t jump) {
    for (; count >= simd<T>::lanes; count -= simd<T>::lanes, row += simd<T>::lanes, panel += jump)
        store(panel, load_loose(row));
    if (count == 0) return;
    store(panel, vec<T>{});
    for (ptrdiff_t i = 0; i < count; ++i) panel[i] = row[i];
}

template <class T> void from_panel(const T* panel, ptrdiff_t jump, T* row, ptrdiff_t count) {
    for (; count > 0; count -= simd<T>::lanes, row += simd<T>::lanes, panel += jump)
        store_row(row, load(panel), count < simd<T>::lanes ? count : simd<T>::lanes);
}

// The rows that run together, longest first: how many of them are still running at each step.
struct group {
    ptrdiff_t n, steps;             // rows, and steps of the longest
    const int64_t *row, *length;
    ptrdiff_t* before;              // steps + 1: row-steps before a step
    group(const lem_plan& plan, ptrdiff_t g, ptrdiff_t* table, bool fill)  // the table is shared; one member fills it
        : n(plan.begin[g + 1] - plan.begin[g]), steps(plan.length[plan.begin[g]]), row(plan.row + plan.begin[g]),
          length(plan.length + plan.begin[g]), before(table) {
        if (!fill) return;
        ptrdiff_t active = n;
        before[0] = 0;
        for (ptrdiff_t s = 0; s < steps; ++s) {
            while (length[active - 1] <= s) --active;
            before[s + 1] = before[s] + active;
        }
    }
    ptrdiff_t active(ptrdiff_t s) const { return before[s + 1] - before[s]; }
    ptrdiff_t time(const lem_problem& p, ptrdiff_t r, ptrdiff_t s) const { return p.reverse ? length[r] - 1 - s : s; }
    // The item of (T, B) that tells of what lies between step s and the step before it; negative: there is none.
    ptrdiff_t gap(const lem_problem& p, ptrdiff_t r, ptrdiff_t s) const {
        if (p.reverse && s == 0) return -1;
        return (p.reverse ? length[r] - s : s) * p.batch + row[r];
    }
    bool restarts(const lem_problem& p, ptrdiff_t r, ptrdiff_t s) const {
        const ptrdiff_t at = p.resets ? gap(p, r, s) : -1;
        return at >= 0 && p.resets[at];
    }
    // Where the elapsed time before step s stands; negative: it is 1. In reverse, a restart is the end of a piece.
    ptrdiff_t elapsed(const lem_problem& p, ptrdiff_t r, ptrdiff_t s) const {
        return !p.elapsed || (p.reverse && restarts(p, r, s)) ? -1 : gap(p, r, s);
    }
    // Chunks are counted from the first step, so that they are the same whatever is kept.
    ptrdiff_t chunk_end(ptrdiff_t s) const {
        ptrdiff_t end = s + 1;
        while (end < steps && before[end + 1] - before[s] <= chunk_rows) ++end;
        return end;
    }
    ptrdiff_t segment_end(ptrdiff_t s, ptrdiff_t segment) const {
        ptrdiff_t end = s;
        while (end < steps && end - s < segment) end = chunk_end(end);
        return end;
    }
};

inline ptrdiff_t largest_group(const lem_plan& plan) {
    ptrdiff_t n = 0;
    for (ptrdiff_t g = 0; g < plan.groups; ++g) n = larger(n, plan.begin[g + 1] - plan.begin[g]);
    return n;
}

}  // namespace

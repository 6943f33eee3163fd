// The vector kernel: equation (3) and its adjoint over whole sequences, for one instruction set.
//
// Compiled once per target; LEM_TARGET_SYMBOL, LEM_TARGET_NAME, LEM_VECTOR_BYTES and LEM_REGISTERS come from
// CMakeLists.txt. Everything sits in an anonymous namespace and nothing of the standard library is instantiated here:
// the linker must never take a function from this unit for a processor that cannot run it.
//
// Rows are split over threads once; each thread runs all its steps alone. States live in panels (tiles.h). A step is
//   gates:  A, B, C = (W_1, W_2, W_z) y + (V_1, V_2, V_z) u + b     s1, s2, tc = sigmoid A, sigmoid B, tanh C;  new z
//   values: D = W_y z + V_y u + b_y                                 td = tanh D;                              new y
// Backward goes through time in chunks of about `chunk_rows` row-steps: two products a step carry the gradient back, and
// the weights' gradients are one large product per chunk, while everything is still in cache.
#include "target.h"
#include "tiles.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

constexpr ptrdiff_t chunk_rows = LEM_CHUNK_ROWS;

inline ptrdiff_t up(ptrdiff_t n, ptrdiff_t to) { return (n + to - 1) / to * to; }
inline ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

// Vanishing gradients become denormal after some hundred steps and would make every operation many times slower.
struct flush_denormals {
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();
    flush_denormals() { _mm_setcsr(before | 0x8040); }
    ~flush_denormals() { _mm_setcsr(before); }
#endif
};

template <class F> void parallel(ptrdiff_t threads, const F& body) {
#if defined(_OPENMP)
    if (threads > 1) {
#pragma omp parallel num_threads(int(threads))
        {
            flush_denormals flush;
            // The runtime may give fewer threads than asked for.
            for (ptrdiff_t t = omp_get_thread_num(); t < threads; t += omp_get_num_threads()) body(t);
        }
        return;
    }
#endif
    flush_denormals flush;
    for (ptrdiff_t t = 0; t < threads; ++t) body(t);
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
    const bool gated, clipped;
    const ptrdiff_t d, m, B;
    const ptrdiff_t nb, mb;      // blocks of hidden units and of inputs
    const ptrdiff_t K;           // the inner dimension of both forward products
    const ptrdiff_t nv;          // vectors per unit block of the first product
    const ptrdiff_t first_value; // the row of weight_u at which V_z begins
    const T dt, low, high;
    explicit call(const lem_problem& q)
        : p(q), gated(q.gated), clipped(q.clipped), d(q.hidden), m(q.inputs), B(q.batch), nb(up(d, L) / L),
          mb(up(m, L) / L), K(d + m), nv(q.gated ? 3 : 1), first_value(q.gated ? 2 * d : 0), dt(T(q.dt)),
          low(T(q.clip_low)), high(T(q.clip_high)) {}
    ptrdiff_t padded() const { return nb * L; }
    ptrdiff_t live(ptrdiff_t block) const { return d - block * L < L ? d - block * L : L; }
    vec<T> time_step(vec<T> s) const {
        const vec<T> t = dt * s;
        return clipped ? clamp<T>(t, low, high) : t;
    }
    // d(time step) / d(affine map)
    vec<T> time_step_slope(vec<T> s) const {
        const vec<T> t = dt * s, slope = t * (T(1) - s);
        return clipped ? (t < low ? vec<T>{} : t > high ? vec<T>{} : slope) : slope;
    }
};

// --- rows and panels -----------------------------------------------------------------------------------------------

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

// --- weights, packed in the order in which the tiles read them -------------------------------------------------------

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

// --- the rows of one group, and what one thread works with -----------------------------------------------------------

struct group {
    ptrdiff_t n, steps;             // rows, and steps of the longest
    const int64_t *row, *length;
    ptrdiff_t* before;              // steps + 1: row-steps before a step
    group(const lem_plan& plan, ptrdiff_t g, ptrdiff_t* table)
        : n(plan.begin[g + 1] - plan.begin[g]), steps(plan.length[plan.begin[g]]), row(plan.row + plan.begin[g]),
          length(plan.length + plan.begin[g]), before(table) {
        ptrdiff_t active = n;
        before[0] = 0;
        for (ptrdiff_t s = 0; s < steps; ++s) {
            while (length[active - 1] <= s) --active;
            before[s + 1] = before[s] + active;
        }
    }
    ptrdiff_t active(ptrdiff_t s) const { return before[s + 1] - before[s]; }
    ptrdiff_t time(const lem_problem& p, ptrdiff_t r, ptrdiff_t s) const { return p.reverse ? length[r] - 1 - s : s; }
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

// Where the values of a step go: [z | s1 s2 tc td | y] panels of exactly its active rows, one step after another.
template <class T> struct kept {
    T* base;
    ptrdiff_t parts;  // 0 nothing, 1 z, 5 with the gates, 6 with y
    T* at(const call<T>& c, ptrdiff_t row_steps, ptrdiff_t n, ptrdiff_t part) const {
        return base + (row_steps * parts + n * part) * c.padded();
    }
};

template <class T> struct gate_values { T *s1, *s2, *tc, *td; ptrdiff_t jump; };

template <class T> struct states {  // the running state of one group, and scratch of a step
    ptrdiff_t jump;
    T *y, *z, *masked, *mask, *u, *acc, *gates;
    T** out;
    states(const call<T>& c, arena& a, ptrdiff_t n, ptrdiff_t acc_rows)
        : jump((n | 1) * c.L), y(a.take<T>(c.nb * jump)), z(a.take<T>(c.nb * jump)),
          masked(c.p.mask ? a.take<T>(c.nb * jump) : y), mask(c.p.mask ? a.take<T>(c.nb * jump) : nullptr),
          u(a.take<T>(c.mb * jump)), acc(a.take<T>(acc_rows * 3 * c.L)), gates(a.take<T>(5 * n * c.padded())),
          out(a.take<T*>(n)) {}
};

// --- forward ---------------------------------------------------------------------------------------------------------

// First half of a step: the gates and, where `z` is given, the new z, which is also written to `z_kept`.
template <class T> struct gates_end {
    const call<T>& c;
    const gate_values<T>& g;
    T *z, *z_kept;
    ptrdiff_t z_jump;
    static constexpr ptrdiff_t L = simd<T>::lanes;

    inline void next_z(ptrdiff_t b, ptrdiff_t r, vec<T> step, vec<T> t) const {
        T* const state = z + b * z_jump + r * L;
        const vec<T> before = load(state), next = before + step * (t - before);
        store(state, next);
        if (z_kept) store(z_kept + b * g.jump + r * L, next);
    }
    template <int R> inline void gated(ptrdiff_t b, ptrdiff_t r, const T* acc) const {
        vec<T> x[3 * R];
        for (int i = 0; i < R; ++i) {
            x[i] = load(acc + (3 * (r + i) + 0) * L);
            x[R + i] = load(acc + (3 * (r + i) + 1) * L);
            x[2 * R + i] = load(acc + (3 * (r + i) + 2) * L);
        }
        squash<T, 3 * R, 2 * R>(x);
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t at = b * g.jump + (r + i) * L;
            store(g.s1 + at, x[i]);
            store(g.s2 + at, x[R + i]);
            store(g.tc + at, x[2 * R + i]);
            if (z) next_z(b, r + i, c.time_step(x[i]), x[2 * R + i]);
        }
    }
    template <int R> inline void ungated(ptrdiff_t b, ptrdiff_t r, const T* acc, ptrdiff_t acc_jump) const {
        vec<T> x[R];
        for (int i = 0; i < R; ++i) x[i] = load(acc + (r + i) * acc_jump);
        squash<T, R, 0>(x);
        for (int i = 0; i < R; ++i) {
            store(g.tc + b * g.jump + (r + i) * L, x[i]);
            if (z) next_z(b, r + i, splat(c.dt), x[i]);
        }
    }
};

// A product over one pair of unit blocks; the last pair may be a single one.
template <class T>
inline void pair_product(ptrdiff_t nv, const span<T>* x, ptrdiff_t count, const T* w, const T* init, T* acc, ptrdiff_t rows) {
    nv == 2 ? product<T, 2>(x, count, w, init, acc, rows) : product<T, 1>(x, count, w, init, acc, rows);
}

template <class T>
void gates_phase(const call<T>& c, const weights<T>& w, const span<T>* x, ptrdiff_t rows, T* acc, const gates_end<T>& end) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    if (c.gated)
        for (ptrdiff_t b = 0; b < c.nb; ++b) {
            product<T, 3>(x, 2, w.gates + b * c.K * 3 * L, w.gates_bias + b * 3 * L, acc, rows);
            ptrdiff_t r = 0;
            for (; r + 2 <= rows; r += 2) end.template gated<2>(b, r, acc);
            if (r < rows) end.template gated<1>(b, r, acc);
        }
    else
        for (ptrdiff_t b = 0; b < c.nb; b += 2) {
            const ptrdiff_t nv = c.nb - b < 2 ? 1 : 2;
            pair_product(nv, x, 2, w.gates + b * c.K * L, w.gates_bias + b * L, acc, rows);
            for (ptrdiff_t v = 0; v < nv; ++v) {
                ptrdiff_t r = 0;
                for (; r + 4 <= rows; r += 4) end.template ungated<4>(b + v, r, acc + v * L, nv * L);
                for (; r < rows; ++r) end.template ungated<1>(b + v, r, acc + v * L, nv * L);
            }
        }
}

// Second half: td and, where a state is given, the new y, which is also written to the outputs and to `y_kept`.
template <class T> struct value_end {
    const call<T>& c;
    const gate_values<T>& g;
    states<T>* state;
    T* y_kept;
    static constexpr ptrdiff_t L = simd<T>::lanes;

    template <int R> inline void rows(ptrdiff_t b, ptrdiff_t r, const T* acc, ptrdiff_t acc_jump) const {
        vec<T> x[R];
        for (int i = 0; i < R; ++i) x[i] = load(acc + (r + i) * acc_jump);
        squash<T, R, 0>(x);
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t at = b * g.jump + (r + i) * L;
            store(g.td + at, x[i]);
            if (!state) continue;
            const ptrdiff_t here = b * state->jump + (r + i) * L;
            const vec<T> step = c.gated ? c.time_step(load(g.s2 + at)) : splat(c.dt), before = load(state->y + here);
            const vec<T> next = before + step * (x[i] - before);
            store(state->y + here, next);
            if (state->mask) store(state->masked + here, next * load(state->mask + here));
            if (T* const out = state->out[r + i]) store_row(out + b * L, next, c.live(b));
            if (y_kept) store(y_kept + at, next);
        }
    }
};

template <class T>
void value_phase(const call<T>& c, const weights<T>& w, const span<T>* x, ptrdiff_t rows, T* acc, const value_end<T>& end) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    for (ptrdiff_t b = 0; b < c.nb; b += 2) {
        const ptrdiff_t nv = c.nb - b < 2 ? 1 : 2;
        pair_product(nv, x, 2, w.value + b * c.K * L, w.value_bias + b * L, acc, rows);
        for (ptrdiff_t v = 0; v < nv; ++v) {
            ptrdiff_t r = 0;
            for (; r + 4 <= rows; r += 4) end.template rows<4>(b + v, r, acc + v * L, nv * L);
            for (; r < rows; ++r) end.template rows<1>(b + v, r, acc + v * L, nv * L);
        }
    }
}

template <class T> void set_mask(const call<T>& c, const group& q, states<T>& state) {
    if (state.mask)
        for (ptrdiff_t r = 0; r < q.n; ++r)
            to_panel(static_cast<const T*>(c.p.mask) + q.row[r] * c.d, c.d, state.mask + r * c.L, state.jump);
}

template <class T> void apply_mask(const call<T>& c, states<T>& state) {
    if (state.mask)
        for (ptrdiff_t i = 0; i < c.nb * state.jump; i += c.L)
            store(state.masked + i, load(state.y + i) * load(state.mask + i));
}

// Run steps [first, last) of a group from the state as it stands.
template <class T>
void run_steps(const call<T>& c, const weights<T>& w, const group& q, states<T>& state, ptrdiff_t first, ptrdiff_t last,
               const kept<T>& sink, bool write_outputs) {
    const lem_problem& p = c.p;
    T* const out = write_outputs ? static_cast<T*>(p.out) : nullptr;
    const T* const u = static_cast<const T*>(p.u);
    for (ptrdiff_t r = 0; r < q.n; ++r) state.out[r] = nullptr;
    for (ptrdiff_t s = first; s < last; ++s) {
        const ptrdiff_t n = q.active(s), at = q.before[s] - q.before[first], jump = n * c.L;
        for (ptrdiff_t r = 0; r < n; ++r) {
            const ptrdiff_t t = q.time(p, r, s);
            to_panel(u + t * p.u_time + q.row[r] * p.u_row, c.m, state.u + r * c.L, state.jump);
            if (out) state.out[r] = out + (t * c.B + q.row[r]) * c.d;
        }
        T* const gates = sink.parts >= 5 ? sink.at(c, at, n, 1) : state.gates;
        const ptrdiff_t part = n * c.padded();
        const gate_values<T> g = {gates, gates + part, gates + 2 * part, gates + 3 * part, jump};
        const span<T> from_y[2] = {{state.masked, c.d, state.jump}, {state.u, c.m, state.jump}};
        const span<T> from_z[2] = {{state.z, c.d, state.jump}, {state.u, c.m, state.jump}};
        const gates_end<T> z_end = {c, g, state.z, sink.parts ? sink.at(c, at, n, 0) : nullptr, state.jump};
        const value_end<T> y_end = {c, g, &state, sink.parts == 6 ? sink.at(c, at, n, 5) : nullptr};
        gates_phase(c, w, from_y, n, state.acc, z_end);
        value_phase(c, w, from_z, n, state.acc, y_end);
    }
}

// Rows of the batch to and from the state panels.
template <class T>
void read_rows(const call<T>& c, const group& q, const void* from, T* panel, ptrdiff_t jump) {
    for (ptrdiff_t r = 0; r < q.n; ++r)
        to_panel(static_cast<const T*>(from) + q.row[r] * c.d, c.d, panel + r * c.L, jump);
}
template <class T> void write_rows(const call<T>& c, const group& q, const T* panel, ptrdiff_t jump, void* to) {
    for (ptrdiff_t r = 0; r < q.n; ++r)
        from_panel(panel + r * c.L, jump, static_cast<T*>(to) + q.row[r] * c.d, c.d);
}

template <class T> T* segment_states(const call<T>& c, const lem_plan& plan, char* saved, ptrdiff_t index, ptrdiff_t g) {
    return reinterpret_cast<T*>(saved) + (index * c.B + plan.begin[g]) * 2 * c.padded();
}

template <class T> struct forward_work {
    ptrdiff_t* before;
    states<T> state;
    forward_work(const call<T>& c, const lem_plan& plan, arena& a)
        : before(a.take<ptrdiff_t>(c.p.steps + 1)), state(c, a, largest_group(plan), largest_group(plan)) {}
};

template <class T>
void forward_group(const call<T>& c, const lem_plan& plan, const weights<T>& w, forward_work<T>& work, ptrdiff_t g,
                   char* saved) {
    const lem_problem& p = c.p;
    const group q(plan, g, work.before);
    states<T>& state = work.state;
    read_rows(c, q, p.y_0, state.y, state.jump);
    read_rows(c, q, p.z_0, state.z, state.jump);
    set_mask(c, q, state);
    apply_mask(c, state);
    if (p.keep == LEM_KEEP_SEGMENTS) {
        ptrdiff_t index = 0;
        for (ptrdiff_t s = 0; s < q.steps; ++index) {
            T* const to = segment_states(c, plan, saved, index, g);
            for (ptrdiff_t b = 0; b < c.nb; ++b)
                for (ptrdiff_t i = 0; i < q.n * c.L; i += c.L) {
                    store(to + b * q.n * c.L + i, load(state.y + b * state.jump + i));
                    store(to + (c.nb + b) * q.n * c.L + i, load(state.z + b * state.jump + i));
                }
            const ptrdiff_t end = q.segment_end(s, p.segment);
            run_steps(c, w, q, state, s, end, {nullptr, 0}, true);
            s = end;
        }
    } else {
        const ptrdiff_t parts = p.keep == LEM_KEEP_GATES ? 5 : p.keep == LEM_KEEP_STATES ? 1 : 0;
        T* const base = reinterpret_cast<T*>(saved) + plan.before[g] * parts * c.padded();
        run_steps(c, w, q, state, 0, q.steps, {base, parts}, true);
    }
    write_rows(c, q, state.y, state.jump, p.y_n);
    write_rows(c, q, state.z, state.jump, p.z_n);
    for (ptrdiff_t r = 0; r < q.n; ++r)
        for (ptrdiff_t t = q.length[r]; t < p.steps; ++t) {
            T* const past = static_cast<T*>(p.out) + (t * c.B + q.row[r]) * c.d;
            for (ptrdiff_t k = 0; k < c.d; ++k) past[k] = T(0);
        }
}

template <class T> void forward_all(const lem_problem& p, const lem_plan& plan, char* saved, char* memory) {
    const call<T> c(p);
    arena shared{memory};
    const weights<T> w(c, shared);
    const ptrdiff_t pairs = (c.nb + 1) / 2, threads = plan.threads;
    parallel(threads, [&](ptrdiff_t t) {
        for (ptrdiff_t pair = t; pair < pairs; pair += threads) pack_pair(c, w, pair);
    });
    arena one{nullptr};
    forward_work<T>(c, plan, one);
    const ptrdiff_t start = up(shared.used, 4096), each = up(one.used, 4096);
    parallel(threads, [&](ptrdiff_t t) {
        arena own{memory + start + t * each};
        forward_work<T> work(c, plan, own);
        for (ptrdiff_t g = t; g < plan.groups; g += threads) forward_group(c, plan, w, work, g, saved);
    });
}

// --- backward --------------------------------------------------------------------------------------------------------

template <class T> struct back_weights {
    T *z, *y, *u, *zeros;
    back_weights(const call<T>& c, arena& a)
        : z(a.take<T>(c.d * c.padded())), y(a.take<T>(c.nv * c.d * c.padded())),
          u(c.p.grad_u ? a.take<T>((c.nv + 1) * c.d * c.mb * c.L) : nullptr), zeros(a.take<T>(3 * c.L)) {}
};

// The weights' gradients of one thread, in packed order; k runs over d units, then over m inputs and a one (the bias).
template <class T> struct totals {
    ptrdiff_t kd, ku;
    T *gates, *value;
    totals(const call<T>& c, arena& a)
        : kd(up(c.d, outer_rows<T>())), ku(up(c.m + 1, outer_rows<T>())), gates(a.take<T>((kd + ku) * c.nv * c.padded())),
          value(a.take<T>((kd + ku) * c.padded())) {}
};

template <class T> struct backward_work {
    ptrdiff_t rows;      // of a chunk, at most
    ptrdiff_t jump;      // between the blocks of a chunk's panels
    ptrdiff_t *before, *chunks, *segments;
    states<T> state;     // here y and z hold the running gradients
    T *y, *masked, *z, *u;       // previous y (masked where it entered the products), z, and [u, 1] of the chunk
    T *gates;                    // gate values, where computed again
    T *grads;                    // gA, gB, gC, gD: nv + 1 panels
    const T** grad_out;          // rows of the outputs' gradient at one step
    T *y_0, *z_0;                // the state before the first step of the group or segment, jump n * L
    totals<T> total;
    states<T> again;             // for running a segment again
    T* segment;
    backward_work(const call<T>& c, const lem_plan& plan, arena& a)
        : rows(larger(chunk_rows, largest_group(plan))), jump((rows | 1) * c.L),
          before(a.take<ptrdiff_t>(c.p.steps + 1)), chunks(a.take<ptrdiff_t>(c.p.steps + 1)),
          segments(a.take<ptrdiff_t>(c.p.steps + 1)), state(c, a, largest_group(plan), rows),
          y(a.take<T>(c.nb * jump)), masked(c.p.mask ? a.take<T>(c.nb * jump) : y), z(a.take<T>(c.nb * jump)),
          u(a.take<T>((c.mb + 1) * jump)), gates(c.p.keep == LEM_KEEP_STATES ? a.take<T>(4 * c.nb * jump) : nullptr),
          grads(a.take<T>((c.nv + 1) * c.nb * jump)), grad_out(a.take<const T*>(largest_group(plan))), y_0(a.take<T>(largest_group(plan) * c.padded())),
          z_0(a.take<T>(largest_group(plan) * c.padded())), total(c, a),
          again(c, a, c.p.keep == LEM_KEEP_SEGMENTS ? largest_group(plan) : 0, largest_group(plan)),
          segment(c.p.keep == LEM_KEEP_SEGMENTS ? a.take<T>(segment_row_steps(c, plan) * 6 * c.padded()) : nullptr) {}
    static ptrdiff_t segment_row_steps(const call<T>& c, const lem_plan& plan) {
        const ptrdiff_t n = largest_group(plan), steps = c.p.segment < c.p.steps ? c.p.segment : c.p.steps;
        return steps * n + larger(chunk_rows, n);
    }
};

// What the backward pass of one step reads: the step's gates, z before it, and where its rows lie in the chunk.
template <class T> struct step_view {
    ptrdiff_t n, at;
    gate_values<T> g;
    const T* z_before;
    ptrdiff_t z_jump;
};

template <class T> struct backward_pass {
    const call<T>& c;
    const lem_plan& plan;
    const weights<T>& w;
    const back_weights<T>& back;
    backward_work<T>& work;
    static constexpr ptrdiff_t L = simd<T>::lanes;

    T* grad(ptrdiff_t which) const { return work.grads + which * c.nb * work.jump; }

    // gB and gD of a step from the gradient that reaches y, to which `acc` is still to be added for the first `acc_rows`
    // rows; what passes by the step stays in the running gradient.
    void into_y(const step_view<T>& v, ptrdiff_t b, const T* acc, ptrdiff_t acc_jump, ptrdiff_t acc_rows) const {
        const ptrdiff_t live = c.live(b), here = b * work.jump + v.at * L, running_at = b * work.state.jump;
        T *const gB = c.gated ? grad(1) + here : nullptr, *const gD = grad(c.nv) + here;
        const T *y = work.y + here, *td = v.g.td + b * v.g.jump, *s2 = v.g.s2 + b * v.g.jump;
        for (ptrdiff_t r = 0; r < v.n; ++r) {
            const vec<T> t = load(td + r * L);
            vec<T> gy = add_in(running_at + r * L, acc + r * acc_jump, r < acc_rows);
            if (const T* const given = work.grad_out[r]) gy += load_row(given + b * L, live);
            vec<T> step = splat(c.dt);
            if (gB) {
                const vec<T> sigma = load(s2 + r * L);
                step = c.time_step(sigma);
                store(gB + r * L, gy * (t - load(y + r * L)) * c.time_step_slope(sigma));
            }
            store(gD + r * L, gy * step * (T(1) - t * t));
            store(work.state.y + running_at + r * L, gy * (T(1) - step));
        }
    }
    inline vec<T> add_in(ptrdiff_t at, const T* acc, bool add) const {
        vec<T> gy = load(work.state.y + at);
        if (add) gy += work.state.mask ? load(acc) * load(work.state.mask + at) : load(acc);
        return gy;
    }
    // Where the gradients of the outputs of step s are; null where there are none.
    void find_grad_out(const group& q, ptrdiff_t s) const {
        const lem_problem& p = c.p;
        const T* const from = static_cast<const T*>(p.grad_out);
        for (ptrdiff_t r = 0; r < q.active(s); ++r)
            work.grad_out[r] = from ? from + q.time(p, r, s) * p.grad_out_time + q.row[r] * p.grad_out_row : nullptr;
    }

    // gA and gC of a step from the gradient that reaches z.
    void into_z(const step_view<T>& v, ptrdiff_t b, const T* acc, ptrdiff_t acc_jump) const {
        const ptrdiff_t here = b * work.jump + v.at * L;
        T *gA = c.gated ? grad(0) + here : nullptr, *gC = grad(c.nv - 1) + here;
        const T *z = v.z_before + b * v.z_jump, *tc = v.g.tc + b * v.g.jump, *s1 = v.g.s1 + b * v.g.jump;
        for (ptrdiff_t r = 0; r < v.n; ++r) {
            T* const running = work.state.z + b * work.state.jump + r * L;
            const vec<T> gz = load(running) + load(acc + r * acc_jump), t = load(tc + r * L);
            vec<T> step = splat(c.dt);
            if (gA) {
                const vec<T> sigma = load(s1 + r * L);
                step = c.time_step(sigma);
                store(gA + r * L, gz * (t - load(z + r * L)) * c.time_step_slope(sigma));
            }
            store(gC + r * L, gz * step * (T(1) - t * t));
            store(running, gz * (T(1) - step));
        }
    }

    // One step back: gD -> z, then gA, gB, gC -> y of the step before.
    void step(const group& q, ptrdiff_t s, const step_view<T>& v, const step_view<T>* earlier) const {
        T* const acc = work.state.acc;
        const span<T> from_d = {grad(c.nv) + v.at * L, c.d, work.jump};
        for (ptrdiff_t b = 0; b < c.nb; b += 2) {
            const ptrdiff_t nv = c.nb - b < 2 ? 1 : 2;
            const T* const panel = back.z + b * c.d * L;
            pair_product(nv, &from_d, 1, panel, back.zeros, acc, v.n);
            for (ptrdiff_t i = 0; i < nv; ++i) into_z(v, b + i, acc + i * L, nv * L);
        }
        span<T> from_gates[3];
        for (ptrdiff_t i = 0; i < c.nv; ++i) from_gates[i] = {grad(i) + v.at * L, c.d, work.jump};
        if (earlier) find_grad_out(q, s - 1);
        for (ptrdiff_t b = 0; b < c.nb; b += 2) {
            const ptrdiff_t nv = c.nb - b < 2 ? 1 : 2;
            pair_product(nv, from_gates, c.nv, back.y + b * c.nv * c.d * L, back.zeros, acc, v.n);
            for (ptrdiff_t i = 0; i < nv; ++i)
                if (earlier) {
                    into_y(*earlier, b + i, acc + i * L, nv * L, v.n);
                } else {
                    const ptrdiff_t at = (b + i) * work.state.jump;
                    for (ptrdiff_t r = 0; r < v.n; ++r)
                        store(work.state.y + at + r * L, add_in(at + r * L, acc + (r * nv + i) * L, true));
                }
        }
    }

    // Gather what the chunk's products need of step s into panels over all its row-steps.
    void gather(const group& q, ptrdiff_t s, ptrdiff_t first, const kept<T>& source, ptrdiff_t origin) const {
        const lem_problem& p = c.p;
        const ptrdiff_t n = q.active(s), at = (q.before[s] - q.before[first]) * L;
        const T* const z = source.at(c, q.before[s] - q.before[origin], n, 0);
        const ptrdiff_t n_before = s > origin ? q.active(s - 1) : q.n;
        const T* y_before = work.y_0;  // a panel of n_before rows; null: rows of the outputs
        if (s > origin)
            y_before = source.parts == 6 ? source.at(c, q.before[s - 1] - q.before[origin], n_before, 5) : nullptr;
        for (ptrdiff_t b = 0; b < c.nb; ++b)
            for (ptrdiff_t r = 0; r < n; ++r) store(work.z + b * work.jump + at + r * L, load(z + (b * n + r) * L));
        for (ptrdiff_t r = 0; r < n; ++r) {
            const ptrdiff_t t = q.time(p, r, s), row = q.row[r];
            T *const y = work.y + at + r * L, *const u = work.u + at + r * L;
            if (y_before)
                for (ptrdiff_t b = 0; b < c.nb; ++b) store(y + b * work.jump, load(y_before + (b * n_before + r) * L));
            else
                to_panel(static_cast<const T*>(p.out) + ((p.reverse ? t + 1 : t - 1) * c.B + row) * c.d, c.d, y, work.jump);
            if (work.state.mask)
                for (ptrdiff_t b = 0; b < c.nb; ++b)
                    store(work.masked + at + b * work.jump + r * L,
                          load(y + b * work.jump) * load(work.state.mask + b * work.state.jump + r * L));
            if (c.m % L == 0) store(u + c.mb * work.jump, vec<T>{});
            to_panel(static_cast<const T*>(p.u) + t * p.u_time + row * p.u_row, c.m, u, work.jump);
            u[c.m / L * work.jump + c.m % L] = T(1);
        }
    }

    // The weights' gradients of a chunk.
    template <int NV> void outer_panel(ptrdiff_t rows, const T* g, ptrdiff_t g_jump, const T* state, T* total) const {
        constexpr ptrdiff_t R = outer_rows<T>();
        for (ptrdiff_t k = 0; k < work.total.kd; k += R)
            outer<T, NV>(rows, state + k / L * work.jump + k % L, g, g_jump, total + k * NV * L);
        for (ptrdiff_t k = 0; k < work.total.ku; k += R)
            outer<T, NV>(rows, work.u + k / L * work.jump + k % L, g, g_jump, total + (work.total.kd + k) * NV * L);
    }
    void outer_pairs(ptrdiff_t rows, const T* g, const T* state, T* total) const {
        const ptrdiff_t k = work.total.kd + work.total.ku;
        for (ptrdiff_t b = 0; b < c.nb; b += 2)
            if (c.nb - b < 2) outer_panel<1>(rows, g + b * work.jump, work.jump, state, total + b * k * L);
            else outer_panel<2>(rows, g + b * work.jump, work.jump, state, total + b * k * L);
    }
    void weight_gradients(ptrdiff_t rows) const {
        const ptrdiff_t k = work.total.kd + work.total.ku;
        if (c.gated)
            for (ptrdiff_t b = 0; b < c.nb; ++b)
                outer_panel<3>(rows, grad(0) + b * work.jump, c.nb * work.jump, work.masked, work.total.gates + b * k * 3 * L);
        else
            outer_pairs(rows, grad(0), work.masked, work.total.gates);
        outer_pairs(rows, grad(c.nv), work.z, work.total.value);
    }

    void input_gradient(const group& q, ptrdiff_t first, ptrdiff_t last) const {
        const lem_problem& p = c.p;
        const ptrdiff_t rows = q.before[last] - q.before[first];
        span<T> from[4];
        for (ptrdiff_t i = 0; i <= c.nv; ++i) from[i] = {grad(i), c.d, work.jump};
        for (ptrdiff_t b = 0; b < c.mb; b += 2) {
            const ptrdiff_t nv = c.mb - b < 2 ? 1 : 2;
            const T* const panel = back.u + b * (c.nv + 1) * c.d * L;
            T* const acc = work.state.acc;
            pair_product(nv, from, c.nv + 1, panel, back.zeros, acc, rows);
            for (ptrdiff_t s = first; s < last; ++s)
                for (ptrdiff_t r = 0; r < q.active(s); ++r)
                    for (ptrdiff_t i = 0; i < nv; ++i) {
                        const ptrdiff_t at = q.before[s] - q.before[first] + r, k = (b + i) * L;
                        T* const to = static_cast<T*>(p.grad_u) + (q.time(p, r, s) * c.B + q.row[r]) * c.m + k;
                        store_row(to, load(acc + (at * nv + i) * L), c.m - k < L ? c.m - k : L);
                    }
        }
    }

    // Steps [first, last), whose kept values begin at step `origin` (the group's first, or the segment's).
    void chunk(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        const ptrdiff_t rows = q.before[last] - q.before[first], part = c.nb * work.jump;
        if (source.parts < 5) {  // all steps of the chunk at once: their states are known
            for (ptrdiff_t s = first; s < last; ++s) gather(q, s, first, source, origin);
            const gate_values<T> g = {work.gates, work.gates + part, work.gates + 2 * part, work.gates + 3 * part, work.jump};
            const span<T> from_y[2] = {{work.masked, c.d, work.jump}, {work.u, c.m, work.jump}};
            const span<T> from_z[2] = {{work.z, c.d, work.jump}, {work.u, c.m, work.jump}};
            gates_phase<T>(c, w, from_y, rows, work.state.acc, {c, g, nullptr, nullptr, 0});
            value_phase<T>(c, w, from_z, rows, work.state.acc, {c, g, nullptr, nullptr});
        } else {
            gather(q, last - 1, first, source, origin);
        }
        step_view<T> now = view(q, last - 1, first, source, origin);
        find_grad_out(q, last - 1);
        for (ptrdiff_t b = 0; b < c.nb; ++b) into_y(now, b, nullptr, 0, 0);
        for (ptrdiff_t s = last - 1; s >= first; --s) {
            if (s > first) {
                if (source.parts >= 5) gather(q, s - 1, first, source, origin);
                const step_view<T> earlier = view(q, s - 1, first, source, origin);
                step(q, s, now, &earlier);
                now = earlier;
            } else {
                step(q, s, now, nullptr);
            }
        }
        weight_gradients(rows);
        if (c.p.grad_u) input_gradient(q, first, last);
    }

    step_view<T> view(const group& q, ptrdiff_t s, ptrdiff_t first, const kept<T>& source, ptrdiff_t origin) const {
        const ptrdiff_t n = q.active(s), at = q.before[s] - q.before[first], kept_at = q.before[s] - q.before[origin];
        const ptrdiff_t n_before = s > origin ? q.active(s - 1) : q.n;
        step_view<T> v = {n, at, {}, work.z_0, n_before * L};
        if (s > origin) v.z_before = source.at(c, q.before[s - 1] - q.before[origin], n_before, 0);
        if (source.parts < 5) {
            const ptrdiff_t part = c.nb * work.jump;
            T* const g = work.gates + at * L;
            v.g = {g, g + part, g + 2 * part, g + 3 * part, work.jump};
        } else {
            const ptrdiff_t part = n * c.padded();
            T* const g = source.at(c, kept_at, n, 1);
            v.g = {g, g + part, g + 2 * part, g + 3 * part, n * L};
        }
        return v;
    }

    void run(ptrdiff_t g, const char* saved) const {
        const lem_problem& p = c.p;
        const group q(plan, g, work.before);
        states<T>& state = work.state;
        set_mask(c, q, state);
        for (ptrdiff_t i = 0; i < c.nb * state.jump; i += L) store(state.y + i, vec<T>{}), store(state.z + i, vec<T>{});
        if (p.grad_y_n) read_rows(c, q, p.grad_y_n, state.y, state.jump);
        if (p.grad_z_n) read_rows(c, q, p.grad_z_n, state.z, state.jump);
        char* const kept_bytes = const_cast<char*>(saved);  // read only; `kept` serves both directions
        if (p.keep == LEM_KEEP_SEGMENTS) {
            ptrdiff_t count = 0;
            for (ptrdiff_t s = 0; s < q.steps; s = q.segment_end(s, p.segment)) work.segments[count++] = s;
            work.segments[count] = q.steps;
            states<T>& again = work.again;
            set_mask(c, q, again);
            while (count-- > 0) {
                const ptrdiff_t first = work.segments[count], last = work.segments[count + 1];
                const T* const from = segment_states(c, plan, kept_bytes, count, g);
                const ptrdiff_t items = q.n * c.padded();
                for (ptrdiff_t i = 0; i < items; i += L) {
                    store(work.y_0 + i, load(from + i));
                    store(work.z_0 + i, load(from + items + i));
                }
                for (ptrdiff_t b = 0; b < c.nb; ++b)
                    for (ptrdiff_t i = 0; i < q.n * L; i += L) {
                        store(again.y + b * again.jump + i, load(from + b * q.n * L + i));
                        store(again.z + b * again.jump + i, load(from + items + b * q.n * L + i));
                    }
                apply_mask(c, again);
                const kept<T> source = {work.segment, 6};
                run_steps(c, w, q, again, first, last, source, false);
                chunks(q, first, last, source, first);
            }
        } else {
            read_rows(c, q, p.y_0, work.y_0, q.n * L);
            read_rows(c, q, p.z_0, work.z_0, q.n * L);
            const ptrdiff_t parts = p.keep == LEM_KEEP_GATES ? 5 : 1;
            T* const base = reinterpret_cast<T*>(kept_bytes) + plan.before[g] * parts * c.padded();
            chunks(q, 0, q.steps, {base, parts}, 0);
        }
        write_rows(c, q, state.y, state.jump, p.grad_y_0);
        write_rows(c, q, state.z, state.jump, p.grad_z_0);
        if (p.grad_u)
            for (ptrdiff_t r = 0; r < q.n; ++r)
                for (ptrdiff_t t = q.length[r]; t < p.steps; ++t) {
                    T* const past = static_cast<T*>(p.grad_u) + (t * c.B + q.row[r]) * c.m;
                    for (ptrdiff_t k = 0; k < c.m; ++k) past[k] = T(0);
                }
    }

    void chunks(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        ptrdiff_t count = 0;
        for (ptrdiff_t s = first; s < last; s = q.chunk_end(s)) work.chunks[count++] = s;
        work.chunks[count] = last;
        while (count-- > 0) chunk(q, work.chunks[count], work.chunks[count + 1], source, origin);
    }
};

// Add the threads' totals and write unit block `b` of one map's gradient; k runs as in `totals`.
template <class T>
void unpack(const call<T>& c, const totals<T>& shape, const T* first, ptrdiff_t thread_jump, ptrdiff_t threads,
            ptrdiff_t nv, ptrdiff_t live, T* grad_w, T* grad_u, T* grad_bias) {
    const auto sum = [&](ptrdiff_t k, ptrdiff_t lane) {
        T s = T(0);
        for (ptrdiff_t t = 0; t < threads; ++t)
            s += reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + t * thread_jump)[k * nv * c.L + lane];
        return s;
    };
    for (ptrdiff_t lane = 0; lane < live; ++lane) {
        for (ptrdiff_t k = 0; k < c.d; ++k) grad_w[lane * c.d + k] = sum(k, lane);
        for (ptrdiff_t k = 0; k < c.m; ++k) grad_u[lane * c.m + k] = sum(shape.kd + k, lane);
        if (grad_bias) grad_bias[lane] = sum(shape.kd + c.m, lane);
    }
}

template <class T> void backward_all(const lem_problem& p, const lem_plan& plan, const char* saved, char* memory) {
    const call<T> c(p);
    arena shared{memory};
    const weights<T> w(c, shared);
    const back_weights<T> back(c, shared);
    const ptrdiff_t pairs = (c.nb + 1) / 2, threads = plan.threads;
    parallel(threads, [&](ptrdiff_t t) {
        if (p.keep != LEM_KEEP_GATES)
            for (ptrdiff_t pair = t; pair < pairs; pair += threads) pack_pair(c, w, pair);
        if (t == 0) {
            pack_columns(static_cast<const T*>(p.weight_z), c.d, c.d, back.z);
            for (ptrdiff_t i = 0; i < 3 * c.L; ++i) back.zeros[i] = T(0);
            if (p.grad_u) pack_columns(static_cast<const T*>(p.weight_u), (c.nv + 1) * c.d, c.m, back.u);
        }
        if (t == threads - 1) pack_columns(static_cast<const T*>(p.weight_y), c.nv * c.d, c.d, back.y);
    });
    arena one{nullptr};
    backward_work<T>(c, plan, one);
    const ptrdiff_t start = up(shared.used, 4096), each = up(one.used, 4096);
    parallel(threads, [&](ptrdiff_t t) {
        arena own{memory + start + t * each};
        backward_work<T> work(c, plan, own);
        const ptrdiff_t items = (work.total.kd + work.total.ku) * c.padded();
        for (ptrdiff_t i = 0; i < items * c.nv; ++i) work.total.gates[i] = T(0);
        for (ptrdiff_t i = 0; i < items; ++i) work.total.value[i] = T(0);
        const backward_pass<T> pass = {c, plan, w, back, work};
        for (ptrdiff_t g = t; g < plan.groups; g += threads) pass.run(g, saved);
    });
    arena own{memory + start};
    const backward_work<T> work(c, plan, own);
    const totals<T>& total = work.total;
    T *gu = static_cast<T*>(p.grad_weight_u), *gy = static_cast<T*>(p.grad_weight_y), *gz = static_cast<T*>(p.grad_weight_z);
    T* const gb = static_cast<T*>(p.grad_bias);
    parallel(threads, [&](ptrdiff_t t) {
        const ptrdiff_t k = total.kd + total.ku, d = c.d, L = c.L;
        const auto write = [&](const T* from, ptrdiff_t nv, ptrdiff_t b, ptrdiff_t map, T* grad_w) {
            const ptrdiff_t unit = b * L, row = map * d + unit;
            unpack(c, total, from, each, threads, nv, c.live(b), grad_w + unit * d, gu + row * c.m, gb ? gb + row : nullptr);
        };
        for (ptrdiff_t b = t; b < c.nb; b += threads) {
            const ptrdiff_t pair = b / 2 * 2, nv = c.nb - pair < 2 ? 1 : 2, paired = pair * k * L + (b - pair) * L;
            if (c.gated)
                for (ptrdiff_t i = 0; i < 3; ++i) write(total.gates + (b * k * 3 + i) * L, 3, b, i, gy + i * d * d);
            else
                write(total.gates + paired, nv, b, 0, gy);
            write(total.value + paired, nv, b, c.nv, gz);
        }
    });
}

// --- the table -------------------------------------------------------------------------------------------------------

template <class T> ptrdiff_t work_of(const lem_problem& p, const lem_plan& plan, bool backward) {
    const call<T> c(p);
    arena shared{nullptr}, one{nullptr};
    weights<T>(c, shared);
    if (backward) {
        back_weights<T>(c, shared);
        backward_work<T>(c, plan, one);
    } else {
        forward_work<T>(c, plan, one);
    }
    return up(shared.used, 4096) + plan.threads * up(one.used, 4096);
}

template <class T> ptrdiff_t packed_of(const lem_problem& p) {
    arena a{nullptr};
    weights<T>(call<T>(p), a);
    return a.used;
}

template <class T> void pack_of(const lem_problem& p, char* packed) {
    const call<T> c(p);
    arena a{packed};
    const weights<T> w(c, a);
    for (ptrdiff_t pair = 0; pair < (c.nb + 1) / 2; ++pair) pack_pair(c, w, pair);
}

template <class T> void step_of(const lem_problem& p, const lem_plan& plan, const char* packed, char* memory) {
    const flush_denormals flush;
    const call<T> c(p);
    arena a{const_cast<char*>(packed)}, own{memory};
    const weights<T> w(c, a);
    forward_work<T> work(c, plan, own);
    for (ptrdiff_t g = 0; g < plan.groups; ++g) forward_group(c, plan, w, work, g, static_cast<char*>(nullptr));
}

template <class T> double peak_of(ptrdiff_t threads) {
    constexpr int rows = tile_rows<3>();
    constexpr ptrdiff_t L = simd<T>::lanes, k = 128, times = 2000;
    parallel(threads, [&](ptrdiff_t) {
        alignas(64) T x[rows * L * (k / L)] = {}, w[k * 3 * L] = {}, acc[rows * 3 * L] = {};
        const span<T> s = {x, k, rows * L};
        for (ptrdiff_t i = 0; i < times; ++i) {
            tile<T, rows, 3>(&s, 1, 0, w, nullptr, acc);
            asm volatile("" ::"r"(acc) : "memory");
        }
    });
    return 2.0 * rows * 3 * L * k * times * double(threads);
}

template <class T> void function_of(ptrdiff_t which, const void* x, void* out, ptrdiff_t count) {
    const T* const from = static_cast<const T*>(x);
    T* const to = static_cast<T*>(out);
    for (ptrdiff_t i = 0; i < count; i += simd<T>::lanes) {
        const ptrdiff_t live = count - i < simd<T>::lanes ? count - i : simd<T>::lanes;
        vec<T> v[1] = {load_row(from + i, live)};
        which ? squash<T, 1, 0>(v) : squash<T, 1, 1>(v);
        store_row(to + i, v[0], live);
    }
}

ptrdiff_t work_bytes(const lem_problem& p, const lem_plan& plan, bool backward) {
    return p.item_bytes == 8 ? work_of<double>(p, plan, backward) : work_of<float>(p, plan, backward);
}
void forward(const lem_problem& p, const lem_plan& plan, char* saved, char* work) {
    p.item_bytes == 8 ? forward_all<double>(p, plan, saved, work) : forward_all<float>(p, plan, saved, work);
}
void backward(const lem_problem& p, const lem_plan& plan, const char* saved, char* work) {
    p.item_bytes == 8 ? backward_all<double>(p, plan, saved, work) : backward_all<float>(p, plan, saved, work);
}
ptrdiff_t packed_bytes(const lem_problem& p) { return p.item_bytes == 8 ? packed_of<double>(p) : packed_of<float>(p); }
void pack(const lem_problem& p, char* packed) { p.item_bytes == 8 ? pack_of<double>(p, packed) : pack_of<float>(p, packed); }
void step(const lem_problem& p, const lem_plan& plan, const char* packed, char* work) {
    p.item_bytes == 8 ? step_of<double>(p, plan, packed, work) : step_of<float>(p, plan, packed, work);
}
double peak(bool wide, ptrdiff_t threads) { return wide ? peak_of<double>(threads) : peak_of<float>(threads); }
void function(ptrdiff_t which, bool wide, const void* x, void* out, ptrdiff_t count) {
    wide ? function_of<double>(which, x, out, count) : function_of<float>(which, x, out, count);
}

}  // namespace

extern const lem_target LEM_TARGET_SYMBOL = {LEM_TARGET_NAME, LEM_VECTOR_BYTES, work_bytes, forward,  backward,
                                             packed_bytes,    pack,             step,       peak,     function};

// Forward: the two halves of a step, and all steps of a group.
//   gates:  A, B, C = (W_1, W_2, W_z) y + (V_1, V_2, V_z) u + b     s1, s2, tc = sigmoid A, sigmoid B, tanh C;  new z
//   values: D = W_y z + V_y u + b_y                                 td = tanh D;                              new y
// A team that shares the steps divides the hidden units: each half ends with a meeting, because the other half reads all units.
#pragma once
#include "pack.h"

namespace {

// Where the values of a step go: [z | s1 s2 tc td | y] panels of exactly its active rows, one step after another.
template <class T> struct kept {
    T* base;
    ptrdiff_t parts;  // 0 nothing, 1 z, 5 with the gates, 6 with y
    T* at(const call<T>& c, ptrdiff_t row_steps, ptrdiff_t n, ptrdiff_t part) const {
        return base + (row_steps * parts + n * part) * c.padded();
    }
};

template <class T> struct gate_values { T *s1, *s2, *tc, *td; ptrdiff_t jump; };

template <class T> struct states {  // the running state of one group; its team shares it
    ptrdiff_t jump;
    T *y, *z, *masked, *mask, *gates;
    states(const call<T>& c, arena& a, ptrdiff_t n)
        : jump((n | 1) * c.L), y(a.take<T>(c.nb * jump)), z(a.take<T>(c.nb * jump)),
          masked(c.p.mask ? a.take<T>(c.nb * jump) : y), mask(c.p.mask ? a.take<T>(c.nb * jump) : nullptr),
          gates(a.take<T>(4 * n * c.padded())) {}
};

template <class T> struct scratch {  // what each thread has for itself within a step
    ptrdiff_t jump;
    T *u, *acc;
    T** out;             // where the outputs of each row go
    const T** grad_out;  // where the gradients of the outputs come from
    scratch(const call<T>& c, const lem_plan& plan, arena& a, ptrdiff_t acc_rows)
        : jump((largest_group(plan) | 1) * c.L), u(a.take<T>(c.mb * jump)),
          acc(a.take<T>(larger(acc_rows * 3, narrow_vectors) * c.L)), out(a.take<T*>(largest_group(plan))),
          grad_out(a.take<const T*>(largest_group(plan))) {}
};

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

template <class T>
void gates_phase(const call<T>& c, const weights<T>& w, range blocks, const span<T>* x, ptrdiff_t rows, T* acc,
                 const gates_end<T>& end) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    if (c.gated) {
        for (ptrdiff_t b = blocks.first; b < blocks.last;) {
            const T *const panel = w.gates + b * c.K * 3 * L, *const bias = w.gates_bias + b * 3 * L;
            const ptrdiff_t done = products<T, 3>(x, 2, panel, c.K * 3 * L, bias, 3 * L, acc, rows, blocks.last - b);
            for (ptrdiff_t i = 0; i < done; ++i, ++b) {
                const T* const from = acc + i * rows * 3 * L;
                ptrdiff_t r = 0;
                for (; r + 2 <= rows; r += 2) end.template gated<2>(b, r, from);
                if (r < rows) end.template gated<1>(b, r, from);
            }
        }
    } else {
        const auto each = [&](ptrdiff_t b, const T* from, ptrdiff_t jump) {
            ptrdiff_t r = 0;
            for (; r + 4 <= rows; r += 4) end.template ungated<4>(b, r, from, jump);
            for (; r < rows; ++r) end.template ungated<1>(b, r, from, jump);
        };
        pair_products(blocks.first, blocks.last, x, 2, c.K, w.gates, w.gates_bias, L, acc, rows, each);
    }
}

// Second half: td and, where a state is given, the new y, which is also written to the outputs and to `y_kept`.
template <class T> struct value_end {
    const call<T>& c;
    const gate_values<T>& g;
    states<T>* state;
    T* const* out;
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
            if (T* const to = out[r + i]) store_row(to + b * L, next, c.live(b));
            if (y_kept) store(y_kept + at, next);
        }
    }
};

template <class T>
void value_phase(const call<T>& c, const weights<T>& w, range blocks, const span<T>* x, ptrdiff_t rows, T* acc,
                 const value_end<T>& end) {
    const auto each = [&](ptrdiff_t b, const T* from, ptrdiff_t jump) {
        ptrdiff_t r = 0;
        for (; r + 4 <= rows; r += 4) end.template rows<4>(b, r, from, jump);
        for (; r < rows; ++r) end.template rows<1>(b, r, from, jump);
    };
    pair_products(blocks.first, blocks.last, x, 2, c.K, w.value, w.value_bias, simd<T>::lanes, acc, rows, each);
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
// Run steps [first, last) of a group from the state as it stands; `blocks` are this member's.
template <class T>
void run_steps(const call<T>& c, const weights<T>& w, const group& q, states<T>& state, scratch<T>& own, team& members,
               range blocks, ptrdiff_t first, ptrdiff_t last, const kept<T>& sink, bool write_outputs) {
    const lem_problem& p = c.p;
    T* const out = write_outputs ? static_cast<T*>(p.out) : nullptr;
    const T* const u = static_cast<const T*>(p.u);
    for (ptrdiff_t r = 0; r < q.n; ++r) own.out[r] = nullptr;
    for (ptrdiff_t s = first; s < last; ++s) {
        const ptrdiff_t n = q.active(s), at = q.before[s] - q.before[first], jump = n * c.L;
        for (ptrdiff_t r = 0; r < n; ++r) {
            const ptrdiff_t t = q.time(p, r, s);
            to_panel(u + t * p.u_time + q.row[r] * p.u_row, c.m, own.u + r * c.L, own.jump);
            if (out) own.out[r] = out + (t * c.B + q.row[r]) * c.d;
        }
        T* const gates = sink.parts >= 5 ? sink.at(c, at, n, 1) : state.gates;
        const ptrdiff_t part = n * c.padded();
        const gate_values<T> g = {gates, gates + part, gates + 2 * part, gates + 3 * part, jump};
        const span<T> from_y[2] = {{state.masked, c.d, state.jump}, {own.u, c.m, own.jump}};
        const span<T> from_z[2] = {{state.z, c.d, state.jump}, {own.u, c.m, own.jump}};
        const gates_end<T> z_end = {c, g, state.z, sink.parts ? sink.at(c, at, n, 0) : nullptr, state.jump};
        const value_end<T> y_end = {c, g, &state, own.out, sink.parts == 6 ? sink.at(c, at, n, 5) : nullptr};
        gates_phase(c, w, blocks, from_y, n, own.acc, z_end);
        members.meet();
        value_phase(c, w, blocks, from_z, n, own.acc, y_end);
        members.meet();
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
template <class T> struct forward_work {  // of one team
    ptrdiff_t* before;
    states<T> state;
    forward_work(const call<T>& c, const lem_plan& plan, arena& a)
        : before(a.take<ptrdiff_t>(c.p.steps + 1)), state(c, a, largest_group(plan)) {}
};

template <class T>
void forward_group(const call<T>& c, const lem_plan& plan, const weights<T>& w, forward_work<T>& work, scratch<T>& own,
                   team& members, ptrdiff_t g, char* saved) {
    const lem_problem& p = c.p;
    const group q(plan, g, work.before, members.leads());
    states<T>& state = work.state;
    if (members.leads()) {
        read_rows(c, q, p.y_0, state.y, state.jump);
        read_rows(c, q, p.z_0, state.z, state.jump);
        set_mask(c, q, state);
        apply_mask(c, state);
    }
    members.meet();
    const range blocks = c.blocks(members);
    if (p.keep == LEM_KEEP_SEGMENTS) {
        ptrdiff_t index = 0;
        for (ptrdiff_t s = 0; s < q.steps; ++index) {
            T* const to = segment_states(c, plan, saved, index, g);
            for (ptrdiff_t b = blocks.first; b < blocks.last; ++b)
                for (ptrdiff_t i = 0; i < q.n * c.L; i += c.L) {
                    store(to + b * q.n * c.L + i, load(state.y + b * state.jump + i));
                    store(to + (c.nb + b) * q.n * c.L + i, load(state.z + b * state.jump + i));
                }
            const ptrdiff_t end = q.segment_end(s, p.segment);
            run_steps(c, w, q, state, own, members, blocks, s, end, {nullptr, 0}, true);
            s = end;
        }
    } else {
        const ptrdiff_t parts = p.keep == LEM_KEEP_GATES ? 5 : p.keep == LEM_KEEP_STATES ? 1 : 0;
        T* const base = reinterpret_cast<T*>(saved) + plan.before[g] * parts * c.padded();
        run_steps(c, w, q, state, own, members, blocks, 0, q.steps, {base, parts}, true);
    }
    if (members.leads()) {
        write_rows(c, q, state.y, state.jump, p.y_n);
        write_rows(c, q, state.z, state.jump, p.z_n);
        for (ptrdiff_t r = 0; r < q.n; ++r)
            for (ptrdiff_t t = q.length[r]; t < p.steps; ++t) {
                T* const past = static_cast<T*>(p.out) + (t * c.B + q.row[r]) * c.d;
                for (ptrdiff_t k = 0; k < c.d; ++k) past[k] = T(0);
            }
    }
    members.meet();
}

template <class T> void forward_all(const lem_problem& p, const lem_plan& plan, char* saved, char* memory) {
    const call<T> c(p);
    arena shared{memory};
    const weights<T> w(c, shared);
    int64_t* const met = shared.take<int64_t>(plan.threads * team::line);
    const ptrdiff_t pairs = (c.nb + 1) / 2, slots = plan.threads / plan.team;
    parallel(plan.threads, [&](ptrdiff_t t, ptrdiff_t count) {
        for (ptrdiff_t pair = t; pair < pairs; pair += count) pack_pair(c, w, pair);
        for (ptrdiff_t i = t; i < plan.threads; i += count) met[i * team::line] = 0;
    });
    arena one{nullptr}, two{nullptr};
    forward_work<T>(c, plan, one);
    scratch<T>(c, plan, two, largest_group(plan));
    const ptrdiff_t start = up(shared.used, 4096), each = up(one.used, 4096), own_each = up(two.used, 4096);
    in_teams(plan, met, [&](ptrdiff_t slot, team& members) {
        arena team_memory{memory + start + slot * each};
        arena own_memory{memory + start + slots * each + (slot * plan.team + members.member) * own_each};
        forward_work<T> work(c, plan, team_memory);
        scratch<T> own(c, plan, own_memory, largest_group(plan));
        for (ptrdiff_t g = slot; g < plan.groups; g += slots) forward_group(c, plan, w, work, own, members, g, saved);
    });
}

}  // namespace

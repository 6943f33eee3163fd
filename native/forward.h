// Forward: the two halves of a step, and all steps of a group.
//   gates:  A, B, C = (W_1, W_2, W_z) y + (V_1, V_2, V_z) u + b     s1, s2, tc = sigmoid A, sigmoid B, tanh C;  new z
//   values: D = W_y z + V_y u + b_y                                 td = tanh D;                              new y
// A team that shares the steps divides the hidden units: each half ends with a meeting, because the other half reads all units.
#pragma once
#include "pack.h"

namespace {

// Values of the gates of a step: s1 and tc of z, s2 and td of y; where paced also both time steps, h1 of z and h2 of y.
template <class T> struct gate_values {
    T *s1, *s2, *tc, *td, *h1, *h2;
    ptrdiff_t jump;
    gate_values(const call<T>& c, T* base, ptrdiff_t block)  // `block`: items of a block of units
        : s1(base), s2(s1 + c.nbz * block), tc(s2 + c.nby * block), td(tc + c.nbz * block),
          h1(c.paced ? td + c.nby * block : nullptr), h2(c.paced ? h1 + c.nbz * block : nullptr), jump(block) {}
    void skip(ptrdiff_t items) {
        s1 += items, s2 += items, tc += items, td += items;
        if (h1) h1 += items, h2 += items;
    }
};

// Where the values of a step go: [z | gates | y] panels of exactly its active rows, one step after another.
enum kept_parts { keep_nothing, keep_z, keep_gates, keep_y };  // each with those before it
template <class T> struct kept {
    T* base;
    kept_parts parts;
    static ptrdiff_t blocks(const call<T>& c, kept_parts parts) {  // of a row and step
        const ptrdiff_t with_gates = c.nbz + c.gate_blocks();
        return parts == keep_nothing ? 0 : parts == keep_z ? c.nbz : parts == keep_gates ? with_gates : with_gates + c.nby;
    }
    T* step(const call<T>& c, ptrdiff_t row_steps) const { return base + row_steps * blocks(c, parts) * c.L; }
    // How many steps of `n` rows ahead to fetch the values of; 0: leave it to the processor. Worth it where they do not stay
    // in a core's own caches and steps are short: then the memory's answers take as long as the arithmetic.
    ptrdiff_t ahead(const call<T>& c, ptrdiff_t n) const {
        constexpr ptrdiff_t cached = 4 << 20, near = 16 << 10;
        const ptrdiff_t bytes = n * blocks(c, parts) * c.L * ptrdiff_t(sizeof(T));
        if (c.p.keep == LEM_KEEP_BOUNDED || c.p.saved_bytes < cached || bytes == 0 || bytes > 2 * near) return 0;
        return larger(near / bytes, 1);
    }
    T* z(const call<T>& c, ptrdiff_t row_steps) const { return step(c, row_steps); }
    T* gates(const call<T>& c, ptrdiff_t row_steps, ptrdiff_t n) const { return step(c, row_steps) + n * c.nbz * c.L; }
    T* y(const call<T>& c, ptrdiff_t row_steps, ptrdiff_t n) const {
        return step(c, row_steps) + n * blocks(c, keep_gates) * c.L;
    }
};

template <class T> struct states {  // the running state of one group; its team shares it
    ptrdiff_t jump;
    T *y, *z, *masked, *mask, *gates;
    T *y_start, *z_start;  // the state at a restart
    states(const call<T>& c, arena& a, ptrdiff_t n)
        : jump((n | 1) * c.L), y(a.take<T>(c.nby * jump)), z(a.take<T>(c.nbz * jump)),
          masked(c.p.mask ? a.take<T>(c.nby * jump) : y), mask(c.p.mask ? a.take<T>(c.nby * jump) : nullptr),
          gates(a.take<T>(c.gate_blocks() * n * c.L)), y_start(c.p.resets ? a.take<T>(c.padded_y()) : nullptr),
          z_start(c.p.resets ? a.take<T>(c.padded_z()) : nullptr) {}
};

template <class T> struct scratch {  // what each thread has for itself within a step
    ptrdiff_t jump;
    T *u, *acc;
    ptrdiff_t word_jump;
    T *words, *u_words;  // operands made of bfloat16 pairs, where they are
    T** out;             // where the outputs of each row go
    const T** grad_out;  // where the gradients of the outputs come from
    T *elapsed, *fixed;  // of each row of a step or chunk; `fixed`: both time steps, where not gated. Null: nothing elapses
    bool* restart;       // whether a row's state restarts before the step. Null: none does
    scratch(const call<T>& c, const lem_plan& plan, arena& a, ptrdiff_t rows)
        : jump((largest_group(plan) | 1) * c.L), u(a.take<T>(c.mb * jump)),
          acc(a.take<T>(larger(rows * 3, narrow_vectors) * c.L)), word_jump((rows | 1) * c.L),
          words(c.paired ? a.take<T>(4 * half(c.nbz) * word_jump) : nullptr),
          u_words(c.paired ? a.take<T>(half(c.mb) * word_jump) : nullptr), out(a.take<T*>(largest_group(plan))),
          grad_out(a.take<const T*>(largest_group(plan))), elapsed(c.p.elapsed ? a.take<T>(rows) : nullptr),
          fixed(c.p.elapsed && !c.gated ? a.take<T>(rows) : nullptr), restart(c.p.resets ? a.take<bool>(rows) : nullptr) {}

    // Read the elapsed times and restarts of step s, whose rows stand at `at` in the chunk; returns whether any restarts.
    bool read_step(const call<T>& c, const group& q, ptrdiff_t s, ptrdiff_t at) const {
        const lem_problem& p = c.p;
        const ptrdiff_t n = q.active(s);
        bool any = false;
        if (elapsed)
            for (ptrdiff_t r = 0; r < n; ++r) {
                const ptrdiff_t from = q.elapsed(p, r, s);
                elapsed[at + r] = from < 0 ? T(1) : static_cast<const T*>(p.elapsed)[from];
            }
        if (fixed)
            for (ptrdiff_t r = at; r < at + n; ++r) {
                vec<T> g[1] = {splat(c.dt)};
                const vec<T> e[1] = {splat(elapsed[r])};
                if (elapsed[r] != T(1)) stretch_gates<T, 1>(g, e);
                fixed[r] = g[0][0];
            }
        if (restart)
            for (ptrdiff_t r = 0; r < n; ++r) any |= restart[at + r] = q.restarts(p, r, s);
        return any;
    }
};

// First half of a step: the gates and, where `z` is given, the new z, which is also written to `z_kept`.
template <class T> struct gates_end {
    const call<T>& c;
    const gate_values<T>& g;
    const scratch<T>& own;
    T *z, *z_kept;
    ptrdiff_t z_jump;
    static constexpr ptrdiff_t L = simd<T>::lanes;

    inline void next_z(ptrdiff_t b, ptrdiff_t r, vec<T> step, vec<T> t) const {
        T* const state = z + b * z_jump + r * L;
        const vec<T> before = load(state), next = before + step * (t - before);
        store(state, next);
        if (z_kept) store(z_kept + b * g.jump + r * L, next);
    }
    // The time steps of G gates and R rows from their sigmoids; rows with an elapsed time of 1 keep them as they are.
    template <int G, int R> inline void pace(vec<T>* x, ptrdiff_t r) const {
        bool plain = true;
        for (int i = 0; i < R; ++i) plain &= own.elapsed[r + i] == T(1);
        for (int i = 0; i < G * R; ++i) x[i] = c.time_step(x[i]);
        if (plain) return;
        vec<T> h[G * R], e[G * R];
        for (int i = 0; i < G * R; ++i) h[i] = x[i], e[i] = splat(own.elapsed[r + i % R]);
        stretch_gates<T, G * R>(h, e);
        for (int i = 0; i < G * R; ++i) x[i] = e[i] == T(1) ? x[i] : h[i];
    }
    // NV = 3: both gates and the candidate of z; NV = 2: no gate of y.
    template <int NV, int R> inline void gated(ptrdiff_t b, ptrdiff_t r, const T* acc) const {
        constexpr int G = NV - 1;
        vec<T> x[NV * R];
        for (int v = 0; v < NV; ++v)
            for (int i = 0; i < R; ++i) x[v * R + i] = load(acc + (NV * (r + i) + v) * L);
        squash<T, NV * R, G * R>(x);
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t at = b * g.jump + (r + i) * L;
            store(g.s1 + at, x[i]);
            if (NV == 3) store(g.s2 + at, x[R + i]);
            store(g.tc + at, x[G * R + i]);
            if (z && !g.h1) next_z(b, r + i, c.time_step(x[i]), x[G * R + i]);
        }
        if (!g.h1) return;
        pace<G, R>(x, r);
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t at = b * g.jump + (r + i) * L;
            store(g.h1 + at, x[i]);
            if (NV == 3) store(g.h2 + at, x[R + i]);
            if (z) next_z(b, r + i, x[i], x[G * R + i]);
        }
    }
    template <int R> inline void ungated(ptrdiff_t b, ptrdiff_t r, const T* acc, ptrdiff_t acc_jump) const {
        vec<T> x[R];
        for (int i = 0; i < R; ++i) x[i] = load(acc + (r + i) * acc_jump);
        squash<T, R, 0>(x);
        for (int i = 0; i < R; ++i) {
            store(g.tc + b * g.jump + (r + i) * L, x[i]);
            if (z) next_z(b, r + i, splat(own.fixed ? own.fixed[r + i] : c.dt), x[i]);
        }
    }
};

template <class T, int NV>
void gated_blocks(const call<T>& c, const weights<T>& w, range blocks, const span<T>* x, ptrdiff_t rows, T* acc,
                  const gates_end<T>& end) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    for (ptrdiff_t b = blocks.first; b < blocks.last;) {
        const T *const panel = w.gates + c.vectors(b) * c.Ky * L, *const bias = w.gates_bias + c.vectors(b) * L;
        const ptrdiff_t done = call_products<T, NV>(c, x, panel, c.Ky * NV * L, bias, acc, rows, blocks.last - b);
        for (ptrdiff_t i = 0; i < done; ++i, ++b) {
            const T* const from = acc + i * rows * NV * L;
            ptrdiff_t r = 0;
            for (; r + 2 <= rows; r += 2) end.template gated<NV, 2>(b, r, from);
            if (r < rows) end.template gated<NV, 1>(b, r, from);
        }
    }
}

template <class T>
void gates_phase(const call<T>& c, const weights<T>& w, range blocks, const span<T>* x, ptrdiff_t rows, T* acc,
                 const gates_end<T>& end) {
    if (c.gated) {
        gated_blocks<T, 3>(c, w, {blocks.first, smaller(blocks.last, c.nby)}, x, rows, acc, end);
        gated_blocks<T, 2>(c, w, {larger(blocks.first, c.nby), blocks.last}, x, rows, acc, end);
    } else {
        const auto each = [&](ptrdiff_t b, const T* from, ptrdiff_t jump) {
            ptrdiff_t r = 0;
            for (; r + 4 <= rows; r += 4) end.template ungated<4>(b, r, from, jump);
            for (; r < rows; ++r) end.template ungated<1>(b, r, from, jump);
        };
        call_pairs(c, blocks, x, 2, w.gates, w.gates_bias, simd<T>::lanes, acc, rows, each);
    }
}

// Second half: td and, where a state is given, the new y, which is also written to the outputs and to `y_kept`.
template <class T> struct value_end {
    const call<T>& c;
    const gate_values<T>& g;
    const scratch<T>& own;
    states<T>* state;
    T* y_kept;
    static constexpr ptrdiff_t L = simd<T>::lanes;

    inline vec<T> step(ptrdiff_t at, ptrdiff_t r) const {
        if (!c.gated) return splat(own.fixed ? own.fixed[r] : c.dt);
        return g.h2 ? load(g.h2 + at) : c.time_step(load(g.s2 + at));
    }
    template <int R> inline void rows(ptrdiff_t b, ptrdiff_t r, const T* acc, ptrdiff_t acc_jump) const {
        vec<T> x[R];
        for (int i = 0; i < R; ++i) x[i] = load(acc + (r + i) * acc_jump);
        squash<T, R, 0>(x);
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t at = b * g.jump + (r + i) * L;
            store(g.td + at, x[i]);
            if (!state) continue;
            const ptrdiff_t here = b * state->jump + (r + i) * L;
            const vec<T> before = load(state->y + here), next = before + step(at, r + i) * (x[i] - before);
            store(state->y + here, next);
            if (state->mask) store(state->masked + here, next * load(state->mask + here));
            if (T* const to = own.out[r + i]) store_row(to + b * L, next, c.live(c.dy, b));
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
    call_pairs(c, blocks, x, 2, w.value, w.value_bias, simd<T>::lanes, acc, rows, each);
}

// Rows of the batch, `units` wide, to and from panels.
template <class T> void read_rows(ptrdiff_t units, const group& q, const void* from, T* panel, ptrdiff_t jump) {
    for (ptrdiff_t r = 0; r < q.n; ++r)
        to_panel(static_cast<const T*>(from) + q.row[r] * units, units, panel + r * simd<T>::lanes, jump);
}
template <class T> void write_rows(ptrdiff_t units, const group& q, const T* panel, ptrdiff_t jump, void* to) {
    for (ptrdiff_t r = 0; r < q.n; ++r)
        from_panel(panel + r * simd<T>::lanes, jump, static_cast<T*>(to) + q.row[r] * units, units);
}

// What stays fixed while a group runs: its masks and the state at a restart.
template <class T> void set_fixed(const call<T>& c, const group& q, states<T>& state) {
    const lem_problem& p = c.p;
    if (state.mask) read_rows(c.dy, q, p.mask, state.mask, state.jump);
    if (!p.resets) return;
    for (ptrdiff_t i = 0; i < c.padded_y(); ++i) state.y_start[i] = T(0);
    for (ptrdiff_t i = 0; i < c.padded_z(); ++i) state.z_start[i] = T(0);
    if (p.y_start) to_panel(static_cast<const T*>(p.y_start), c.dy, state.y_start, c.L);
    if (p.z_start) to_panel(static_cast<const T*>(p.z_start), c.dz, state.z_start, c.L);
}

template <class T> void apply_mask(const call<T>& c, states<T>& state) {
    if (state.mask)
        for (ptrdiff_t i = 0; i < c.nby * state.jump; i += c.L)
            store(state.masked + i, load(state.y + i) * load(state.mask + i));
}

// The unit blocks of one member of a team, of y and of z.
struct shares { range y, z; };

// Put the rows that restart before a step into their first state: this member's blocks.
template <class T>
void restart_rows(const call<T>& c, const bool* restart, ptrdiff_t rows, states<T>& state, const shares& mine) {
    for (ptrdiff_t r = 0; r < rows; ++r) {
        if (!restart[r]) continue;
        for (ptrdiff_t b = mine.z.first; b < mine.z.last; ++b)
            store(state.z + b * state.jump + r * c.L, load(state.z_start + b * c.L));
        for (ptrdiff_t b = mine.y.first; b < mine.y.last; ++b) {
            const ptrdiff_t here = b * state.jump + r * c.L;
            const vec<T> y = load(state.y_start + b * c.L);
            store(state.y + here, y);
            if (state.mask) store(state.masked + here, y * load(state.mask + here));
        }
    }
}

// Run steps [first, last) of a group from the state as it stands; `mine` are this member's blocks. Returns whether to leave.
template <class T>
bool run_steps(const call<T>& c, const weights<T>& w, const group& q, states<T>& state, scratch<T>& own, team& members,
               const shares& mine, ptrdiff_t first, ptrdiff_t last, const kept<T>& sink, bool write_outputs) {
    const lem_problem& p = c.p;
    T* const out = write_outputs ? static_cast<T*>(p.out) : nullptr;
    const T* const u = static_cast<const T*>(p.u);
    const ptrdiff_t ahead = members.size == 1 ? sink.ahead(c, q.n) : 0;
    for (ptrdiff_t r = 0; r < q.n; ++r) own.out[r] = nullptr;
    for (ptrdiff_t s = first; s < last; ++s) {
        const ptrdiff_t n = q.active(s), at = q.before[s] - q.before[first];
        for (ptrdiff_t r = 0; r < n; ++r) {
            const ptrdiff_t t = q.time(p, r, s);
            to_panel(u + t * p.u_time + q.row[r] * p.u_row, c.m, own.u + r * c.L, own.jump);
            if (out) own.out[r] = out + (t * c.B + q.row[r]) * c.dy;
        }
        if ((own.elapsed || own.restart) && own.read_step(c, q, s, 0)) {
            restart_rows(c, own.restart, n, state, mine);
            members.meet();
        }
        const gate_values<T> g(c, sink.parts >= keep_gates ? sink.gates(c, at, n) : state.gates, n * c.L);
        if (ahead && s + ahead < last) {
            const ptrdiff_t then = q.before[s + ahead] - q.before[first];
            fetch<1>(sink.step(c, then), sink.step(c, then + q.active(s + ahead)) - sink.step(c, then));
        }
        const span<T> from_u = operand(c, {own.u, c.m, own.jump}, n, own.u_words, own.word_jump);
        const gates_end<T> z_end = {c, g, own, state.z, sink.parts ? sink.z(c, at) : nullptr, state.jump};
        const value_end<T> y_end = {c, g, own, &state, sink.parts == keep_y ? sink.y(c, at, n) : nullptr};
        const span<T> from_y[2] = {operand(c, {state.masked, c.dy, state.jump}, n, own.words, own.word_jump), from_u};
        gates_phase(c, w, mine.z, from_y, n, own.acc, z_end);
        members.meet();
        const span<T> from_z[2] = {operand(c, {state.z, c.dz, state.jump}, n, own.words, own.word_jump), from_u};
        value_phase(c, w, mine.y, from_z, n, own.acc, y_end);
        if (members.meet_to_leave()) return true;
    }
    return false;
}

template <class T> T* segment_states(const call<T>& c, const lem_plan& plan, char* saved, ptrdiff_t index, ptrdiff_t g) {
    return reinterpret_cast<T*>(saved) + (index * c.B + plan.begin[g]) * (c.padded_y() + c.padded_z());
}

template <class T> struct forward_work {  // of one team
    ptrdiff_t* before;
    states<T> state;
    forward_work(const call<T>& c, const lem_plan& plan, arena& a)
        : before(a.take<ptrdiff_t>(c.p.steps + 1)), state(c, a, largest_group(plan)) {}
};

template <class T>  // returns whether to leave
bool forward_group(const call<T>& c, const lem_plan& plan, const weights<T>& w, forward_work<T>& work, scratch<T>& own,
                   team& members, ptrdiff_t g, char* saved) {
    const lem_problem& p = c.p;
    const group q(plan, g, work.before, members.leads());
    states<T>& state = work.state;
    if (members.leads()) {
        read_rows(c.dy, q, p.y_0, state.y, state.jump);
        read_rows(c.dz, q, p.z_0, state.z, state.jump);
        set_fixed(c, q, state);
        apply_mask(c, state);
    }
    members.meet();
    const shares mine = {c.blocks(members, c.nby), c.blocks(members, c.nbz)};
    if (p.keep == LEM_KEEP_BOUNDED) {
        ptrdiff_t index = 0;
        for (ptrdiff_t s = 0; s < q.steps; ++index) {
            T* const to = segment_states(c, plan, saved, index, g);
            const ptrdiff_t items = q.n * c.L;
            for (ptrdiff_t b = mine.y.first; b < mine.y.last; ++b)
                for (ptrdiff_t i = 0; i < items; i += c.L) store(to + b * items + i, load(state.y + b * state.jump + i));
            for (ptrdiff_t b = mine.z.first; b < mine.z.last; ++b)
                for (ptrdiff_t i = 0; i < items; i += c.L)
                    store(to + (c.nby + b) * items + i, load(state.z + b * state.jump + i));
            const ptrdiff_t end = q.segment_end(s, p.segment);
            if (run_steps(c, w, q, state, own, members, mine, s, end, {nullptr, keep_nothing}, true)) return true;
            s = end;
        }
    } else {
        const kept_parts parts = p.keep == LEM_KEEP_STORE ? keep_gates : p.keep == LEM_KEEP_RECOMPUTE ? keep_z : keep_nothing;
        const kept<T> all = {reinterpret_cast<T*>(saved), parts};
        if (run_steps(c, w, q, state, own, members, mine, 0, q.steps, {all.step(c, plan.before[g]), parts}, true)) return true;
    }
    if (members.leads()) {
        write_rows(c.dy, q, state.y, state.jump, p.y_n);
        write_rows(c.dz, q, state.z, state.jump, p.z_n);
        for (ptrdiff_t r = 0; r < q.n; ++r)
            for (ptrdiff_t t = q.length[r]; t < p.steps; ++t) {
                T* const past = static_cast<T*>(p.out) + (t * c.B + q.row[r]) * c.dy;
                for (ptrdiff_t k = 0; k < c.dy; ++k) past[k] = T(0);
            }
    }
    members.meet();
    return false;
}

template <class T> void forward_all(const lem_problem& p, const lem_plan& plan, char* saved, char* memory) {
    const call<T> c(p);
    arena shared{memory};
    const weights<T> w(c, shared);
    int64_t* const met = shared.take<int64_t>(plan.threads * team::line);
    const ptrdiff_t pairs = (c.nbz + 1) / 2, slots = plan.threads / plan.team;
    parallel(plan.running, [&](ptrdiff_t t, ptrdiff_t count) {
        for (ptrdiff_t pair = t; pair < pairs; pair += count) pack_pair(c, w, pair);
        for (ptrdiff_t i = t; i < plan.threads; i += count) met[i * team::line] = met[i * team::line + 1] = 0;
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
        for (ptrdiff_t g = slot; g < plan.groups; g += slots)
            if (forward_group(c, plan, w, work, own, members, g, saved)) return;
    });
}

}  // namespace

// Backward: the adjoint of forward.h, through time in chunks of about `chunk_rows` row-steps. Two products a step carry the
// gradient back; the weights' gradients are one large product per chunk, while everything is still in cache.
// A team divides the hidden units, as forward, and the rows of the inputs' gradient. No two members add to the same sum,
// so nothing depends on the size of the team.
#pragma once
#include "forward.h"

namespace {

template <class T> struct back_weights {
    T *z, *y, *u, *zeros;
    back_weights(const call<T>& c, arena& a)
        : z(a.take<T>(c.d * c.padded())), y(a.take<T>(c.nv * c.d * c.padded())),
          u(c.p.grad_u ? a.take<T>((c.nv + 1) * c.d * c.mb * c.L) : nullptr), zeros(a.take<T>(3 * c.L)) {}
};

// The weights' gradients of one team, in packed order; k runs over d units, then over m inputs and a one (the bias).
template <class T> struct totals {
    ptrdiff_t kd, ku;
    T *gates, *value;
    totals(const call<T>& c, arena& a)
        : kd(up(c.d, outer_rows<T>())), ku(up(c.m + 1, outer_rows<T>())), gates(a.take<T>((kd + ku) * c.nv * c.padded())),
          value(a.take<T>((kd + ku) * c.padded())) {}
};

template <class T> struct backward_work {  // of one team
    ptrdiff_t rows;      // of a chunk, at most
    ptrdiff_t jump;      // between the blocks of a chunk's panels
    ptrdiff_t *before, *chunks, *segments;
    states<T> state;     // here y and z hold the running gradients
    T *y, *masked, *z, *u;       // previous y (masked where it entered the products), z, and [u, 1] of the chunk
    T *gates;                    // gate values, where computed again
    T *grads;                    // gA, gB, gC, gD: nv + 1 panels
    T *y_0, *z_0;                // the state before the first step of the group or segment, jump n * L
    totals<T> total;
    states<T> again;             // for running a segment again
    T* segment;
    backward_work(const call<T>& c, const lem_plan& plan, arena& a)
        : rows(most_rows(plan)), jump((rows | 1) * c.L), before(a.take<ptrdiff_t>(c.p.steps + 1)),
          chunks(a.take<ptrdiff_t>(c.p.steps + 2)), segments(a.take<ptrdiff_t>(c.p.steps + 1)),
          state(c, a, largest_group(plan)), y(a.take<T>(c.nb * jump)), masked(c.p.mask ? a.take<T>(c.nb * jump) : y),
          z(a.take<T>(c.nb * jump)), u(a.take<T>((c.mb + 1) * jump)),
          gates(c.p.keep == LEM_KEEP_STATES ? a.take<T>(4 * c.nb * jump) : nullptr),
          grads(a.take<T>((c.nv + 1) * c.nb * jump)), y_0(a.take<T>(largest_group(plan) * c.padded())),
          z_0(a.take<T>(largest_group(plan) * c.padded())), total(c, a),
          again(c, a, c.p.keep == LEM_KEEP_SEGMENTS ? largest_group(plan) : 0),
          segment(c.p.keep == LEM_KEEP_SEGMENTS ? a.take<T>(segment_row_steps(c, plan) * 6 * c.padded()) : nullptr) {}
    static ptrdiff_t most_rows(const lem_plan& plan) { return larger(chunk_rows, largest_group(plan)); }
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
    scratch<T>& own;
    team& members;               // share the products of a chunk
    team& stepping;              // share the steps: the same, or the leader alone
    const range blocks;          // this member's unit blocks in the products of a chunk
    const range step_blocks;     // and in the steps; empty where the leader steps alone
    static constexpr ptrdiff_t L = simd<T>::lanes;

    bool steps() const { return step_blocks.first < step_blocks.last; }
    T* grad(ptrdiff_t which) const { return work.grads + which * c.nb * work.jump; }

    // gB and gD of a step from the gradient that reaches y, to which `acc` is still to be added for the first `acc_rows`
    // rows; what passes by the step stays in the running gradient.
    void into_y(const step_view<T>& v, ptrdiff_t b, const T* acc, ptrdiff_t acc_jump, ptrdiff_t acc_rows) const {
        const ptrdiff_t live = c.live(b), here = b * work.jump + v.at * L, running_at = b * work.state.jump;
        T *const gB = c.gated ? grad(1) + here : nullptr, *const gD = grad(c.nv) + here;
        const T *y = work.y + here, *td = v.g.td + b * v.g.jump, *s2 = v.g.s2 + b * v.g.jump;
        for (ptrdiff_t r = 0; r < v.n; ++r) {
            const vec<T> t = load(td + r * L);
            vec<T> gy = load(work.state.y + running_at + r * L);
            if (r < acc_rows) gy += load(acc + r * acc_jump);
            if (const T* const given = own.grad_out[r]) gy += load_row(given + b * L, live);
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
    // Before it is added, not while: fused into one operation in one place and not in another, the last bit would depend on
    // where a chunk ends.
    void mask_sum(ptrdiff_t b, T* acc, ptrdiff_t acc_jump, ptrdiff_t rows) const {
        if (const T* const mask = work.state.mask)
            for (ptrdiff_t r = 0; r < rows; ++r)
                store(acc + r * acc_jump, load(acc + r * acc_jump) * load(mask + b * work.state.jump + r * L));
    }
    // Where the gradients of the outputs of step s are; null where there are none.
    void find_grad_out(const group& q, ptrdiff_t s) const {
        const lem_problem& p = c.p;
        const T* const from = static_cast<const T*>(p.grad_out);
        for (ptrdiff_t r = 0; r < q.active(s); ++r)
            own.grad_out[r] = from ? from + q.time(p, r, s) * p.grad_out_time + q.row[r] * p.grad_out_row : nullptr;
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
        const ptrdiff_t first = step_blocks.first, last = step_blocks.last;
        const span<T> from_d = {grad(c.nv) + v.at * L, c.d, work.jump};
        pair_products(first, last, &from_d, 1, c.d, back.z, back.zeros, 0, own.acc, v.n,
                      [&](ptrdiff_t b, const T* acc, ptrdiff_t jump) { into_z(v, b, acc, jump); });
        stepping.meet();
        span<T> from_gates[3];
        for (ptrdiff_t i = 0; i < c.nv; ++i) from_gates[i] = {grad(i) + v.at * L, c.d, work.jump};
        if (earlier) find_grad_out(q, s - 1);
        const auto end = [&](ptrdiff_t b, T* acc, ptrdiff_t jump) {
            mask_sum(b, acc, jump, v.n);
            if (earlier) return into_y(*earlier, b, acc, jump, v.n);
            T* const running = work.state.y + b * work.state.jump;
            for (ptrdiff_t r = 0; r < v.n; ++r) store(running + r * L, load(running + r * L) + load(acc + r * jump));
        };
        pair_products(first, last, from_gates, c.nv, c.nv * c.d, back.y, back.zeros, 0, own.acc, v.n, end);
        stepping.meet();
    }

    // Gather what the chunk's products need of step s into panels over all its row-steps; `part` of the blocks.
    void gather(const group& q, ptrdiff_t s, ptrdiff_t first, const kept<T>& source, ptrdiff_t origin, range part) const {
        const lem_problem& p = c.p;
        const ptrdiff_t n = q.active(s), at = (q.before[s] - q.before[first]) * L;
        const T* const z = source.at(c, q.before[s] - q.before[origin], n, 0);
        const ptrdiff_t n_before = s > origin ? q.active(s - 1) : q.n;
        const T* y_before = work.y_0;  // a panel of n_before rows; null: rows of the outputs
        if (s > origin)
            y_before = source.parts == 6 ? source.at(c, q.before[s - 1] - q.before[origin], n_before, 5) : nullptr;
        for (ptrdiff_t b = part.first; b < part.last; ++b)
            for (ptrdiff_t r = 0; r < n; ++r) store(work.z + b * work.jump + at + r * L, load(z + (b * n + r) * L));
        const ptrdiff_t end = part.last * L < c.d ? part.last * L : c.d;  // of the units
        for (ptrdiff_t r = 0; r < n; ++r) {
            const ptrdiff_t t = q.time(p, r, s), row = q.row[r];
            T *const y = work.y + at + r * L, *const u = work.u + at + r * L;
            if (y_before)
                for (ptrdiff_t b = part.first; b < part.last; ++b)
                    store(y + b * work.jump, load(y_before + (b * n_before + r) * L));
            else
                to_panel(static_cast<const T*>(p.out) + ((p.reverse ? t + 1 : t - 1) * c.B + row) * c.d + part.first * L,
                         end - part.first * L, y + part.first * work.jump, work.jump);
            if (work.state.mask)
                for (ptrdiff_t b = part.first; b < part.last; ++b)
                    store(work.masked + at + b * work.jump + r * L,
                          load(y + b * work.jump) * load(work.state.mask + b * work.state.jump + r * L));
            if (!members.leads()) continue;
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
        for (ptrdiff_t b = blocks.first; b < blocks.last; b += 2)
            if (c.nb - b < 2) outer_panel<1>(rows, g + b * work.jump, work.jump, state, total + b * k * L);
            else outer_panel<2>(rows, g + b * work.jump, work.jump, state, total + b * k * L);
    }
    void weight_gradients(ptrdiff_t rows) const {
        const ptrdiff_t k = work.total.kd + work.total.ku;
        if (c.gated)
            for (ptrdiff_t b = blocks.first; b < blocks.last; ++b)
                outer_panel<3>(rows, grad(0) + b * work.jump, c.nb * work.jump, work.masked, work.total.gates + b * k * 3 * L);
        else
            outer_pairs(rows, grad(0), work.masked, work.total.gates);
        outer_pairs(rows, grad(c.nv), work.z, work.total.value);
    }

    // The inputs' gradient of a chunk; members divide its steps.
    void input_gradient(const group& q, ptrdiff_t first, ptrdiff_t last) const {
        const lem_problem& p = c.p;
        const ptrdiff_t begin = first + (last - first) * members.member / members.size;
        const ptrdiff_t stop = first + (last - first) * (members.member + 1) / members.size;
        const ptrdiff_t rows = q.before[stop] - q.before[begin], shift = (q.before[begin] - q.before[first]) * L;
        if (rows == 0) return;
        span<T> from[4];
        for (ptrdiff_t i = 0; i <= c.nv; ++i) from[i] = {grad(i) + shift, c.d, work.jump};
        const auto end = [&](ptrdiff_t b, const T* acc, ptrdiff_t jump) {
            const ptrdiff_t k = b * L, live = c.m - k < L ? c.m - k : L;
            for (ptrdiff_t s = begin; s < stop; ++s)
                for (ptrdiff_t r = 0; r < q.active(s); ++r, acc += jump)
                    store_row(static_cast<T*>(p.grad_u) + (q.time(p, r, s) * c.B + q.row[r]) * c.m + k, load(acc), live);
        };
        pair_products(0, c.mb, from, c.nv + 1, (c.nv + 1) * c.d, back.u, back.zeros, 0, own.acc, rows, end);
    }

    // Steps [first, last), whose kept values begin at step `origin` (the group's first, or the segment's).
    void chunk(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        const ptrdiff_t rows = q.before[last] - q.before[first], part = c.nb * work.jump;
        if (source.parts < 5) {  // all steps of the chunk at once: their states are known
            for (ptrdiff_t s = first; s < last; ++s) gather(q, s, first, source, origin, blocks);
            members.meet();
            const gate_values<T> g = {work.gates, work.gates + part, work.gates + 2 * part, work.gates + 3 * part, work.jump};
            const span<T> from_y[2] = {{work.masked, c.d, work.jump}, {work.u, c.m, work.jump}};
            const span<T> from_z[2] = {{work.z, c.d, work.jump}, {work.u, c.m, work.jump}};
            gates_phase<T>(c, w, blocks, from_y, rows, own.acc, {c, g, nullptr, nullptr, 0});
            value_phase<T>(c, w, blocks, from_z, rows, own.acc, {c, g, nullptr, nullptr, nullptr});
            if (stepping.size < members.size) members.meet();  // the leader reads all blocks
        }
        if (steps()) back_through(q, first, last, source, origin);
        members.meet();
        weight_gradients(rows);
        if (c.p.grad_u) input_gradient(q, first, last);
        members.meet();
    }
    void back_through(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        const bool gathers = source.parts >= 5;
        if (gathers) gather(q, last - 1, first, source, origin, step_blocks);
        step_view<T> now = view(q, last - 1, first, source, origin);
        find_grad_out(q, last - 1);
        for (ptrdiff_t b = step_blocks.first; b < step_blocks.last; ++b) into_y(now, b, nullptr, 0, 0);
        stepping.meet();
        for (ptrdiff_t s = last - 1; s >= first; --s) {
            if (s > first) {
                if (gathers) gather(q, s - 1, first, source, origin, step_blocks);
                const step_view<T> earlier = view(q, s - 1, first, source, origin);
                step(q, s, now, &earlier);
                now = earlier;
            } else {
                step(q, s, now, nullptr);
            }
        }
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
        const group q(plan, g, work.before, members.leads());
        states<T>& state = work.state;
        char* const kept_bytes = const_cast<char*>(saved);  // read only; `kept` serves both directions
        if (members.leads()) {
            set_mask(c, q, state);
            for (ptrdiff_t i = 0; i < c.nb * state.jump; i += L) store(state.y + i, vec<T>{}), store(state.z + i, vec<T>{});
            if (p.grad_y_n) read_rows(c, q, p.grad_y_n, state.y, state.jump);
            if (p.grad_z_n) read_rows(c, q, p.grad_z_n, state.z, state.jump);
        }
        if (p.keep == LEM_KEEP_SEGMENTS) {
            if (members.leads()) set_mask(c, q, work.again);
            members.meet();
            segments(q, g, kept_bytes);
        } else {
            if (members.leads()) {
                read_rows(c, q, p.y_0, work.y_0, q.n * L);
                read_rows(c, q, p.z_0, work.z_0, q.n * L);
            }
            members.meet();
            const ptrdiff_t parts = p.keep == LEM_KEEP_GATES ? 5 : 1;
            T* const base = reinterpret_cast<T*>(kept_bytes) + plan.before[g] * parts * c.padded();
            chunks(q, 0, q.steps, {base, parts}, 0);
        }
        if (members.leads()) {
            write_rows(c, q, state.y, state.jump, p.grad_y_0);
            write_rows(c, q, state.z, state.jump, p.grad_z_0);
            if (p.grad_u)
                for (ptrdiff_t r = 0; r < q.n; ++r)
                    for (ptrdiff_t t = q.length[r]; t < p.steps; ++t) {
                        T* const past = static_cast<T*>(p.grad_u) + (t * c.B + q.row[r]) * c.m;
                        for (ptrdiff_t k = 0; k < c.m; ++k) past[k] = T(0);
                    }
        }
        members.meet();
    }

    // From the last segment to the first: run it again from its kept state, then go back through it.
    void segments(const group& q, ptrdiff_t g, char* saved) const {
        ptrdiff_t count = 0;
        for (ptrdiff_t s = 0; s < q.steps; s = q.segment_end(s, c.p.segment)) ++count;
        states<T>& again = work.again;
        if (members.leads()) {
            ptrdiff_t i = 0;
            for (ptrdiff_t s = 0; s < q.steps; s = q.segment_end(s, c.p.segment)) work.segments[i++] = s;
            work.segments[i] = q.steps;
        }
        while (count-- > 0) {
            const T* const from = segment_states(c, plan, saved, count, g);
            const ptrdiff_t items = q.n * c.padded();
            if (members.leads()) {
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
            }
            members.meet();
            const ptrdiff_t first = work.segments[count], last = work.segments[count + 1];
            const kept<T> source = {work.segment, 6};
            if (steps()) run_steps(c, w, q, again, own, stepping, step_blocks, first, last, source, false);
            chunks(q, first, last, source, first);
        }
    }

    void chunks(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        ptrdiff_t count = 0;
        if (members.leads()) {
            for (ptrdiff_t s = first; s < last; s = q.chunk_end(s)) work.chunks[1 + count++] = s;
            work.chunks[1 + count] = last;
            work.chunks[0] = count;
        }
        members.meet();
        count = work.chunks[0];
        while (count-- > 0) chunk(q, work.chunks[1 + count], work.chunks[2 + count], source, origin);
    }
};

// Add the teams' totals and write unit block `b` of one map's gradient; k runs as in `totals`.
template <class T>
void unpack(const call<T>& c, const totals<T>& shape, const T* first, ptrdiff_t team_jump, ptrdiff_t teams,
            ptrdiff_t nv, ptrdiff_t live, T* grad_w, T* grad_u, T* grad_bias) {
    const auto sum = [&](ptrdiff_t k, ptrdiff_t lane) {
        T s = T(0);
        for (ptrdiff_t t = 0; t < teams; ++t)
            s += reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + t * team_jump)[k * nv * c.L + lane];
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
    int64_t* const met = shared.take<int64_t>(plan.threads * team::line);
    const ptrdiff_t pairs = (c.nb + 1) / 2, slots = plan.threads / plan.team;
    parallel(plan.threads, [&](ptrdiff_t t, ptrdiff_t count) {
        if (p.keep != LEM_KEEP_GATES)
            for (ptrdiff_t pair = t; pair < pairs; pair += count) pack_pair(c, w, pair);
        for (ptrdiff_t i = t; i < plan.threads; i += count) met[i * team::line] = 0;
        if (t == 0) {
            pack_columns(static_cast<const T*>(p.weight_z), c.d, c.d, back.z);
            for (ptrdiff_t i = 0; i < 3 * c.L; ++i) back.zeros[i] = T(0);
            if (p.grad_u) pack_columns(static_cast<const T*>(p.weight_u), (c.nv + 1) * c.d, c.m, back.u);
        }
        if (t == count - 1) pack_columns(static_cast<const T*>(p.weight_y), c.nv * c.d, c.d, back.y);
    });
    arena one{nullptr}, two{nullptr};
    backward_work<T>(c, plan, one);
    scratch<T>(c, plan, two, backward_work<T>::most_rows(plan));
    const ptrdiff_t start = up(shared.used, 4096), each = up(one.used, 4096), own_each = up(two.used, 4096);
    in_teams(plan, met, [&](ptrdiff_t slot, team& members) {
        arena team_memory{memory + start + slot * each};
        arena own_memory{memory + start + slots * each + (slot * plan.team + members.member) * own_each};
        backward_work<T> work(c, plan, team_memory);
        scratch<T> own(c, plan, own_memory, backward_work<T>::most_rows(plan));
        const range blocks = c.blocks(members);
        const ptrdiff_t k = work.total.kd + work.total.ku, from = blocks.first * k * c.L, to = blocks.last * k * c.L;
        for (ptrdiff_t i = from * c.nv; i < to * c.nv; ++i) work.total.gates[i] = T(0);
        for (ptrdiff_t i = from; i < to; ++i) work.total.value[i] = T(0);
        team alone;
        const range all = {0, members.leads() ? c.nb : 0};
        const backward_pass<T> pass = {c, plan, w, back, work, own, members, plan.share_steps ? members : alone,
                                       blocks, plan.share_steps ? blocks : all};
        for (ptrdiff_t g = slot; g < plan.groups; g += slots) pass.run(g, saved);
    });
    arena first{memory + start};
    const backward_work<T> work(c, plan, first);
    const totals<T>& total = work.total;
    T *gu = static_cast<T*>(p.grad_weight_u), *gy = static_cast<T*>(p.grad_weight_y), *gz = static_cast<T*>(p.grad_weight_z);
    T* const gb = static_cast<T*>(p.grad_bias);
    parallel(plan.threads, [&](ptrdiff_t t, ptrdiff_t count) {
        const ptrdiff_t k = total.kd + total.ku, d = c.d, L = c.L;
        const auto write = [&](const T* from, ptrdiff_t nv, ptrdiff_t b, ptrdiff_t map, T* grad_w) {
            const ptrdiff_t unit = b * L, row = map * d + unit;
            unpack(c, total, from, each, slots, nv, c.live(b), grad_w + unit * d, gu + row * c.m, gb ? gb + row : nullptr);
        };
        for (ptrdiff_t b = t; b < c.nb; b += count) {
            const ptrdiff_t pair = b / 2 * 2, nv = c.nb - pair < 2 ? 1 : 2, paired = pair * k * L + (b - pair) * L;
            if (c.gated)
                for (ptrdiff_t i = 0; i < 3; ++i) write(total.gates + (b * k * 3 + i) * L, 3, b, i, gy + i * d * d);
            else
                write(total.gates + paired, nv, b, 0, gy);
            write(total.value + paired, nv, b, c.nv, gz);
        }
    });
}

}  // namespace

// Backward: the adjoint of forward.h, through time in chunks of about `chunk_rows` row-steps. Two products a step carry the
// gradient back; the weights' gradients are one large product per chunk, while everything is still in cache.
// A team divides the hidden units, as forward, and the rows of the inputs' gradient. No two members add to the same sum,
// so nothing depends on the size of the team. The file is long because all of this is one pass over one chunk of a call.
#pragma once
#include "backward_work.h"

namespace {

// What the backward pass of one step reads: the step's gates, z before it, and where its rows lie in the chunk.
template <class T> struct step_view {
    ptrdiff_t n, at;
    gate_values<T> g;
    const T* z_before;
    ptrdiff_t z_jump;
};

// The time step of one gate of one row and its derivatives by the affine map and by the elapsed time.
template <class T> struct gate_slope { vec<T> step, by_map, by_elapsed; };

template <class T> struct backward_pass {
    const call<T>& c;
    const lem_plan& plan;
    const weights<T>& w;
    const back_weights<T>& back;
    backward_work<T>& work;
    scratch<T>& own;
    team& members;               // share the products of a chunk
    team& stepping;              // share the steps: the same, or the leader alone
    const bool steps;            // whether this member takes part in the steps
    const shares mine;           // this member's unit blocks in the products of a chunk
    const shares stepped;        // and in the steps
    static constexpr ptrdiff_t L = simd<T>::lanes;

    T* grad(ptrdiff_t which) const { return work.grads + which * c.nbz * work.jump; }

    // `s` and `h` are the sigmoid and, where paced, the time step of row `row` of the chunk.
    gate_slope<T> slope(const T* s, const T* h, ptrdiff_t row) const {
        const T e = own.elapsed ? own.elapsed[row] : T(1);
        if (!c.gated) {
            const vec<T> fixed = splat(own.fixed ? own.fixed[row] : c.dt);
            return {fixed, vec<T>{}, work.e_y ? stretch_slope<T>(splat(c.dt), fixed) : vec<T>{}};
        }
        const vec<T> sigma = load(s), g = c.time_step(sigma);
        if (!h) return {g, c.time_step_slope(sigma), vec<T>{}};
        const vec<T> step = load(h), by_elapsed = work.e_y ? stretch_slope<T>(g, step) : vec<T>{};
        return {step, e == T(1) ? c.time_step_slope(sigma) : c.paced_slope(sigma, step, e), by_elapsed};
    }

    // The same without elapsed times. `into_y` and `into_z` are compiled for such steps too: the tests cost narrow layers 5 %.
    gate_slope<T> plain_slope(const T* s) const {
        if (!c.gated) return {splat(c.dt), vec<T>{}, vec<T>{}};
        const vec<T> sigma = load(s);
        return {c.time_step(sigma), c.time_step_slope(sigma), vec<T>{}};
    }
    bool timed() const { return own.elapsed || own.restart; }

    // gB and gD of a step from the gradient that reaches y, to which `acc` is still to be added for the first `acc_rows`
    // rows; what passes by the step stays in the running gradient.
    template <bool Timed>
    void into_y(const step_view<T>& v, ptrdiff_t b, const T* acc, ptrdiff_t acc_jump, ptrdiff_t acc_rows) const {
        const ptrdiff_t live = c.live(c.dy, b), here = b * work.jump + v.at * L, running_at = b * work.state.jump;
        T *const gB = c.gated ? grad(1) + here : nullptr, *const gD = grad(c.nv()) + here;
        const T *y = work.y + here, *td = v.g.td + b * v.g.jump, *s2 = v.g.s2 + b * v.g.jump;
        const T* const h2 = v.g.h2 ? v.g.h2 + b * v.g.jump : nullptr;
        for (ptrdiff_t r = 0; r < v.n; ++r) {
            const vec<T> t = load(td + r * L);
            vec<T> gy = load(work.state.y + running_at + r * L);
            if (r < acc_rows) gy += load(acc + r * acc_jump);
            if (const T* const given = own.grad_out[r]) gy += load_row(given + b * L, live);
            const gate_slope<T> gate = Timed ? slope(s2 + r * L, h2 ? h2 + r * L : nullptr, v.at + r) : plain_slope(s2 + r * L);
            const vec<T> moved = gy * (t - load(y + r * L));
            if (gB) store(gB + r * L, moved * gate.by_map);
            if (Timed && work.e_y) store(work.e_y + here + r * L, moved * gate.by_elapsed);
            store(gD + r * L, gy * gate.step * (T(1) - t * t));
            store(work.state.y + running_at + r * L, gy * (T(1) - gate.step));
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
    template <bool Timed>
    void into_z(const step_view<T>& v, ptrdiff_t b, const T* acc, ptrdiff_t acc_jump) const {
        const ptrdiff_t here = b * work.jump + v.at * L;
        T *gA = c.gated ? grad(0) + here : nullptr, *gC = grad(c.nv() - 1) + here;
        const T *z = v.z_before + b * v.z_jump, *tc = v.g.tc + b * v.g.jump, *s1 = v.g.s1 + b * v.g.jump;
        const T* const h1 = v.g.h1 ? v.g.h1 + b * v.g.jump : nullptr;
        for (ptrdiff_t r = 0; r < v.n; ++r) {
            T* const running = work.state.z + b * work.state.jump + r * L;
            const bool restart = Timed && own.restart && own.restart[v.at + r];
            const vec<T> gz = load(running) + load(acc + r * acc_jump), t = load(tc + r * L);
            const gate_slope<T> gate = Timed ? slope(s1 + r * L, h1 ? h1 + r * L : nullptr, v.at + r) : plain_slope(s1 + r * L);
            const vec<T> moved = gz * (t - load(restart ? work.state.z_start + b * L : z + r * L));
            if (gA) store(gA + r * L, moved * gate.by_map);
            if (Timed && work.e_z) store(work.e_z + here + r * L, moved * gate.by_elapsed);
            store(gC + r * L, gz * gate.step * (T(1) - t * t));
            store(running, gz * (T(1) - gate.step));
            if (restart) to_start(running, work.from_z + b * work.state.jump + r * L);
        }
    }
    // What reaches the state at a restart goes to the first state and no further.
    void to_start(T* running, T* start) const {
        store(start, load(start) + load(running));
        store(running, vec<T>{});
    }
    void restart_y(const step_view<T>& v, ptrdiff_t b, T* acc, ptrdiff_t acc_jump) const {
        for (ptrdiff_t r = 0; r < v.n; ++r) {
            if (!own.restart[v.at + r]) continue;
            T* const running = work.state.y + b * work.state.jump + r * L;
            store(running, load(running) + load(acc + r * acc_jump));
            store(acc + r * acc_jump, vec<T>{});
            to_start(running, work.from_y + b * work.state.jump + r * L);
        }
    }

    // One step back: gD -> z, then gA, gB, gC -> y of the step before. Returns whether to leave.
    bool step(const group& q, ptrdiff_t s, const step_view<T>& v, const step_view<T>* earlier) const {
        const span<T> from_d = operand(c, {grad(c.nv()) + v.at * L, c.dy, work.jump}, v.n, own.words, own.word_jump);
        call_pairs(c, stepped.z, &from_d, 1, back.z, back.zeros, 0, own.acc, v.n,
                   [&](ptrdiff_t b, const T* acc, ptrdiff_t jump) {
                       timed() ? into_z<true>(v, b, acc, jump) : into_z<false>(v, b, acc, jump);
                   });
        stepping.meet();
        span<T> from_gates[3];
        for (ptrdiff_t i = 0; i < c.nv(); ++i)
            from_gates[i] = operand(c, {grad(i) + v.at * L, i == 1 ? c.dy : c.dz, work.jump}, v.n,
                                    own.words + i * half(c.nbz) * own.word_jump, own.word_jump);
        if (earlier) find_grad_out(q, s - 1);
        const auto end = [&](ptrdiff_t b, T* acc, ptrdiff_t jump) {
            mask_sum(b, acc, jump, v.n);
            if (own.restart) restart_y(v, b, acc, jump);
            if (earlier && timed()) return into_y<true>(*earlier, b, acc, jump, v.n);
            if (earlier) return into_y<false>(*earlier, b, acc, jump, v.n);
            T* const running = work.state.y + b * work.state.jump;
            for (ptrdiff_t r = 0; r < v.n; ++r) store(running + r * L, load(running + r * L) + load(acc + r * jump));
        };
        call_pairs(c, stepped.y, from_gates, c.nv(), back.y, back.zeros, 0, own.acc, v.n, end);
        return stepping.meet_to_leave();
    }

    // Gather what the chunk's products need of step s into panels over all its row-steps; `part` of the blocks.
    void gather(const group& q, ptrdiff_t s, ptrdiff_t first, const kept<T>& source, ptrdiff_t origin, const shares& part) const {
        const lem_problem& p = c.p;
        const ptrdiff_t n = q.active(s), row_at = q.before[s] - q.before[first], at = row_at * L;
        const T* const z = source.z(c, q.before[s] - q.before[origin]);
        const ptrdiff_t n_before = s > origin ? q.active(s - 1) : q.n;
        const T* y_before = work.y_0;  // a panel of n_before rows; null: rows of the outputs
        if (s > origin)
            y_before = source.parts == keep_y ? source.y(c, q.before[s - 1] - q.before[origin], n_before) : nullptr;
        for (ptrdiff_t b = part.z.first; b < part.z.last; ++b)
            for (ptrdiff_t r = 0; r < n; ++r) store(work.z + b * work.jump + at + r * L, load(z + (b * n + r) * L));
        const ptrdiff_t end = part.y.last * L < c.dy ? part.y.last * L : c.dy;  // of the units
        for (ptrdiff_t r = 0; r < n; ++r) {
            const ptrdiff_t t = q.time(p, r, s), row = q.row[r];
            T *const y = work.y + at + r * L, *const u = work.u + at + r * L;
            const bool restart = own.restart && own.restart[row_at + r];
            if (restart || y_before)
                for (ptrdiff_t b = part.y.first; b < part.y.last; ++b)
                    store(y + b * work.jump, load(restart ? work.state.y_start + b * L : y_before + (b * n_before + r) * L));
            else if (part.y.first * L < end)
                to_panel(static_cast<const T*>(p.out) + ((p.reverse ? t + 1 : t - 1) * c.B + row) * c.dy + part.y.first * L,
                         end - part.y.first * L, y + part.y.first * work.jump, work.jump);
            if (work.state.mask)
                for (ptrdiff_t b = part.y.first; b < part.y.last; ++b)
                    store(work.masked + at + b * work.jump + r * L,
                          load(y + b * work.jump) * load(work.state.mask + b * work.state.jump + r * L));
            if (!members.leads()) continue;
            if (c.m % L == 0) store(u + c.mb * work.jump, vec<T>{});
            to_panel(static_cast<const T*>(p.u) + t * p.u_time + row * p.u_row, c.m, u, work.jump);
            u[c.m / L * work.jump + c.m % L] = T(1);
        }
    }

    // The weights' gradients of a chunk.
    template <int NV>
    void outer_panel(const outer_operands<T>& x, const T* g, ptrdiff_t g_jump, const T* state, ptrdiff_t units, T* total) const {
        constexpr ptrdiff_t R = outer_rows<T>();
        for (ptrdiff_t k = 0; k < units; k += R)
            call_outer<T, NV>(c, x.rows, state + k / L * x.jump + k % L, g, g_jump, total + k * NV * L);
        for (ptrdiff_t k = 0; k < work.total.ku; k += R)
            call_outer<T, NV>(c, x.rows, x.u + k / L * x.jump + k % L, g, g_jump, total + (units + k) * NV * L);
    }
    void outer_pairs(const outer_operands<T>& x, range blocks, const T* g, const T* state, ptrdiff_t units, T* total) const {
        const ptrdiff_t k = units + work.total.ku;
        for (ptrdiff_t b = blocks.first; b < blocks.last; b += 2)
            if (blocks.last - b < 2) outer_panel<1>(x, g + b * x.jump, x.jump, state, units, total + b * k * L);
            else outer_panel<2>(x, g + b * x.jump, x.jump, state, units, total + b * k * L);
    }
    outer_operands<T> weave(ptrdiff_t rows) const {
        if (!c.paired) return {rows, work.jump, work.masked, work.z, work.u, work.grads};
        const ptrdiff_t jump = work.woven_jump, panel = c.nbz * jump;
        weave_rows(work.masked, work.jump, mine.y, rows, work.y_woven, jump);
        weave_rows(work.z, work.jump, mine.z, rows, work.z_woven, jump);
        if (members.leads()) weave_rows(work.u, work.jump, {0, c.mb + 1}, rows, work.u_woven, jump);
        for (ptrdiff_t i = 0; i <= c.nv(); ++i)
            weave_rows(grad(i), work.jump, i == c.nv() || (c.gated && i == 1) ? mine.y : mine.z, rows, work.grads_woven + i * panel, jump);
        members.meet();
        return {half(rows), jump, work.y_woven, work.z_woven, work.u_woven, work.grads_woven};
    }
    void weight_gradients(ptrdiff_t rows) const {
        const totals<T>& total = work.total;
        const outer_operands<T> x = weave(rows);
        const ptrdiff_t panel = c.nbz * x.jump;
        for (ptrdiff_t b = mine.z.first; c.gated && b < mine.z.last; ++b) {
            const T* const g = x.grads + b * x.jump;
            if (b < c.nby) outer_panel<3>(x, g, panel, x.y, total.ky, total.of_gates(c, b));
            else outer_panel<2>(x, g, 2 * panel, x.y, total.ky, total.of_gates(c, b));
        }
        if (!c.gated) outer_pairs(x, mine.z, x.grads, x.y, total.ky, total.gates);
        outer_pairs(x, mine.y, x.grads + c.nv() * panel, x.z, total.kz, total.value);
    }

    // The gradient of the elapsed times of a chunk: the sum over the units, in the same order whatever the team.
    void elapsed_gradient(const group& q, ptrdiff_t first, ptrdiff_t last) const {
        T* const to = static_cast<T*>(c.p.grad_elapsed);
        for (ptrdiff_t s = first; s < last; ++s)
            for (ptrdiff_t r = 0; r < q.active(s); ++r) {
                const ptrdiff_t at = (q.before[s] - q.before[first] + r) * L, item = q.elapsed(c.p, r, s);
                if (item < 0) continue;
                vec<T> sum = {};
                for (ptrdiff_t b = 0; b < c.nby; ++b) sum += load(work.e_y + b * work.jump + at);
                for (ptrdiff_t b = 0; b < c.nbz; ++b) sum += load(work.e_z + b * work.jump + at);
                T total = T(0);
                for (ptrdiff_t i = 0; i < L; ++i) total += sum[i];
                to[item] = total;
            }
    }

    // The inputs' gradient of a chunk; members divide its steps.
    void input_gradient(const group& q, ptrdiff_t first, ptrdiff_t last) const {
        const lem_problem& p = c.p;
        const ptrdiff_t begin = first + (last - first) * members.member / members.size;
        const ptrdiff_t stop = first + (last - first) * (members.member + 1) / members.size;
        const ptrdiff_t rows = q.before[stop] - q.before[begin], shift = (q.before[begin] - q.before[first]) * L;
        if (rows == 0) return;
        span<T> from[4];
        for (ptrdiff_t i = 0; i <= c.nv(); ++i)
            from[i] = operand(c, {grad(i) + shift, i % 2 ? c.dy : c.dz, work.jump}, rows, own.words + i * half(c.nbz) * own.word_jump,
                              own.word_jump);
        const auto end = [&](ptrdiff_t b, const T* acc, ptrdiff_t jump) {
            const ptrdiff_t k = b * L, live = c.m - k < L ? c.m - k : L;
            for (ptrdiff_t s = begin; s < stop; ++s)
                for (ptrdiff_t r = 0; r < q.active(s); ++r, acc += jump)
                    store_row(static_cast<T*>(p.grad_u) + (q.time(p, r, s) * c.B + q.row[r]) * c.m + k, load(acc), live);
        };
        call_pairs(c, {0, c.mb}, from, c.nv() + 1, back.u, back.zeros, 0, own.acc, rows, end);
    }

    // Steps [first, last), whose kept values begin at step `origin` (the group's first, or the segment's). Returns whether to
    // leave, as do those that call it.
    bool chunk(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        const ptrdiff_t rows = q.before[last] - q.before[first];
        if (own.elapsed || own.restart)
            for (ptrdiff_t s = first; s < last; ++s) own.read_step(c, q, s, q.before[s] - q.before[first]);
        if (source.parts < keep_gates) {  // all steps of the chunk at once: their states are known
            for (ptrdiff_t s = first; s < last; ++s) gather(q, s, first, source, origin, mine);
            members.meet();
            const gate_values<T> g(c, work.gates, work.jump);
            const span<T> from_u = operand(c, {work.u, c.m, work.jump}, rows, own.u_words, own.word_jump);
            const span<T> from_y[2] = {operand(c, {work.masked, c.dy, work.jump}, rows, own.words, own.word_jump), from_u};
            gates_phase<T>(c, w, mine.z, from_y, rows, own.acc, {c, g, own, nullptr, nullptr, 0});
            const span<T> from_z[2] = {operand(c, {work.z, c.dz, work.jump}, rows, own.words, own.word_jump), from_u};
            value_phase<T>(c, w, mine.y, from_z, rows, own.acc, {c, g, own, nullptr, nullptr});
            // Steps read what other members have computed: the leader alone all of it, others the gates of y.
            if (stepping.size < members.size || c.dy != c.dz) members.meet();
        }
        if (steps) back_through(q, first, last, source, origin);
        if (members.meet_to_leave()) return true;
        weight_gradients(rows);
        if (c.p.grad_u) input_gradient(q, first, last);
        if (c.p.grad_elapsed && members.leads()) elapsed_gradient(q, first, last);
        return members.meet_to_leave();
    }
    // Ask for what step s will read. (The input is small beside it.)
    __attribute__((always_inline)) void fetch_step(const group& q, ptrdiff_t s, const kept<T>& source, ptrdiff_t origin) const {
        const lem_problem& p = c.p;
        const ptrdiff_t at = q.before[s] - q.before[origin], n = q.active(s);
        fetch<0>(source.step(c, at), source.step(c, at + n) - source.step(c, at));
        for (ptrdiff_t r = 0; r < n; ++r) {
            const ptrdiff_t t = q.time(p, r, s), row = q.row[r];
            fetch<0>(static_cast<const T*>(p.out) + ((p.reverse ? t + 1 : t - 1) * c.B + row) * c.dy, c.dy);
            if (p.grad_out)
                fetch<0>(static_cast<const T*>(p.grad_out) + t * p.grad_out_time + row * p.grad_out_row, c.dy);
        }
    }
    void back_through(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        const bool gathers = source.parts >= keep_gates;
        const ptrdiff_t ahead = gathers && stepping.size == 1 ? source.ahead(c, q.n) : 0;
        if (gathers) gather(q, last - 1, first, source, origin, stepped);
        step_view<T> now = view(q, last - 1, first, source, origin);
        find_grad_out(q, last - 1);
        for (ptrdiff_t b = stepped.y.first; b < stepped.y.last; ++b)
            timed() ? into_y<true>(now, b, nullptr, 0, 0) : into_y<false>(now, b, nullptr, 0, 0);
        stepping.meet();
        for (ptrdiff_t s = last - 1; s >= first; --s) {
            if (ahead && s - 1 - ahead > origin) fetch_step(q, s - 1 - ahead, source, origin);
            if (s > first) {
                if (gathers) gather(q, s - 1, first, source, origin, stepped);
                const step_view<T> earlier = view(q, s - 1, first, source, origin);
                if (step(q, s, now, &earlier)) return;
                now = earlier;
            } else {
                step(q, s, now, nullptr);
            }
        }
    }

    step_view<T> view(const group& q, ptrdiff_t s, ptrdiff_t first, const kept<T>& source, ptrdiff_t origin) const {
        const ptrdiff_t n = q.active(s), at = q.before[s] - q.before[first], kept_at = q.before[s] - q.before[origin];
        const ptrdiff_t n_before = s > origin ? q.active(s - 1) : q.n;
        const T* const z_before = s > origin ? source.z(c, q.before[s - 1] - q.before[origin]) : work.z_0;
        const bool again = source.parts < keep_gates;
        const gate_values<T> chunk_wide(c, again ? work.gates : source.gates(c, kept_at, n), again ? work.jump : n * L);
        step_view<T> v = {n, at, chunk_wide, z_before, n_before * L};
        if (again) v.g.skip(at * L);
        return v;
    }

    bool run(ptrdiff_t g, const char* saved) const {
        const lem_problem& p = c.p;
        const group q(plan, g, work.before, members.leads());
        states<T>& state = work.state;
        char* const kept_bytes = const_cast<char*>(saved);  // read only; `kept` serves both directions
        if (members.leads()) {
            set_fixed(c, q, state);
            for (ptrdiff_t i = 0; i < c.nby * state.jump; i += L) store(state.y + i, vec<T>{});
            for (ptrdiff_t i = 0; i < c.nbz * state.jump; i += L) store(state.z + i, vec<T>{});
            for (ptrdiff_t i = 0; p.resets && i < c.nby * state.jump; i += L) store(work.from_y + i, vec<T>{});
            for (ptrdiff_t i = 0; p.resets && i < c.nbz * state.jump; i += L) store(work.from_z + i, vec<T>{});
            if (p.grad_y_n) read_rows(c.dy, q, p.grad_y_n, state.y, state.jump);
            if (p.grad_z_n) read_rows(c.dz, q, p.grad_z_n, state.z, state.jump);
        }
        if (p.keep == LEM_KEEP_BOUNDED) {
            if (members.leads()) set_fixed(c, q, work.again);
            members.meet();
            if (segments(q, g, kept_bytes)) return true;
        } else {
            if (members.leads()) {
                read_rows(c.dy, q, p.y_0, work.y_0, q.n * L);
                read_rows(c.dz, q, p.z_0, work.z_0, q.n * L);
            }
            members.meet();
            const kept<T> all = {reinterpret_cast<T*>(kept_bytes), p.keep == LEM_KEEP_STORE ? keep_gates : keep_z};
            if (chunks(q, 0, q.steps, {all.step(c, plan.before[g]), all.parts}, 0)) return true;
        }
        if (members.leads()) {
            write_rows(c.dy, q, state.y, state.jump, p.grad_y_0);
            write_rows(c.dz, q, state.z, state.jump, p.grad_z_0);
            if (p.resets) write_rows(c.dy, q, work.from_y, state.jump, p.grad_y_start);
            if (p.resets) write_rows(c.dz, q, work.from_z, state.jump, p.grad_z_start);
            if (p.grad_u)
                for (ptrdiff_t r = 0; r < q.n; ++r)
                    for (ptrdiff_t t = q.length[r]; t < p.steps; ++t) {
                        T* const past = static_cast<T*>(p.grad_u) + (t * c.B + q.row[r]) * c.m;
                        for (ptrdiff_t k = 0; k < c.m; ++k) past[k] = T(0);
                    }
        }
        members.meet();
        return false;
    }

    // From the last segment to the first: run it again from its kept state, then go back through it.
    bool segments(const group& q, ptrdiff_t g, char* saved) const {
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
            if (members.leads()) {
                from_segment(q, from, c.nby, work.y_0, again.y);
                from_segment(q, from + q.n * c.padded_y(), c.nbz, work.z_0, again.z);
                apply_mask(c, again);
            }
            members.meet();
            const ptrdiff_t first = work.segments[count], last = work.segments[count + 1];
            const kept<T> source = {work.segment, keep_y};
            if (steps) run_steps(c, w, q, again, own, stepping, stepped, first, last, source, false);
            if (chunks(q, first, last, source, first)) return true;
        }
        return false;
    }

    void from_segment(const group& q, const T* from, ptrdiff_t blocks, T* before, T* state) const {
        for (ptrdiff_t b = 0; b < blocks; ++b)
            for (ptrdiff_t i = 0; i < q.n * L; i += L) {
                const vec<T> value = load(from + b * q.n * L + i);
                store(before + b * q.n * L + i, value);
                store(state + b * work.again.jump + i, value);
            }
    }

    bool chunks(const group& q, ptrdiff_t first, ptrdiff_t last, const kept<T>& source, ptrdiff_t origin) const {
        ptrdiff_t count = 0;
        if (members.leads()) {
            for (ptrdiff_t s = first; s < last; s = q.chunk_end(s)) work.chunks[1 + count++] = s;
            work.chunks[1 + count] = last;
            work.chunks[0] = count;
        }
        members.meet();
        count = work.chunks[0];
        while (count-- > 0)
            if (chunk(q, work.chunks[1 + count], work.chunks[2 + count], source, origin)) return true;
        return false;
    }
};

template <class T> void backward_all(const lem_problem& p, const lem_plan& plan, const char* saved, char* memory) {
    const call<T> c(p);
    arena shared{memory};
    const weights<T> w(c, shared);
    const back_weights<T> back(c, shared);
    int64_t* const met = shared.take<int64_t>(plan.threads * team::line);
    const ptrdiff_t pairs = (c.nbz + 1) / 2, slots = plan.threads / plan.team;
    const ptrdiff_t parts[4] = {c.dz, c.dy, c.gated ? c.dz : 0, c.dy};  // rows of the maps; two of them where not gated
    parallel(plan.running, [&](ptrdiff_t t, ptrdiff_t count) {
        if (p.keep != LEM_KEEP_STORE)
            for (ptrdiff_t pair = t; pair < pairs; pair += count) pack_pair(c, w, pair);
        for (ptrdiff_t i = t; i < plan.threads; i += count) met[i * team::line] = met[i * team::line + 1] = 0;
        if (t == 0) {
            pack_columns(c, p.weight_z, &c.dy, 1, c.dz, back.z);
            for (ptrdiff_t i = 0; i < 3 * c.L; ++i) back.zeros[i] = T(0);
            if (p.grad_u) pack_columns(c, p.weight_u, parts, c.nv() + 1, c.m, back.u);
        }
        if (t == count - 1) pack_columns(c, p.weight_y, parts, c.nv(), c.dy, back.y);
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
        const shares mine = {c.blocks(members, c.nby), c.blocks(members, c.nbz)};
        for (T* t = work.total.of_gates(c, mine.z.first); t < work.total.of_gates(c, mine.z.last); ++t) *t = T(0);
        for (T* t = work.total.of_value(c, mine.y.first); t < work.total.of_value(c, mine.y.last); ++t) *t = T(0);
        team alone;
        alone.stop = plan.stop;
        const shares all = {{0, c.nby}, {0, c.nbz}};
        const bool steps = plan.share_steps || members.leads();
        const backward_pass<T> pass = {c, plan, w, back, work, own, members, plan.share_steps ? members : alone,
                                       steps, mine, plan.share_steps ? mine : all};
        for (ptrdiff_t g = slot; g < plan.groups; g += slots)
            if (pass.run(g, saved)) return;
    });
    arena first{memory + start};
    const backward_work<T> work(c, plan, first);
    const unpacking<T> unpack = {c, each, slots};
    parallel(plan.running, [&](ptrdiff_t t, ptrdiff_t count) {
        for (ptrdiff_t b = t; b < c.nbz; b += count) unpack.block(work.total, b);
    });
}

}  // namespace

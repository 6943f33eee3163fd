// The oracle: equation (3) and its adjoint, one row after the other, as they are written. Every vector target is tested
// against this file; it is never made faster. It keeps nothing between the calls: backward runs forward again.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>
#include "target.h"

namespace {

bool stopped(const int32_t* stop) { return stop && __atomic_load_n(stop, __ATOMIC_RELAXED); }

template <class T> T sigmoid(T x) { return T(1) / (T(1) + std::exp(-x)); }

// 1 - (1 - g)^e, and its derivatives by g and by e; at g = 1 it is 1 for every e.
template <class T> T stretched(T g, T e) { return e != T(1) && g < T(1) ? -std::expm1(e * std::log1p(-g)) : g; }
template <class T> T stretched_by_gate(T g, T e) {
    return e == T(1) ? T(1) : g < T(1) ? e * std::exp((e - T(1)) * std::log1p(-g)) : T(0);
}
template <class T> T stretched_by_time(T g, T e) {
    return g < T(1) ? -std::log1p(-g) * std::exp(e * std::log1p(-g)) : T(0);
}

// The nearest bfloat16: 8 bits of mantissa, halfway cases to the even one.
float to_bfloat16(float x) {
    if (std::isnan(x)) return x;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

template <class T> struct step_values { std::vector<T> y_before, z_before, s1, s2, tc, td, z; };

template <class T> struct row_run {
    const lem_problem& p;
    const int32_t* stop;
    ptrdiff_t dz = p.hidden, dy = p.outputs ? p.outputs : p.hidden, m = p.inputs, row, length;
    const T *V = static_cast<const T*>(p.weight_u), *W = static_cast<const T*>(p.weight_y);
    const T *Wy = static_cast<const T*>(p.weight_z), *bias = static_cast<const T*>(p.bias);
    T dt = T(p.dt);
    // The rows at which V_2 (and W_2), V_z (and W_z) and V_y begin.
    ptrdiff_t at_2 = dz, at_z = p.gated ? dz + dy : 0, at_y = at_z + dz;

    row_run(const lem_problem& q, const lem_plan& plan, ptrdiff_t r)
        : p(q), stop(plan.stop), row(r), length(q.lengths ? q.lengths[r] : q.steps) {}

    // What a product multiplies.
    T operand(T x) const { return p.bfloat16 ? T(to_bfloat16(float(x))) : x; }
    ptrdiff_t time(ptrdiff_t s) const { return p.reverse ? length - 1 - s : s; }
    const T* input(ptrdiff_t s) const { return static_cast<const T*>(p.u) + time(s) * p.u_time + row * p.u_row; }
    T mask(ptrdiff_t k) const { return p.mask ? static_cast<const T*>(p.mask)[row * dy + k] : T(1); }
    // The observation that tells what lies between step s and the one before it; in reverse, none before the first.
    ptrdiff_t gap(ptrdiff_t s) const { return p.reverse ? (s ? (time(s) + 1) * p.batch + row : -1) : time(s) * p.batch + row; }
    bool restarts(ptrdiff_t s) const { return p.resets && gap(s) >= 0 && p.resets[gap(s)]; }
    bool has_elapsed(ptrdiff_t s) const { return p.elapsed && gap(s) >= 0 && !(p.reverse && restarts(s)); }
    T elapsed(ptrdiff_t s) const { return has_elapsed(s) ? static_cast<const T*>(p.elapsed)[gap(s)] : T(1); }

    // Row `line` of V u + b and of what acts on the state.
    T affine(ptrdiff_t line, const T* w, const std::vector<T>& state, const T* u) const {
        T sum = bias ? bias[line] : T(0);
        for (size_t k = 0; k < state.size(); ++k) sum += operand(w[k]) * operand(state[k]);
        for (ptrdiff_t k = 0; k < m; ++k) sum += operand(V[line * m + k]) * operand(u[k]);
        return sum;
    }
    T gate(T s) const {
        if (!p.gated) return dt;
        const T t = dt * s;
        return p.clipped ? t < T(p.clip_low) ? T(p.clip_low) : t > T(p.clip_high) ? T(p.clip_high) : t : t;
    }
    T gate_slope(T s) const {
        const T t = dt * s;
        return p.clipped && (t < T(p.clip_low) || t > T(p.clip_high)) ? T(0) : t * (T(1) - s);
    }

    step_values<T> step(ptrdiff_t s, std::vector<T>& y, std::vector<T>& z) const {
        if (restarts(s)) {
            for (ptrdiff_t k = 0; k < dy; ++k) y[k] = p.y_start ? static_cast<const T*>(p.y_start)[k] : T(0);
            for (ptrdiff_t k = 0; k < dz; ++k) z[k] = p.z_start ? static_cast<const T*>(p.z_start)[k] : T(0);
        }
        step_values<T> v{y, z, std::vector<T>(dz, T(1)), std::vector<T>(dy, T(1)), std::vector<T>(dz), std::vector<T>(dy), {}};
        const T* const u = input(s);
        const T e = elapsed(s);
        std::vector<T> y_in(dy);
        for (ptrdiff_t k = 0; k < dy; ++k) y_in[k] = y[k] * mask(k);
        for (ptrdiff_t i = 0; p.gated && i < dz; ++i) v.s1[i] = sigmoid(affine(i, W + i * dy, y_in, u));
        for (ptrdiff_t i = 0; p.gated && i < dy; ++i) v.s2[i] = sigmoid(affine(at_2 + i, W + (at_2 + i) * dy, y_in, u));
        for (ptrdiff_t i = 0; i < dz; ++i) v.tc[i] = std::tanh(affine(at_z + i, W + (at_z + i) * dy, y_in, u));
        for (ptrdiff_t i = 0; i < dz; ++i) {
            const T dt_z = stretched(gate(v.s1[i]), e);
            z[i] = (T(1) - dt_z) * z[i] + dt_z * v.tc[i];
        }
        v.z = z;
        for (ptrdiff_t i = 0; i < dy; ++i) {
            const T dt_y = stretched(gate(v.s2[i]), e);
            v.td[i] = std::tanh(affine(at_y + i, Wy + i * dz, z, u));
            y[i] = (T(1) - dt_y) * y[i] + dt_y * v.td[i];
        }
        return v;
    }

    static std::vector<T> read(const void* from, ptrdiff_t index, ptrdiff_t units) {
        const T* const x = static_cast<const T*>(from) + index * units;
        return from ? std::vector<T>(x, x + units) : std::vector<T>(units);
    }
    void write(const std::vector<T>& x, void* to, ptrdiff_t index) const {
        for (size_t k = 0; to && k < x.size(); ++k) static_cast<T*>(to)[index * ptrdiff_t(x.size()) + ptrdiff_t(k)] = x[k];
    }

    void forward() const {
        std::vector<T> y = read(p.y_0, row, dy), z = read(p.z_0, row, dz);
        for (ptrdiff_t s = 0; s < length && !stopped(stop); ++s) {
            step(s, y, z);
            write(y, p.out, time(s) * p.batch + row);
        }
        for (ptrdiff_t t = length; t < p.steps; ++t) write(std::vector<T>(dy), p.out, t * p.batch + row);
        write(y, p.y_n, row);
        write(z, p.z_n, row);
    }

    // The adjoint: gA, gB, gC, gD are the gradients of the four affine maps.
    void backward() const {
        std::vector<T> y = read(p.y_0, row, dy), z = read(p.z_0, row, dz), y_start(dy), z_start(dz);
        std::vector<T> gy = read(p.grad_y_n, row, dy), gz = read(p.grad_z_n, row, dz), gA(dz), gB(dy), gC(dz), gD(dy);
        std::vector<step_values<T>> seen;
        for (ptrdiff_t s = 0; s < length && !stopped(stop); ++s) seen.push_back(step(s, y, z));
        for (ptrdiff_t s = ptrdiff_t(seen.size()) - 1; s >= 0 && !stopped(stop); --s) {
            const step_values<T>& v = seen[s];
            const T* const go = static_cast<const T*>(p.grad_out);
            const T e = elapsed(s);
            T ge = T(0);
            for (ptrdiff_t k = 0; k < dy; ++k) {
                if (go) gy[k] += go[time(s) * p.grad_out_time + row * p.grad_out_row + k];
                const T g = gate(v.s2[k]), dt_y = stretched(g, e), moved = gy[k] * (v.td[k] - v.y_before[k]);
                gB[k] = p.gated ? moved * stretched_by_gate(g, e) * gate_slope(v.s2[k]) : T(0);
                ge += moved * stretched_by_time(g, e);
                gD[k] = gy[k] * dt_y * (T(1) - v.td[k] * v.td[k]);
                gy[k] *= T(1) - dt_y;
            }
            for (ptrdiff_t k = 0; k < dz; ++k)
                for (ptrdiff_t i = 0; i < dy; ++i) gz[k] += operand(Wy[i * dz + k]) * operand(gD[i]);
            for (ptrdiff_t k = 0; k < dz; ++k) {
                const T g = gate(v.s1[k]), dt_z = stretched(g, e), moved = gz[k] * (v.tc[k] - v.z_before[k]);
                gA[k] = p.gated ? moved * stretched_by_gate(g, e) * gate_slope(v.s1[k]) : T(0);
                ge += moved * stretched_by_time(g, e);
                gC[k] = gz[k] * dt_z * (T(1) - v.tc[k] * v.tc[k]);
                gz[k] *= T(1) - dt_z;
            }
            if (p.grad_elapsed && has_elapsed(s)) static_cast<T*>(p.grad_elapsed)[gap(s)] = ge;
            if (p.gated) map_back(gA, 0, s, v, gy), map_back(gB, at_2, s, v, gy);
            map_back(gC, at_z, s, v, gy);
            map_back(gD, at_y, s, v, gy);
            if (restarts(s)) {
                for (ptrdiff_t k = 0; k < dy; ++k) y_start[k] += gy[k], gy[k] = T(0);
                for (ptrdiff_t k = 0; k < dz; ++k) z_start[k] += gz[k], gz[k] = T(0);
            }
        }
        write(gy, p.grad_y_0, row);
        write(gz, p.grad_z_0, row);
        if (p.resets) write(y_start, p.grad_y_start, row), write(z_start, p.grad_z_start, row);
    }

    // Through one affine map, whose rows begin at `first`: to its weights, the input and y.
    void map_back(const std::vector<T>& g, ptrdiff_t first, ptrdiff_t s, const step_values<T>& v, std::vector<T>& gy) const {
        const T* const u = input(s);
        T* const gu = p.grad_u ? static_cast<T*>(p.grad_u) + (time(s) * p.batch + row) * m : nullptr;
        for (size_t i = 0; i < g.size(); ++i) {
            const ptrdiff_t line = first + ptrdiff_t(i);
            const T gi = operand(g[i]);
            if (first == at_y) {
                for (ptrdiff_t k = 0; k < dz; ++k) static_cast<T*>(p.grad_weight_z)[ptrdiff_t(i) * dz + k] += gi * operand(v.z[k]);
            } else {
                for (ptrdiff_t k = 0; k < dy; ++k) {
                    static_cast<T*>(p.grad_weight_y)[line * dy + k] += gi * operand(v.y_before[k] * mask(k));
                    gy[k] += operand(W[line * dy + k]) * gi * mask(k);
                }
            }
            for (ptrdiff_t k = 0; k < m; ++k) {
                static_cast<T*>(p.grad_weight_u)[line * m + k] += gi * operand(u[k]);
                if (gu) gu[k] += gi * operand(V[line * m + k]);
            }
            if (p.grad_bias) static_cast<T*>(p.grad_bias)[line] += gi;
        }
    }
};

template <class T> void zero(void* x, ptrdiff_t count) {
    for (ptrdiff_t i = 0; x && i < count; ++i) static_cast<T*>(x)[i] = T(0);
}

template <class T> void backward_of(const lem_problem& p, const lem_plan& plan) {
    const ptrdiff_t dz = p.hidden, dy = p.outputs ? p.outputs : dz, rows_y = p.gated ? 2 * dz + dy : dz;
    zero<T>(p.grad_weight_u, (rows_y + dy) * p.inputs);
    zero<T>(p.grad_weight_y, rows_y * dy);
    zero<T>(p.grad_weight_z, dy * dz);
    zero<T>(p.grad_bias, rows_y + dy);
    zero<T>(p.grad_u, p.steps * p.batch * p.inputs);
    for (ptrdiff_t row = 0; row < p.batch; ++row) row_run<T>(p, plan, row).backward();
}

ptrdiff_t work_bytes(const lem_problem&, const lem_plan&, bool) { return 0; }
void forward(const lem_problem& p, const lem_plan& plan, char*, char*) {
    for (ptrdiff_t row = 0; row < p.batch; ++row)
        p.item_bytes == 8 ? row_run<double>(p, plan, row).forward() : row_run<float>(p, plan, row).forward();
}
void backward(const lem_problem& p, const lem_plan& plan, const char*, char*) {
    p.item_bytes == 8 ? backward_of<double>(p, plan) : backward_of<float>(p, plan);
}
ptrdiff_t packed_bytes(const lem_problem&) { return 64; }
void pack(const lem_problem&, char*) {}
void step(const lem_problem& p, const lem_plan& plan, const char*, char*) { forward(p, plan, nullptr, nullptr); }
double peak(bool, ptrdiff_t) { return 0.0; }

// The independent units, one after the other.
template <class T> void units_of(const lem_units& p, bool backward) {
    const ptrdiff_t n = p.count;
    const auto in = [](const void* x, ptrdiff_t i) { return x ? static_cast<const T*>(x)[i] : T(0); };
    const auto out = [](void* x, ptrdiff_t i) -> T& { return static_cast<T*>(x)[i]; };
    const T alpha = T(p.alpha);
    for (ptrdiff_t i = 0; i < n; ++i) {
        const T w = in(p.w, i), s = in(p.s, i);
        T y = in(p.y_0, i), z = in(p.z_0, i);
        for (ptrdiff_t t = 0; !backward && t < p.steps && !stopped(p.stop); ++t) {
            const T a = w * y + in(p.x, t * n + i);
            if (p.kind == LEM_UNITS_RELU) {
                y = a < T(0) ? T(0) : a;
            } else {
                z -= s * (std::tanh(a) + alpha * y);
                y += s * z;
                out(p.z, p.keep ? t * n + i : i) = z;
                if (p.keep) out(p.force, t * n + i) = std::tanh(a);
            }
            out(p.y, t * n + i) = y;
        }
        if (!backward) continue;
        T gy = in(p.grad_y_n, i), gz = in(p.grad_z_n, i), gw = T(0), gs = T(0);
        for (ptrdiff_t t = p.steps - 1; t >= 0 && !stopped(p.stop); --t) {
            const ptrdiff_t at = t * n + i;
            const T before = t ? in(p.y, at - n) : in(p.y_0, i);
            gy += in(p.grad_y, at);
            T inner;
            if (p.kind == LEM_UNITS_RELU) {
                inner = in(p.y, at) > T(0) ? gy : T(0);
                gy = w * inner;
            } else {
                const T force = in(p.force, at);
                gz += s * gy;
                gs += gy * in(p.z, at) - gz * (force + alpha * before);
                inner = -s * gz * (T(1) - force * force);
                gy += w * inner - alpha * s * gz;
            }
            out(p.grad_x, at) = inner;
            gw += inner * before;
        }
        out(p.grad_w, i) = gw, out(p.grad_y_0, i) = gy;
        if (p.kind == LEM_UNITS_OSCILLATOR) out(p.grad_s, i) = gs, out(p.grad_z_0, i) = gz;
    }
}
void units(const lem_units& p, bool backward) {
    p.item_bytes == 8 ? units_of<double>(p, backward) : units_of<float>(p, backward);
}

// The coupled units, row by row; `s`, `w` and the rest are read where they stand.
template <class T> struct coupled_row {
    const lem_coupled& p;
    const ptrdiff_t row, d = p.hidden, size = p.steps * p.batch * p.hidden;
    const bool swings = p.kind == LEM_COUPLED_OSCILLATOR, lstm = p.kind == LEM_COUPLED_LSTM;

    static T in(const void* x, ptrdiff_t i) { return x ? static_cast<const T*>(x)[i] : T(0); }
    static T& out(void* x, ptrdiff_t i) { return static_cast<T*>(x)[i]; }
    T c(ptrdiff_t which, ptrdiff_t i) const { return in(p.c, which * d + i); }
    ptrdiff_t at(ptrdiff_t t, ptrdiff_t i) const { return (t * p.batch + row) * d + i; }
    T y(ptrdiff_t t, ptrdiff_t i) const { return t < 0 ? in(p.y_0, row * d + i) : in(p.y, at(t, i)); }

    void forward() const {
        for (ptrdiff_t t = 0; t < p.steps && !stopped(p.stop); ++t) {
            if (lstm) {
                for (ptrdiff_t i = 0; i < d; ++i) lstm_step(t, i);
                continue;
            }
            // All of the old state is read before any of the new one is written; y holds the sums meanwhile.
            for (ptrdiff_t i = 0; i < d; ++i) {
                T a = in(p.x, at(t, i));
                for (ptrdiff_t k = 0; k < d; ++k) {
                    a += in(p.weight, k * d + i) * y(t - 1, k);
                    if (swings) a += in(p.weight, (d + k) * d + i) * z(t - 1, k);
                }
                out(p.y, at(t, i)) = a;
            }
            for (ptrdiff_t i = 0; i < d; ++i) step(t, i, in(p.y, at(t, i)));
        }
    }
    T z(ptrdiff_t t, ptrdiff_t i) const {
        return t < 0 ? in(p.z_0, row * d + i) : in(p.z, p.keep ? at(t, i) : row * d + i);
    }
    void step(ptrdiff_t t, ptrdiff_t i, T a) const {
        T next = y(t - 1, i), value = std::tanh(a);
        if (swings) {
            const T before = z(t - 1, i), z_next = before + c(2, i) * (value - c(1, i) * next - c(0, i) * before);
            out(p.z, p.keep ? at(t, i) : row * d + i) = z_next;
            next += c(2, i) * z_next;
        } else if (p.kind == LEM_COUPLED_RESIDUAL) {
            next = c(1, i) * next + c(0, i) * value;
        } else if (p.kind == LEM_COUPLED_GATED) {
            const T gate = sigmoid(a + c(2, i));
            value = std::tanh(a + c(3, i));
            next = (c(0, i) * (T(1) - gate) + c(1, i)) * value + gate * next;
            if (p.keep) out(p.kept, size + at(t, i)) = gate;
        } else {
            const T above = std::fabs(a) + c(0, i);
            next = above <= T(0) || a == T(0) ? T(0) : a < T(0) ? -above : above;
        }
        if (p.keep && p.kind != LEM_COUPLED_MODRELU) out(p.kept, at(t, i)) = value;
        out(p.y, at(t, i)) = next;
    }

    T sum(ptrdiff_t t, ptrdiff_t map, ptrdiff_t i) const {
        T a = in(p.x, 4 * at(t, 0) + map * d + i);
        for (ptrdiff_t k = 0; k < d; ++k) a += in(p.weight, (4 * k + map) * d + i) * y(t - 1, k);
        return a;
    }
    void lstm_step(ptrdiff_t t, ptrdiff_t i) const {
        const T gate[4] = {sigmoid(sum(t, 0, i)), sigmoid(sum(t, 1, i)), std::tanh(sum(t, 2, i)), sigmoid(sum(t, 3, i))};
        const T next = c(0, i) * gate[1] * z(t - 1, i) + c(1, i) * gate[0] * gate[2];
        out(p.z, p.keep ? at(t, i) : row * d + i) = next;
        out(p.y, at(t, i)) = gate[3] * std::tanh(next);
        for (ptrdiff_t map = 0; p.keep && map < 4; ++map) out(p.kept, map * size + at(t, i)) = gate[map];
    }
    void lstm_back(ptrdiff_t t) const {
        for (ptrdiff_t n = 0; n < d; ++n) {
            T &gy = out(p.grad_y_0, row * d + n), &gz = out(p.grad_z_0, row * d + n);
            T* const da = &out(p.grad_x, 4 * at(t, 0) + n);
            const T i = in(p.kept, at(t, n)), f = in(p.kept, size + at(t, n)), g = in(p.kept, 2 * size + at(t, n));
            const T o = in(p.kept, 3 * size + at(t, n)), shown = std::tanh(z(t, n)), to_y = gy + in(p.grad_y, at(t, n));
            gz += to_y * o * (T(1) - shown * shown);
            da[0] = c(1, n) * gz * g * i * (T(1) - i);
            da[d] = c(0, n) * gz * z(t - 1, n) * f * (T(1) - f);
            da[2 * d] = c(1, n) * gz * i * (T(1) - g * g);
            da[3 * d] = to_y * shown * o * (T(1) - o);
            gz *= c(0, n) * f;
            gy = T(0);
        }
        for (ptrdiff_t k = 0; k < d; ++k)
            for (ptrdiff_t n = 0; n < 4 * d; ++n)
                out(p.grad_y_0, row * d + k) += in(p.weight_back, n * d + k) * in(p.grad_x, 4 * at(t, 0) + n);
    }

    void backward() const {
        const auto constant = [&](ptrdiff_t which, ptrdiff_t i, T value) {
            if (p.grad_c) out(p.grad_c, (which * p.batch + row) * d + i) += value;
        };
        for (ptrdiff_t i = 0; i < d; ++i) {
            out(p.grad_y_0, row * d + i) = in(p.grad_y_n, row * d + i);
            if (swings || lstm) out(p.grad_z_0, row * d + i) = in(p.grad_z_n, row * d + i);
            for (ptrdiff_t which = 0; p.grad_c && which < lem_coupled_constants(p.kind); ++which)
                out(p.grad_c, (which * p.batch + row) * d + i) = T(0);
        }
        for (ptrdiff_t t = p.steps - 1; t >= 0 && !stopped(p.stop); --t) {
            if (lstm) {
                lstm_back(t);
                continue;
            }
            for (ptrdiff_t i = 0; i < d; ++i) {
                T &gy = out(p.grad_y_0, row * d + i), &da = out(p.grad_x, at(t, i));
                const T g = gy + in(p.grad_y, at(t, i)), before = y(t - 1, i);
                const T value = p.kind == LEM_COUPLED_MODRELU ? T(0) : in(p.kept, at(t, i)), slope = T(1) - value * value;
                if (swings) {
                    T& gz = out(p.grad_z_0, row * d + i);
                    gz += c(2, i) * g;
                    da = c(2, i) * gz * slope;
                    gy = g - c(2, i) * c(1, i) * gz;
                    gz -= c(2, i) * c(0, i) * gz;
                } else if (p.kind == LEM_COUPLED_RESIDUAL) {
                    da = c(0, i) * g * slope;
                    gy = c(1, i) * g;
                    constant(0, i, g * value), constant(1, i, g * before);
                } else if (p.kind == LEM_COUPLED_GATED) {
                    const T gate = in(p.kept, size + at(t, i)), shut = T(1) - gate;
                    const T to_gate = g * (before - c(0, i) * value) * gate * shut;
                    const T to_value = g * (c(0, i) * shut + c(1, i)) * slope;
                    da = to_gate + to_value;
                    gy = g * gate;
                    constant(0, i, g * shut * value), constant(1, i, g * value), constant(2, i, to_gate), constant(3, i, to_value);
                } else {
                    const T now = y(t, i);
                    da = now == T(0) ? T(0) : g;
                    gy = T(0);
                    constant(0, i, now < T(0) ? -da : da);
                }
            }
            for (ptrdiff_t k = 0; k < d; ++k)
                for (ptrdiff_t i = 0; i < d; ++i) {
                    out(p.grad_y_0, row * d + k) += in(p.weight_back, i * d + k) * in(p.grad_x, at(t, i));
                    if (swings) out(p.grad_z_0, row * d + k) += in(p.weight_back, (d + i) * d + k) * in(p.grad_x, at(t, i));
                }
        }
    }
};
template <class T> void coupled_of(const lem_coupled& p, bool backward) {
    for (ptrdiff_t row = 0; row < p.batch; ++row) {
        const coupled_row<T> run{p, row};
        backward ? run.backward() : run.forward();
    }
}
ptrdiff_t coupled_bytes(const lem_coupled&, bool) { return 0; }
void coupled(const lem_coupled& p, bool backward) {
    p.item_bytes == 8 ? coupled_of<double>(p, backward) : coupled_of<float>(p, backward);
}

template <class T> void function_of(ptrdiff_t which, const void* x, void* out, ptrdiff_t count) {
    for (ptrdiff_t i = 0; i < count; ++i) {
        const T v = static_cast<const T*>(x)[i];
        T& to = static_cast<T*>(out)[i];
        to = which == 0 ? sigmoid(v) : which == 1 ? std::tanh(v) : which == 2 ? std::log1p(-v) : stretched(v, to);
    }
}
void function(ptrdiff_t which, bool wide, const void* x, void* out, ptrdiff_t count) {
    wide ? function_of<double>(which, x, out, count) : function_of<float>(which, x, out, count);
}

}  // namespace

extern const lem_target lem_target_scalar = {"scalar",     sizeof(double), true,       work_bytes, forward, backward,
                                             packed_bytes, pack,           step,       units,   coupled_bytes,
                                             coupled,      peak,           function};

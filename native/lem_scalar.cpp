// The oracle: equation (3) and its adjoint, one row after the other, as they are written. Every vector target is tested
// against this file; it is never made faster. It keeps nothing between the calls: backward runs forward again.
#include <cmath>
#include <cstddef>
#include <vector>
#include "target.h"

namespace {

template <class T> T sigmoid(T x) { return T(1) / (T(1) + std::exp(-x)); }

template <class T> struct step_values { std::vector<T> y_before, z_before, s1, s2, tc, td, z; };

template <class T> struct row_run {
    const lem_problem& p;
    ptrdiff_t d = p.hidden, m = p.inputs, row, length;
    const T *V = static_cast<const T*>(p.weight_u), *W = static_cast<const T*>(p.weight_y);
    const T *Wy = static_cast<const T*>(p.weight_z), *bias = static_cast<const T*>(p.bias);
    T dt = T(p.dt);
    ptrdiff_t gates = p.gated ? 2 : 0;

    row_run(const lem_problem& q, ptrdiff_t r) : p(q), row(r), length(q.lengths ? q.lengths[r] : q.steps) {}

    ptrdiff_t time(ptrdiff_t s) const { return p.reverse ? length - 1 - s : s; }
    const T* input(ptrdiff_t s) const { return static_cast<const T*>(p.u) + time(s) * p.u_time + row * p.u_row; }
    T mask(ptrdiff_t k) const { return p.mask ? static_cast<const T*>(p.mask)[row * d + k] : T(1); }

    // Row i of the affine map number `map`: w (state) + V (input) + b.
    T affine(ptrdiff_t map, ptrdiff_t i, const T* w, const T* state, const T* u) const {
        T sum = bias ? bias[map * d + i] : T(0);
        for (ptrdiff_t k = 0; k < d; ++k) sum += w[i * d + k] * state[k];
        for (ptrdiff_t k = 0; k < m; ++k) sum += V[(map * d + i) * m + k] * u[k];
        return sum;
    }
    T time_step(T s) const {
        T t = dt * s;
        if (p.clipped) t = t < T(p.clip_low) ? T(p.clip_low) : t > T(p.clip_high) ? T(p.clip_high) : t;
        return t;
    }
    T time_step_slope(T s) const {
        const T t = dt * s;
        if (p.clipped && (t < T(p.clip_low) || t > T(p.clip_high))) return T(0);
        return t * (T(1) - s);
    }

    step_values<T> step(ptrdiff_t s, std::vector<T>& y, std::vector<T>& z) const {
        step_values<T> v{y, z, std::vector<T>(d), std::vector<T>(d), std::vector<T>(d), std::vector<T>(d), {}};
        const T* const u = input(s);
        std::vector<T> y_in(d);
        for (ptrdiff_t k = 0; k < d; ++k) y_in[k] = y[k] * mask(k);
        for (ptrdiff_t i = 0; i < d; ++i) {
            v.s1[i] = gates ? sigmoid(affine(0, i, W, y_in.data(), u)) : T(1);
            v.s2[i] = gates ? sigmoid(affine(1, i, W + d * d, y_in.data(), u)) : T(1);
            v.tc[i] = std::tanh(affine(gates, i, W + gates * d * d, y_in.data(), u));
        }
        for (ptrdiff_t i = 0; i < d; ++i) {
            const T dt_z = gates ? time_step(v.s1[i]) : dt;
            z[i] = (T(1) - dt_z) * z[i] + dt_z * v.tc[i];
        }
        v.z = z;
        for (ptrdiff_t i = 0; i < d; ++i) {
            const T dt_y = gates ? time_step(v.s2[i]) : dt;
            v.td[i] = std::tanh(affine(gates + 1, i, Wy, z.data(), u));
            y[i] = (T(1) - dt_y) * y[i] + dt_y * v.td[i];
        }
        return v;
    }

    std::vector<T> initial(const void* from) const {
        const T* const x = static_cast<const T*>(from) + row * d;
        return std::vector<T>(x, x + d);
    }

    void forward() const {
        std::vector<T> y = initial(p.y_0), z = initial(p.z_0);
        T* const out = static_cast<T*>(p.out);
        for (ptrdiff_t s = 0; s < length; ++s) {
            step(s, y, z);
            for (ptrdiff_t k = 0; out && k < d; ++k) out[(time(s) * p.batch + row) * d + k] = y[k];
        }
        for (ptrdiff_t t = length; out && t < p.steps; ++t)
            for (ptrdiff_t k = 0; k < d; ++k) out[(t * p.batch + row) * d + k] = T(0);
        for (ptrdiff_t k = 0; k < d; ++k) {
            static_cast<T*>(p.y_n)[row * d + k] = y[k];
            static_cast<T*>(p.z_n)[row * d + k] = z[k];
        }
    }

    // The adjoint: gA, gB, gC, gD are the gradients of the four affine maps.
    void backward() const {
        std::vector<T> y = initial(p.y_0), z = initial(p.z_0), gy(d), gz(d), gA(d), gB(d), gC(d), gD(d);
        std::vector<step_values<T>> seen;
        for (ptrdiff_t s = 0; s < length; ++s) seen.push_back(step(s, y, z));
        for (ptrdiff_t k = 0; k < d; ++k) {
            gy[k] = p.grad_y_n ? static_cast<const T*>(p.grad_y_n)[row * d + k] : T(0);
            gz[k] = p.grad_z_n ? static_cast<const T*>(p.grad_z_n)[row * d + k] : T(0);
        }
        T* const gW = static_cast<T*>(p.grad_weight_y);
        T* const gWy = static_cast<T*>(p.grad_weight_z);
        T* const gV = static_cast<T*>(p.grad_weight_u);
        T* const gb = static_cast<T*>(p.grad_bias);
        for (ptrdiff_t s = length - 1; s >= 0; --s) {
            const step_values<T>& v = seen[s];
            const T* const go = static_cast<const T*>(p.grad_out);
            for (ptrdiff_t k = 0; k < d; ++k) {
                if (go) gy[k] += go[time(s) * p.grad_out_time + row * p.grad_out_row + k];
                const T dt_y = gates ? time_step(v.s2[k]) : dt;
                gB[k] = gates ? gy[k] * (v.td[k] - v.y_before[k]) * time_step_slope(v.s2[k]) : T(0);
                gD[k] = gy[k] * dt_y * (T(1) - v.td[k] * v.td[k]);
                gy[k] *= T(1) - dt_y;
            }
            for (ptrdiff_t k = 0; k < d; ++k)
                for (ptrdiff_t i = 0; i < d; ++i) gz[k] += Wy[i * d + k] * gD[i];
            for (ptrdiff_t k = 0; k < d; ++k) {
                const T dt_z = gates ? time_step(v.s1[k]) : dt;
                gA[k] = gates ? gz[k] * (v.tc[k] - v.z_before[k]) * time_step_slope(v.s1[k]) : T(0);
                gC[k] = gz[k] * dt_z * (T(1) - v.tc[k] * v.tc[k]);
                gz[k] *= T(1) - dt_z;
            }
            const std::vector<T>* const all[4] = {&gA, &gB, &gC, &gD};
            const std::vector<T>* const* const maps = all + 2 - gates;  // in the order of the rows of weight_u
            const T* const u = input(s);
            for (ptrdiff_t map = 0; map < gates + 2; ++map)
                for (ptrdiff_t i = 0; i < d; ++i) {
                    const T g = (*maps[map])[i];
                    const ptrdiff_t line = map * d + i;
                    for (ptrdiff_t k = 0; k < d; ++k)
                        if (map == gates + 1) {
                            gWy[i * d + k] += g * v.z[k];
                        } else {
                            gW[line * d + k] += g * v.y_before[k] * mask(k);
                            gy[k] += W[line * d + k] * g * mask(k);
                        }
                    for (ptrdiff_t k = 0; k < m; ++k) {
                        gV[line * m + k] += g * u[k];
                        if (p.grad_u) static_cast<T*>(p.grad_u)[(time(s) * p.batch + row) * m + k] += g * V[line * m + k];
                    }
                    if (gb) gb[line] += g;
                }
        }
        for (ptrdiff_t k = 0; k < d; ++k) {
            static_cast<T*>(p.grad_y_0)[row * d + k] = gy[k];
            static_cast<T*>(p.grad_z_0)[row * d + k] = gz[k];
        }
    }
};

template <class T> void zero(void* x, ptrdiff_t count) {
    for (ptrdiff_t i = 0; x && i < count; ++i) static_cast<T*>(x)[i] = T(0);
}

template <class T> void backward_of(const lem_problem& p) {
    const ptrdiff_t d = p.hidden, m = p.inputs, maps = p.gated ? 4 : 2;
    zero<T>(p.grad_weight_u, maps * d * m);
    zero<T>(p.grad_weight_y, (maps - 1) * d * d);
    zero<T>(p.grad_weight_z, d * d);
    zero<T>(p.grad_bias, maps * d);
    zero<T>(p.grad_u, p.steps * p.batch * m);
    for (ptrdiff_t row = 0; row < p.batch; ++row) row_run<T>(p, row).backward();
}

ptrdiff_t work_bytes(const lem_problem&, const lem_plan&, bool) { return 0; }
void forward(const lem_problem& p, const lem_plan&, char*, char*) {
    for (ptrdiff_t row = 0; row < p.batch; ++row)
        p.item_bytes == 8 ? row_run<double>(p, row).forward() : row_run<float>(p, row).forward();
}
void backward(const lem_problem& p, const lem_plan&, const char*, char*) {
    p.item_bytes == 8 ? backward_of<double>(p) : backward_of<float>(p);
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
        for (ptrdiff_t t = 0; !backward && t < p.steps; ++t) {
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
        for (ptrdiff_t t = p.steps - 1; t >= 0; --t) {
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
        for (ptrdiff_t t = 0; t < p.steps; ++t) {
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
        for (ptrdiff_t t = p.steps - 1; t >= 0; --t) {
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
    const T* const from = static_cast<const T*>(x);
    for (ptrdiff_t i = 0; i < count; ++i) static_cast<T*>(out)[i] = which ? std::tanh(from[i]) : sigmoid(from[i]);
}
void function(ptrdiff_t which, bool wide, const void* x, void* out, ptrdiff_t count) {
    wide ? function_of<double>(which, x, out, count) : function_of<float>(which, x, out, count);
}

}  // namespace

extern const lem_target lem_target_scalar = {"scalar",     sizeof(double), work_bytes, forward, backward,
                                             packed_bytes, pack,           step,       units,   coupled_bytes,
                                             coupled,      peak,           function};

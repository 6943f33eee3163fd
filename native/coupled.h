// Units that see each other through one product a step (coRNN, FastRNN, FastGRNN, the cells of modrelu, LSTM):
//   a = x + W s                 s: y or (y, z) side by side; x = V u + b is left to the caller
//   s = f(a, s)                 unit by unit: `next` below, and `pull` its adjoint; LSTM's `next_lstm` and `pull_lstm`
// A group of rows goes through all steps by itself. The adjoint leaves da = grad_x behind; the gradient of W is one
// product of it with the states, which the caller makes.
#pragma once
#include "pack.h"

namespace {

constexpr ptrdiff_t coupled_group = 64;  // rows at a time; more gain nothing and leave the second-level cache

template <class T> struct coupled {
    static constexpr ptrdiff_t L = simd<T>::lanes;
    const lem_coupled& p;
    const ptrdiff_t d = p.hidden, B = p.batch, nb = up(d, L) / L;
    const ptrdiff_t maps = lem_coupled_maps(p.kind), reads = lem_coupled_reads(p.kind), fields = lem_coupled_states(p.kind);
    const ptrdiff_t size = p.steps * B * d;  // items of y, and of each value that is kept
    const ptrdiff_t most = B < coupled_group ? B : coupled_group, jump = (most | 1) * L, panel = nb * jump;
    T *weight, *zeros, *acc, *now[2], *next_[2];
    T* inner;  // forward: a of one block of units, map by map; backward: the gradient of a, as `maps` panels

    coupled(const lem_coupled& q, arena& a, bool backward)
        : p(q), weight(a.take<T>(reads * maps * d * nb * L)), zeros(a.take<T>(2 * L)),
          acc(a.take<T>(larger(2 * most, narrow_vectors) * L)), inner(a.take<T>(maps * (backward ? panel : most * L))) {
        for (ptrdiff_t f = 0; f < fields; ++f) {
            now[f] = a.take<T>(panel);
            next_[f] = backward ? nullptr : a.take<T>(panel);
        }
        if (!a.base) return;
        for (ptrdiff_t i = 0; i < 2 * L; ++i) zeros[i] = T(0);
        const T* const from = static_cast<const T*>(backward ? p.weight_back : p.weight);
        if (backward)
            for (ptrdiff_t f = 0; f < reads; ++f) pack_columns(from + f * d * d, maps * d, d, weight + f * d * nb * L);
        else if (maps == 1)
            pack_columns(from, reads * d, d, weight);
        else
            pack_maps(from);
    }

    // Pairs of maps of one block of units side by side, [row][2][L]: its four products come one after another.
    void pack_maps(const T* from) const {
        T* to = weight;
        for (ptrdiff_t b = 0; b < nb; ++b)
            for (ptrdiff_t map = 0; map < maps; map += 2)
                for (ptrdiff_t row = 0; row < d; ++row)
                    for (ptrdiff_t v = map; v < map + 2; ++v, to += L)
                        store(to, load_row(from + (row * maps + v) * d + b * L, live(b)));
    }

    ptrdiff_t live(ptrdiff_t b) const { return d - b * L < L ? d - b * L : L; }
    vec<T> get(const void* x, ptrdiff_t at, ptrdiff_t b) const {
        return x ? load_row(static_cast<const T*>(x) + at + b * L, live(b)) : vec<T>{};
    }
    void put(void* x, ptrdiff_t at, ptrdiff_t b, vec<T> v) const { store_row(static_cast<T*>(x) + at + b * L, v, live(b)); }
    vec<T> constant(ptrdiff_t which, ptrdiff_t b) const { return get(p.c, which * d, b); }
    void add(ptrdiff_t which, ptrdiff_t row, ptrdiff_t b, vec<T> v) const {  // to the gradient of a constant
        const ptrdiff_t at = (which * B + row) * d;
        put(p.grad_c, at, b, get(p.grad_c, at, b) + v);
    }

    // R rows of one block of units: a + x becomes the next state. `at` is the place of the first row's values in (T, B, d).
    template <int R> inline void next(ptrdiff_t t, ptrdiff_t row, ptrdiff_t b, ptrdiff_t r, const T* from, ptrdiff_t from_jump) {
        const ptrdiff_t at = (t * B + row + r) * d;
        const bool gated = p.kind == LEM_COUPLED_GATED;
        vec<T> a[R], gate[R] = {};
        for (int i = 0; i < R; ++i) {
            a[i] = load(from + (r + i) * from_jump) + get(p.x, at + i * d, b);
            if (gated) gate[i] = a[i] + constant(2, b), a[i] += constant(3, b);
        }
        if (p.kind != LEM_COUPLED_MODRELU) squash<T, R, 0>(a);
        if (gated) squash<T, R, R>(gate);
        const vec<T> c0 = constant(0, b), c1 = p.kind == LEM_COUPLED_MODRELU ? vec<T>{} : constant(1, b);
        const vec<T> c2 = p.kind == LEM_COUPLED_OSCILLATOR ? constant(2, b) : vec<T>{};
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t here = b * jump + (r + i) * L, place = at + i * d;
            vec<T> y = load(now[0] + here);
            switch (p.kind) {
                case LEM_COUPLED_OSCILLATOR: {
                    vec<T> z = load(now[1] + here);
                    z = z + c2 * ((a[i] - c1 * y) - c0 * z);
                    y = y + c2 * z;
                    store(next_[1] + here, z);
                    put(p.z, p.keep ? place : (row + r + i) * d, b, z);
                    break;
                }
                case LEM_COUPLED_RESIDUAL: y = rounded<T>(c1 * y) + c0 * a[i]; break;
                case LEM_COUPLED_GATED:
                    y = (c0 * (T(1) - gate[i]) + c1) * a[i] + rounded<T>(gate[i] * y);
                    if (p.keep) put(p.kept, size + place, b, gate[i]);
                    break;
                default: {  // modrelu; NaN passes
                    const vec<T> above = (a[i] < T(0) ? -a[i] : a[i]) + c0, signed_ = a[i] < T(0) ? -above : above;
                    y = above <= T(0) ? vec<T>{} : a[i] == T(0) ? vec<T>{} : signed_;
                }
            }
            store(next_[0] + here, y);
            put(p.y, place, b, y);
            if (p.keep && p.kind != LEM_COUPLED_MODRELU) put(p.kept, place, b, a[i]);
        }
    }

    // The same for LSTM, from `inner`.
    template <int R> inline void next_lstm(ptrdiff_t t, ptrdiff_t row, ptrdiff_t b, ptrdiff_t r) {
        vec<T> v[4 * R], cell[R];  // i, f, o, g
        for (int i = 0; i < R; ++i) {
            const T* const a = inner + (r + i) * L;
            v[i] = load(a), v[R + i] = load(a + most * L), v[3 * R + i] = load(a + 2 * most * L), v[2 * R + i] = load(a + 3 * most * L);
        }
        squash<T, 4 * R, 3 * R>(v);
        const vec<T> keep = constant(0, b), write = constant(1, b);
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t here = b * jump + (r + i) * L;
            cell[i] = rounded<T>(keep * v[R + i] * load(now[1] + here)) + write * v[i] * v[3 * R + i];
            store(next_[1] + here, cell[i]);
            put(p.z, p.keep ? (t * B + row + r + i) * d : (row + r + i) * d, b, cell[i]);
        }
        squash<T, R, 0>(cell);
        for (int i = 0; i < R; ++i) {
            const ptrdiff_t place = (t * B + row + r + i) * d;
            const vec<T> y = v[2 * R + i] * cell[i];
            store(next_[0] + b * jump + (r + i) * L, y);
            put(p.y, place, b, y);
            if (!p.keep) continue;
            put(p.kept, place, b, v[i]), put(p.kept, size + place, b, v[R + i]);
            put(p.kept, 2 * size + place, b, v[3 * R + i]), put(p.kept, 3 * size + place, b, v[2 * R + i]);
        }
    }

    void set_state(T* const* to, const void* y, const void* z, ptrdiff_t row, ptrdiff_t n) {
        for (ptrdiff_t f = 0; f < fields; ++f)
            for (ptrdiff_t b = 0; b < nb; ++b)
                for (ptrdiff_t r = 0; r < n; ++r) store(to[f] + b * jump + r * L, get(f ? z : y, (row + r) * d, b));
    }

    void forward(ptrdiff_t row, ptrdiff_t n) {
        set_state(now, p.y_0, p.z_0, row, n);
        for (ptrdiff_t t = 0; t < p.steps && !stopped(p.stop); ++t) {
            const span<T> from[2] = {{now[0], d, jump}, {now[1], d, jump}};
            pair_products(0, maps * nb, from, reads, reads * d, weight, zeros, 0, acc, n,
                          [&](ptrdiff_t b, const T* sums, ptrdiff_t sums_jump) {
                              ptrdiff_t r = 0;
                              if (maps > 1) {
                                  const ptrdiff_t map = b % maps;
                                  b /= maps;
                                  for (; r < n; ++r)
                                      store(inner + (map * most + r) * L,
                                            load(sums + r * sums_jump) + get(p.x, ((t * B + row + r) * maps + map) * d, b));
                                  if (map < maps - 1) return;
                                  for (r = 0; r + 4 <= n; r += 4) next_lstm<4>(t, row, b, r);
                                  for (; r < n; ++r) next_lstm<1>(t, row, b, r);
                                  return;
                              }
                              for (; r + 4 <= n; r += 4) next<4>(t, row, b, r, sums, sums_jump);
                              for (; r < n; ++r) next<1>(t, row, b, r, sums, sums_jump);
                          });
            for (ptrdiff_t f = 0; f < fields; ++f) {
                T* const before = now[f];
                now[f] = next_[f], next_[f] = before;
            }
        }
    }

    // The gradient of the state after step t, in `now`, becomes the part of that before it which does not come through W;
    // da goes to `inner` and to grad_x.
    inline void pull(ptrdiff_t t, ptrdiff_t row, ptrdiff_t b, ptrdiff_t r) {
        const ptrdiff_t at = (t * B + row + r) * d, here = b * jump + r * L;
        const vec<T> gy = load(now[0] + here) + get(p.grad_y, at, b), c0 = constant(0, b);
        const vec<T> y = get(p.y, at, b), a = get(p.kind == LEM_COUPLED_MODRELU ? nullptr : p.kept, at, b);
        const auto before = [&] { return t ? get(p.y, at - B * d, b) : get(p.y_0, (row + r) * d, b); };
        vec<T> da, gy_before = {};
        switch (p.kind) {
            case LEM_COUPLED_OSCILLATOR: {
                const vec<T> c2 = constant(2, b), gz = load(now[1] + here) + c2 * gy;
                da = c2 * gz * (T(1) - a * a);
                gy_before = gy - constant(1, b) * (c2 * gz);
                store(now[1] + here, gz - c0 * (c2 * gz));
                break;
            }
            case LEM_COUPLED_RESIDUAL: {
                da = c0 * gy * (T(1) - a * a);
                gy_before = constant(1, b) * gy;
                if (p.grad_c) add(0, row + r, b, gy * a), add(1, row + r, b, gy * before());
                break;
            }
            case LEM_COUPLED_GATED: {
                const vec<T> g = get(p.kept, size + at, b), shut = T(1) - g, old = before();
                const vec<T> to_gate = gy * (old - c0 * a) * (g * shut);
                const vec<T> to_value = gy * (c0 * shut + constant(1, b)) * (T(1) - a * a);
                da = to_gate + to_value;
                gy_before = gy * g;
                if (p.grad_c) {
                    add(0, row + r, b, gy * shut * a), add(1, row + r, b, gy * a);
                    add(2, row + r, b, to_gate), add(3, row + r, b, to_value);
                }
                break;
            }
            default:
                da = y == T(0) ? vec<T>{} : gy;
                if (p.grad_c) add(0, row + r, b, y < T(0) ? -da : da);
        }
        store(now[0] + here, gy_before);
        store(inner + here, da);
        put(p.grad_x, at, b, da);
    }

    template <int R> inline void pull_lstm(ptrdiff_t t, ptrdiff_t row, ptrdiff_t b, ptrdiff_t r) {
        const ptrdiff_t first = (t * B + row + r) * d;
        vec<T> cell[R];
        for (int k = 0; k < R; ++k) cell[k] = get(p.z, first + k * d, b);
        squash<T, R, 0>(cell);
        for (int k = 0; k < R; ++k) {
            const ptrdiff_t at = first + k * d, here = b * jump + (r + k) * L;
            const vec<T> i = get(p.kept, at, b), f = get(p.kept, size + at, b), g = get(p.kept, 2 * size + at, b);
            const vec<T> o = get(p.kept, 3 * size + at, b), gy = load(now[0] + here) + get(p.grad_y, at, b);
            const vec<T> before = t ? get(p.z, at - B * d, b) : get(p.z_0, (row + r + k) * d, b);
            const vec<T> gz = load(now[1] + here) + gy * o * (T(1) - cell[k] * cell[k]);
            const vec<T> kept = constant(0, b) * gz, written = constant(1, b) * gz;
            const vec<T> da[4] = {written * g * (i * (T(1) - i)), kept * before * (f * (T(1) - f)), written * i * (T(1) - g * g),
                                  gy * cell[k] * (o * (T(1) - o))};
            store(now[0] + here, vec<T>{});
            store(now[1] + here, kept * f);
            for (ptrdiff_t map = 0; map < 4; ++map) {
                store(inner + map * panel + here, da[map]);
                put(p.grad_x, at * 4 + map * d, b, da[map]);
            }
        }
    }

    void backward(ptrdiff_t row, ptrdiff_t n) {
        set_state(now, p.grad_y_n, p.grad_z_n, row, n);
        for (ptrdiff_t which = 0; p.grad_c && which < lem_coupled_constants(p.kind); ++which)
            for (ptrdiff_t b = 0; b < nb; ++b)
                for (ptrdiff_t r = 0; r < n; ++r) put(p.grad_c, (which * B + row + r) * d, b, vec<T>{});
        for (ptrdiff_t t = p.steps - 1; t >= 0 && !stopped(p.stop); --t) {
            for (ptrdiff_t b = 0; b < nb; ++b) {
                ptrdiff_t r = 0;
                for (; maps > 1 && r + 4 <= n; r += 4) pull_lstm<4>(t, row, b, r);
                for (; r < n; ++r) maps > 1 ? pull_lstm<1>(t, row, b, r) : pull(t, row, b, r);
            }
            span<T> from[4];
            for (ptrdiff_t map = 0; map < maps; ++map) from[map] = {inner + map * panel, d, jump};
            for (ptrdiff_t f = 0; f < reads; ++f)
                pair_products(0, nb, from, maps, maps * d, weight + f * d * nb * L, zeros, 0, acc, n,
                              [&](ptrdiff_t b, const T* sums, ptrdiff_t sums_jump) {
                                  for (ptrdiff_t r = 0; r < n; ++r) {
                                      T* const to = now[f] + b * jump + r * L;
                                      store(to, load(to) + load(sums + r * sums_jump));
                                  }
                              });
        }
        for (ptrdiff_t f = 0; f < fields; ++f)
            for (ptrdiff_t b = 0; b < nb; ++b)
                for (ptrdiff_t r = 0; r < n; ++r)
                    put(f ? p.grad_z_0 : p.grad_y_0, (row + r) * d, b, load(now[f] + b * jump + r * L));
    }
};

template <class T> ptrdiff_t coupled_bytes(const lem_coupled& p, bool backward) {
    arena a{nullptr};
    coupled<T>(p, a, backward);
    return up(a.used, 4096);
}

template <class T> void coupled_of(const lem_coupled& p, bool backward) {
    const ptrdiff_t bytes = coupled_bytes<T>(p, backward);
    parallel(p.threads, [&](ptrdiff_t t, ptrdiff_t count) {
        const ptrdiff_t first = p.batch * t / count, rows = p.batch * (t + 1) / count - first;
        if (!rows) return;
        arena a{static_cast<char*>(p.work) + t * bytes};
        coupled<T> mine(p, a, backward);
        const ptrdiff_t groups = (rows + coupled_group - 1) / coupled_group;
        for (ptrdiff_t g = 0; g < groups; ++g) {
            const ptrdiff_t from = rows * g / groups, n = rows * (g + 1) / groups - from;
            backward ? mine.backward(first + from, n) : mine.forward(first + from, n);
        }
    });
}

}  // namespace

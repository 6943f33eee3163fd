// The vector kernel for one instruction set: the functions of target.h from forward.h, backward.h, units.h and coupled.h.
//
// Compiled once per target; LEM_TARGET_SYMBOL, LEM_TARGET_NAME, LEM_VECTOR_BYTES and LEM_REGISTERS come from
// CMakeLists.txt. Everything sits in an anonymous namespace and nothing of the standard library is instantiated here:
// the linker must never take a function from this unit for a processor that cannot run it.
#include "backward.h"
#include "coupled.h"
#include "units.h"

namespace {

template <class T> ptrdiff_t work_of(const lem_problem& p, const lem_plan& plan, bool backward) {
    const call<T> c(p);
    arena shared{nullptr}, one{nullptr}, own{nullptr};
    weights<T>(c, shared);
    if (backward) {
        back_weights<T>(c, shared);
        backward_work<T>(c, plan, one);
        scratch<T>(c, plan, own, backward_work<T>::most_rows(plan));
    } else {
        forward_work<T>(c, plan, one);
        scratch<T>(c, plan, own, largest_group(plan));
    }
    shared.take<int64_t>(plan.threads * team::line);
    return up(shared.used, 4096) + plan.threads / plan.team * up(one.used, 4096) + plan.threads * up(own.used, 4096);
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
    for (ptrdiff_t pair = 0; pair < (c.nbz + 1) / 2; ++pair) pack_pair(c, w, pair);
}

template <class T> void step_of(const lem_problem& p, const lem_plan& plan, const char* packed, char* memory) {
    const flush_denormals flush;
    const call<T> c(p);
    arena a{const_cast<char*>(packed)}, own{memory};
    const weights<T> w(c, a);
    forward_work<T> work(c, plan, own);
    scratch<T> mine(c, plan, own, largest_group(plan));
    team alone;
    for (ptrdiff_t g = 0; g < plan.groups; ++g)
        forward_group(c, plan, w, work, mine, alone, g, static_cast<char*>(nullptr));
}

template <class T> double peak_of(ptrdiff_t threads) {
    constexpr int rows = tile_rows<3>();
    constexpr ptrdiff_t L = simd<T>::lanes, k = 128, times = 2000;
    parallel(threads, [&](ptrdiff_t, ptrdiff_t) {
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
        const vec<T> e[1] = {load_row(to + i, live)};
        if (which == 0) squash<T, 1, 1>(v);
        if (which == 1) squash<T, 1, 0>(v);
        if (which == 2) log_rest<T, 1>(v);
        if (which == 3) stretch_gates<T, 1>(v, e);
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
void units(const lem_units& p, bool backward) {
    p.item_bytes == 8 ? units_of<double>(p, backward) : units_of<float>(p, backward);
}
ptrdiff_t coupled_bytes(const lem_coupled& p, bool backward) {
    return p.item_bytes == 8 ? coupled_bytes<double>(p, backward) : coupled_bytes<float>(p, backward);
}
void coupled_run(const lem_coupled& p, bool backward) {
    p.item_bytes == 8 ? coupled_of<double>(p, backward) : coupled_of<float>(p, backward);
}
double peak(bool wide, ptrdiff_t threads) { return wide ? peak_of<double>(threads) : peak_of<float>(threads); }
void function(ptrdiff_t which, bool wide, const void* x, void* out, ptrdiff_t count) {
    wide ? function_of<double>(which, x, out, count) : function_of<float>(which, x, out, count);
}

}  // namespace

extern const lem_target LEM_TARGET_SYMBOL = {LEM_TARGET_NAME, LEM_VECTOR_BYTES, has_bf16, work_bytes, forward, backward,
                                             packed_bytes,    pack,             step,       units,         coupled_bytes,
                                             coupled_run,     peak,             function};

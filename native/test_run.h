// Random problems for the C++ test, and one forward and backward call of each.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>
#include "lem.h"

namespace {

int failures = 0;
bool one_thread = false;

struct variant {
    int64_t steps, batch, inputs, hidden;
    bool gated = true, clipped = false, reverse = false, masked = false, unequal = false, bias = true;
    bool elapsed = false, resets = false;
    int64_t outputs = 0;
    double dt = 0.9, scale = 1.0;
    int64_t d_y() const { return outputs ? outputs : hidden; }
    int64_t rows_y() const { return gated ? 2 * hidden + d_y() : hidden; }
    bool bfloat16 = false;
};

template <class T> struct data {
    variant v;
    std::mt19937 random;
    std::vector<T> u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask, grad_out, grad_y, grad_z, elapsed, y_start, z_start;
    std::vector<int64_t> lengths;
    std::vector<uint8_t> resets;

    std::vector<T> draw(int64_t count, double scale) {
        std::uniform_real_distribution<double> uniform(-scale, scale);
        std::vector<T> x(count);
        for (T& value : x) value = T(uniform(random));
        return x;
    }
    data(const variant& w, unsigned seed) : v(w), random(seed) {
        const int64_t d = v.hidden, y = v.d_y(), rows = v.rows_y(), m = v.inputs, B = v.batch;
        const double s = v.scale * 2.0 / std::sqrt(double(d));
        u = draw(v.steps * B * m, 1.0);
        weight_u = draw((rows + y) * m, v.scale);
        weight_y = draw(rows * y, s);
        weight_z = draw(y * d, s);
        bias = draw(rows + y, 1.0);
        y_0 = draw(B * y, 1.0);
        z_0 = draw(B * d, 1.0);
        mask = draw(B * y, 1.0);
        for (T& x : mask) x = x > T(-0.5) ? T(4.0 / 3.0) : T(0);
        grad_out = draw(v.steps * B * y, 1.0);
        grad_y = draw(B * y, 1.0);
        grad_z = draw(B * d, 1.0);
        elapsed = draw(v.steps * B, 1.0);
        for (T& x : elapsed) x = x < T(-0.7) ? T(1) : std::exp(T(2) * x);
        y_start = draw(y, 1.0);
        z_start = draw(d, 1.0);
        for (const T x : draw(v.steps * B, 1.0)) resets.push_back(x > T(0.6));
        std::uniform_int_distribution<int64_t> any(1, v.steps);
        for (int64_t row = 0; row < B; ++row) lengths.push_back(any(random));
    }
};

// Memory with a guard behind it: a kernel that writes past its buffer is caught without a sanitizer too.
struct guarded {
    std::vector<char> memory;
    char* start;
    int64_t bytes;
    explicit guarded(int64_t n) : memory(n + 192, char(0x5a)), bytes(n) {
        start = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    }
    bool intact() const {
        for (const char* p = start + bytes; p < memory.data() + memory.size(); ++p)
            if (*p != char(0x5a)) return false;
        return true;
    }
};

template <class T> struct results { std::vector<std::vector<T>> parts; };  // in the order of `part_names`
const char* const part_names[] = {"out", "y_n", "z_n", "grad_u", "grad_weight_u", "grad_weight_y", "grad_weight_z",
                                  "grad_bias", "grad_y_0", "grad_z_0", "grad_elapsed", "grad_y_start", "grad_z_start"};
constexpr size_t all_parts = sizeof(part_names) / sizeof(*part_names);

// How a call was interrupted: 0 not; 1 before the forward call, 2 before the backward call.
template <class T> results<T> run(const data<T>& x, int64_t keep, int64_t threads, bool backward = true, int64_t team = 0,
                                  int interrupt = 0) {
    const variant& v = x.v;
    const int64_t d = v.hidden, y = v.d_y(), rows = v.rows_y(), m = v.inputs, B = v.batch, T_ = v.steps;
    results<T> r;
    for (const int64_t size : {T_ * B * y, B * y, B * d, T_ * B * m, (rows + y) * m, rows * y, y * d, rows + y, B * y, B * d,
                               T_ * B, B * y, B * d})
        r.parts.emplace_back(size, T(7));
    lem_problem p;
    std::memset(&p, 0, sizeof p);
    p.struct_bytes = sizeof p;
    p.item_bytes = sizeof(T);
    p.steps = T_, p.batch = B, p.inputs = m, p.hidden = d;
    p.gated = v.gated, p.clipped = v.clipped, p.reverse = v.reverse, p.threads = threads, p.team = team;
    p.outputs = v.outputs, p.keep = keep, p.segment = 5, p.bfloat16 = v.bfloat16, p.dt = v.dt, p.clip_low = 0.2, p.clip_high = 0.6;
    p.u = x.u.data(), p.u_time = B * m, p.u_row = m;
    p.weight_u = x.weight_u.data(), p.weight_y = x.weight_y.data(), p.weight_z = x.weight_z.data();
    p.bias = v.bias ? x.bias.data() : nullptr;
    p.y_0 = x.y_0.data(), p.z_0 = x.z_0.data();
    p.mask = v.masked ? x.mask.data() : nullptr;
    p.lengths = v.unequal ? x.lengths.data() : nullptr;
    p.elapsed = v.elapsed ? x.elapsed.data() : nullptr;
    if (v.resets) p.resets = x.resets.data(), p.y_start = x.y_start.data(), p.z_start = x.z_start.data();
    p.out = r.parts[0].data(), p.y_n = r.parts[1].data(), p.z_n = r.parts[2].data();
    guarded saved(lem_saved_bytes(&p)), work(lem_work_bytes(&p, 0));
    p.saved = saved.start, p.saved_bytes = saved.bytes, p.work = work.start, p.work_bytes = work.bytes;
    const int32_t stop = 1;
    p.stop = interrupt == 1 ? &stop : nullptr;
    int64_t status = lem_forward(&p);
    bool intact = saved.intact() && work.intact();
    if (backward && !status) {
        p.grad_out = x.grad_out.data(), p.grad_out_time = B * y, p.grad_out_row = y;
        p.grad_y_n = x.grad_y.data(), p.grad_z_n = x.grad_z.data();
        p.grad_u = r.parts[3].data(), p.grad_weight_u = r.parts[4].data(), p.grad_weight_y = r.parts[5].data();
        p.grad_weight_z = r.parts[6].data(), p.grad_bias = v.bias ? r.parts[7].data() : nullptr;
        p.grad_y_0 = r.parts[8].data(), p.grad_z_0 = r.parts[9].data();
        p.grad_elapsed = v.elapsed ? r.parts[10].data() : nullptr;
        if (v.resets) p.grad_y_start = r.parts[11].data(), p.grad_z_start = r.parts[12].data();
        guarded more(lem_work_bytes(&p, 1));
        p.work = more.start, p.work_bytes = more.bytes;
        p.stop = interrupt ? &stop : nullptr;
        status = lem_backward(&p);
        intact = intact && saved.intact() && more.intact();
    }
    if (status != (interrupt ? LEM_INTERRUPTED : LEM_OK) || !intact) {
        ++failures;
        std::printf("FAILED: status %d, buffers %s\n", int(status), intact ? "intact" : "overrun");
    }
    return r;
}

std::string describe(const variant& v) {
    char text[240];
    std::snprintf(text, sizeof text, "T=%d B=%d m=%d d=%d y=%d dt=%g%s%s%s%s%s%s%s%s", int(v.steps), int(v.batch), int(v.inputs),
                  int(v.hidden), int(v.d_y()), v.dt, v.gated ? "" : " single", v.clipped ? " clipped" : "",
                  v.reverse ? " reverse" : "", v.masked ? " masked" : "", v.unequal ? " lengths" : "",
                  v.bias ? "" : " unbiased", v.elapsed ? " elapsed" : "", v.resets ? " resets" : "");
    return text;
}

}  // namespace

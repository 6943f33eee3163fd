// Every target of this machine against the scalar oracle, and the oracle against finite differences.
// Built with the library (CMake option LEM_TESTS); run by `make check-all`, also under the sanitizers and under emulation.
// Exits with the number of failures. The target "wide" is the AVX-512 configuration compiled for this machine's own
// instructions, so that its index arithmetic is run everywhere.
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
    double scale = 1.0;
};

template <class T> struct data {
    variant v;
    std::mt19937 random;
    std::vector<T> u, weight_u, weight_y, weight_z, bias, y_0, z_0, mask, grad_out, grad_y, grad_z;
    std::vector<int64_t> lengths;

    std::vector<T> draw(int64_t count, double scale) {
        std::uniform_real_distribution<double> uniform(-scale, scale);
        std::vector<T> x(count);
        for (T& value : x) value = T(uniform(random));
        return x;
    }
    data(const variant& w, unsigned seed) : v(w), random(seed) {
        const int64_t maps = v.gated ? 4 : 2, d = v.hidden, m = v.inputs, B = v.batch;
        const double s = v.scale * 2.0 / std::sqrt(double(d));
        u = draw(v.steps * B * m, 1.0);
        weight_u = draw(maps * d * m, v.scale);
        weight_y = draw((maps - 1) * d * d, s);
        weight_z = draw(d * d, s);
        bias = draw(maps * d, 1.0);
        y_0 = draw(B * d, 1.0);
        z_0 = draw(B * d, 1.0);
        mask = draw(B * d, 1.0);
        for (T& x : mask) x = x > T(-0.5) ? T(4.0 / 3.0) : T(0);
        grad_out = draw(v.steps * B * d, 1.0);
        grad_y = draw(B * d, 1.0);
        grad_z = draw(B * d, 1.0);
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
                                  "grad_bias", "grad_y_0", "grad_z_0"};

template <class T> results<T> run(const data<T>& x, int64_t keep, int64_t threads, bool backward = true, int64_t team = 0) {
    const variant& v = x.v;
    const int64_t maps = v.gated ? 4 : 2, d = v.hidden, m = v.inputs, B = v.batch, T_ = v.steps;
    results<T> r;
    for (const int64_t size : {T_ * B * d, B * d, B * d, T_ * B * m, maps * d * m, (maps - 1) * d * d, d * d, maps * d, B * d, B * d})
        r.parts.emplace_back(size, T(7));
    lem_problem p;
    std::memset(&p, 0, sizeof p);
    p.struct_bytes = sizeof p;
    p.item_bytes = sizeof(T);
    p.steps = T_, p.batch = B, p.inputs = m, p.hidden = d;
    p.gated = v.gated, p.clipped = v.clipped, p.reverse = v.reverse, p.threads = threads, p.team = team;
    p.keep = keep, p.segment = 5, p.dt = 0.9, p.clip_low = 0.2, p.clip_high = 0.6;
    p.u = x.u.data(), p.u_time = B * m, p.u_row = m;
    p.weight_u = x.weight_u.data(), p.weight_y = x.weight_y.data(), p.weight_z = x.weight_z.data();
    p.bias = v.bias ? x.bias.data() : nullptr;
    p.y_0 = x.y_0.data(), p.z_0 = x.z_0.data();
    p.mask = v.masked ? x.mask.data() : nullptr;
    p.lengths = v.unequal ? x.lengths.data() : nullptr;
    p.out = r.parts[0].data(), p.y_n = r.parts[1].data(), p.z_n = r.parts[2].data();
    guarded saved(lem_saved_bytes(&p)), work(lem_work_bytes(&p, 0));
    p.saved = saved.start, p.saved_bytes = saved.bytes, p.work = work.start, p.work_bytes = work.bytes;
    int64_t status = lem_forward(&p);
    bool intact = saved.intact() && work.intact();
    if (backward && !status) {
        p.grad_out = x.grad_out.data(), p.grad_out_time = B * d, p.grad_out_row = d;
        p.grad_y_n = x.grad_y.data(), p.grad_z_n = x.grad_z.data();
        p.grad_u = r.parts[3].data(), p.grad_weight_u = r.parts[4].data(), p.grad_weight_y = r.parts[5].data();
        p.grad_weight_z = r.parts[6].data(), p.grad_bias = v.bias ? r.parts[7].data() : nullptr;
        p.grad_y_0 = r.parts[8].data(), p.grad_z_0 = r.parts[9].data();
        guarded more(lem_work_bytes(&p, 1));
        p.work = more.start, p.work_bytes = more.bytes;
        status = lem_backward(&p);
        intact = intact && saved.intact() && more.intact();
    }
    if (status || !intact) {
        ++failures;
        std::printf("FAILED: status %d, buffers %s\n", int(status), intact ? "intact" : "overrun");
    }
    return r;
}

std::string describe(const variant& v) {
    char text[200];
    std::snprintf(text, sizeof text, "T=%d B=%d m=%d d=%d%s%s%s%s%s%s", int(v.steps), int(v.batch), int(v.inputs),
                  int(v.hidden), v.gated ? "" : " single", v.clipped ? " clipped" : "", v.reverse ? " reverse" : "",
                  v.masked ? " masked" : "", v.unequal ? " lengths" : "", v.bias ? "" : " unbiased");
    return text;
}

// The largest difference of any part, relative to the largest value of that part.
template <class T> double difference(const results<T>& a, const results<T>& b, std::string& where, size_t parts = 10) {
    double worst = 0.0;
    for (size_t i = 0; i < parts; ++i) {
        double size = 1e-30, off = 0.0;
        for (size_t k = 0; k < a.parts[i].size(); ++k) {
            size = std::fmax(size, std::fabs(double(b.parts[i][k])));
            const double gap = std::fabs(double(a.parts[i][k]) - double(b.parts[i][k]));
            off = std::fmax(off, gap == gap ? gap : 1e300);
        }
        if (off / size > worst) worst = off / size, where = part_names[i];
    }
    return worst;
}

void check(bool good, const char* what, const std::string& target, const variant& v, double got, const std::string& where) {
    if (good) return;
    ++failures;
    std::printf("FAILED: %s, target %s, %s: %.3g in %s\n", what, target.c_str(), describe(v).c_str(), got, where.c_str());
}

int64_t target_index(const std::string& name) {
    for (int64_t i = 0; lem_target_name(i); ++i)
        if (name == lem_target_name(i)) return i;
    return -1;
}

template <class T> void against_oracle(const variant& v, unsigned seed, double tolerance) {
    const data<T> x(v, seed);
    lem_target_choose(target_index("scalar"));
    const results<T> oracle = run(x, LEM_KEEP_GATES, 1);
    for (int64_t i = 1; lem_target_name(i); ++i) {
        if (!lem_target_supported(i)) continue;
        const std::string name = lem_target_name(i);
        lem_target_choose(i);
        const results<T> kept = run(x, LEM_KEEP_GATES, 1);
        std::string where;
        double gap = difference(kept, oracle, where);
        check(gap < tolerance, "against the oracle", name, v, gap, where);
        // What is kept changes nothing, to the bit.
        for (const int64_t keep : {LEM_KEEP_STATES, LEM_KEEP_SEGMENTS}) {
            gap = difference(run(x, keep, 1), kept, where);
            check(gap == 0.0, keep == LEM_KEEP_STATES ? "gates computed again" : "segments run again", name, v, gap, where);
        }
        gap = difference(run(x, LEM_KEEP_NOTHING, 1, false), kept, where, 3);
        check(gap == 0.0, "nothing kept", name, v, gap, where);
        if (one_thread) continue;
        // Threads change the sums over rows only.
        for (const int64_t threads : {2, 3, 8}) {
            results<T> split = run(x, LEM_KEEP_GATES, threads, true, 1);
            gap = difference(split, kept, where);
            check(gap < tolerance, "threads", name, v, gap, where);
            for (const size_t part : {4, 5, 6, 7}) split.parts[part] = kept.parts[part];
            gap = difference(split, kept, where);
            check(gap == 0.0, "threads, to the bit", name, v, gap, where);
        }
        // Threads that share a group's units add nothing in another order: equal to the bit, weights too.
        if (v.batch > 3) continue;
        for (const int64_t keep : {LEM_KEEP_GATES, LEM_KEEP_STATES, LEM_KEEP_SEGMENTS}) {
            const results<T> alone = v.batch == 1 ? kept : run(x, keep, v.batch, true, 1);
            for (const int64_t team : {2, 3, 8, -3}) {
                gap = difference(run(x, keep, v.batch * std::abs(team), true, team), alone, where);
                check(gap == 0.0, "a team", name, v, gap, where);
            }
        }
    }
}

// The oracle's gradients against central differences of a weighted sum of everything it returns.
void against_differences(const variant& v) {
    data<double> x(v, 3);
    lem_target_choose(target_index("scalar"));
    const results<double> r = run(x, LEM_KEEP_GATES, 1);
    const auto loss = [&] {
        const results<double> f = run(x, LEM_KEEP_NOTHING, 1, false);
        double sum = 0.0;
        for (int64_t t = 0; t < v.steps; ++t)
            for (int64_t row = 0; row < v.batch; ++row)
                for (int64_t k = 0; k < v.hidden; ++k) {
                    const size_t at = size_t((t * v.batch + row) * v.hidden + k);
                    if (!v.unequal || t < x.lengths[row]) sum += f.parts[0][at] * x.grad_out[at];
                }
        for (size_t k = 0; k < x.grad_y.size(); ++k) sum += f.parts[1][k] * x.grad_y[k] + f.parts[2][k] * x.grad_z[k];
        return sum;
    };
    std::vector<double>* const inputs[] = {&x.u, &x.weight_u, &x.weight_y, &x.weight_z, &x.bias, &x.y_0, &x.z_0};
    for (size_t i = 0; i < 7; ++i)
        for (size_t k = 0; k < inputs[i]->size(); k += 1 + inputs[i]->size() / 7) {
            double& value = (*inputs[i])[k];
            const double was = value, h = 1e-5;
            value = was + h;
            const double above = loss();
            value = was - h;
            const double below = loss();
            value = was;
            const double gap = std::fabs((above - below) / (2 * h) - r.parts[3 + i][k]);
            check(gap < 1e-7, "finite differences", "scalar", v, gap, part_names[3 + i]);
        }
}

// The independent units: y, z, force and the gradients of x, w, s, y_0, z_0. Vectors of exactly the size, so that the
// address sanitizer sees a lane too many.
template <class T> results<T> run_units(int64_t kind, int64_t steps, int64_t count, int64_t threads) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> uniform(-1.0, 1.0);
    const auto draw = [&](int64_t size) {
        std::vector<T> x(size);
        for (T& value : x) value = T(uniform(random));
        return x;
    };
    const std::vector<T> x = draw(steps * count), w = draw(count), y_0 = draw(count), z_0 = draw(count);
    std::vector<T> s = draw(count);
    for (T& value : s) value *= T(0.3);  // larger ones amplify rounding
    const std::vector<T> grad_y = draw(steps * count), grad_y_n = draw(count), grad_z_n = draw(count);
    results<T> found;
    std::vector<std::vector<T>>& out = found.parts;
    for (const int64_t size : {steps * count, steps * count, steps * count, steps * count, count, count, count, count})
        out.emplace_back(size);
    lem_units p{};
    p.struct_bytes = sizeof p, p.item_bytes = sizeof(T), p.kind = kind, p.steps = steps, p.count = count;
    p.threads = threads, p.keep = 1, p.alpha = 0.7;
    p.x = x.data(), p.w = w.data(), p.s = s.data(), p.y_0 = y_0.data(), p.z_0 = z_0.data();
    p.y = out[0].data(), p.z = out[1].data(), p.force = out[2].data();
    p.grad_y = grad_y.data(), p.grad_y_n = grad_y_n.data(), p.grad_z_n = grad_z_n.data();
    p.grad_x = out[3].data(), p.grad_w = out[4].data(), p.grad_s = out[5].data();
    p.grad_y_0 = out[6].data(), p.grad_z_0 = out[7].data();
    check(lem_units_forward(&p) == LEM_OK && lem_units_backward(&p) == LEM_OK, "units refused", "", variant{steps, 1, 1, count}, 0, "");
    return found;
}

template <class T> void units_against_oracle(int64_t kind, int64_t steps, int64_t count, double tolerance) {
    lem_target_choose(target_index("scalar"));
    const results<T> oracle = run_units<T>(kind, steps, count, 1);
    for (int64_t i = 1; lem_target_name(i); ++i) {
        if (!lem_target_supported(i)) continue;
        lem_target_choose(i);
        for (const int64_t threads : {1, 3}) {
            std::string where;
            const double gap = difference(run_units<T>(kind, steps, count, one_thread ? 1 : threads), oracle, where, 8);
            check(gap < tolerance, "units", lem_target_name(i), variant{steps, 1, 1, count}, gap, "");
        }
    }
}

// The coupled units: y, z, what is kept and the gradients of x, the constants, y_0 and z_0, from vectors of exactly the size.
template <class T> results<T> run_coupled(int64_t kind, const variant& v, int64_t threads) {
    std::mt19937 random(11);
    std::uniform_real_distribution<double> uniform(-1.0, 1.0);
    const auto draw = [&](int64_t size, double scale = 1.0) {
        std::vector<T> x(size);
        for (T& value : x) value = T(scale * uniform(random));
        return x;
    };
    const int64_t d = v.hidden, item = v.batch * d, all = v.steps * item, constants = lem_coupled_constants(kind);
    const int64_t reads = lem_coupled_reads(kind), k_d = lem_coupled_maps(kind) * d, kept = std::max<int64_t>(1, lem_coupled_kept(kind));
    const std::vector<T> x = draw(all / d * k_d), weight = draw(reads * d * k_d, 1.0 / double(d)), y_0 = draw(item), z_0 = draw(item);
    const std::vector<T> c = draw(constants * d, 0.5), grad_y = draw(all), grad_y_n = draw(item), grad_z_n = draw(item);
    std::vector<T> back(reads * k_d * d);
    for (int64_t f = 0; f < reads; ++f)
        for (int64_t k = 0; k < d; ++k)
            for (int64_t i = 0; i < k_d; ++i) back[(f * k_d + i) * d + k] = weight[(f * d + k) * k_d + i];
    results<T> found;
    std::vector<std::vector<T>>& out = found.parts;
    for (const int64_t size : {all, all, kept * all, all / d * k_d, constants * item, item, item}) out.emplace_back(size);
    lem_coupled p{};
    p.struct_bytes = sizeof p, p.item_bytes = sizeof(T), p.kind = kind;
    p.steps = v.steps, p.batch = v.batch, p.hidden = d, p.threads = threads, p.keep = 1;
    p.x = x.data(), p.weight = weight.data(), p.weight_back = back.data(), p.c = c.data(), p.y_0 = y_0.data();
    p.y = out[0].data(), p.kept = out[2].data(), p.grad_x = out[3].data(), p.grad_y_0 = out[5].data();
    p.grad_y = grad_y.data(), p.grad_y_n = grad_y_n.data();
    if (lem_coupled_states(kind) == 2) {
        p.z_0 = z_0.data(), p.z = out[1].data(), p.grad_z_n = grad_z_n.data(), p.grad_z_0 = out[6].data();
    } else {
        p.grad_c = out[4].data();
    }
    const int64_t bytes = std::max(lem_coupled_work_bytes(&p, 0), lem_coupled_work_bytes(&p, 1));
    std::vector<char> work(bytes + 64);
    p.work = work.data() + (64 - reinterpret_cast<uintptr_t>(work.data()) % 64) % 64, p.work_bytes = bytes;
    check(lem_coupled_forward(&p) == LEM_OK && lem_coupled_backward(&p) == LEM_OK, "coupled units refused", "", v, 0, "");
    return found;
}

template <class T> void coupled_against_oracle(int64_t kind, const variant& v, double tolerance) {
    lem_target_choose(target_index("scalar"));
    const results<T> oracle = run_coupled<T>(kind, v, 1);
    for (int64_t i = 1; lem_target_name(i); ++i) {
        if (!lem_target_supported(i)) continue;
        lem_target_choose(i);
        std::string where;
        const results<T> one = run_coupled<T>(kind, v, 1), three = run_coupled<T>(kind, v, one_thread ? 1 : 3);
        const double gap = difference(one, oracle, where, 7);
        check(gap < tolerance, "coupled units", lem_target_name(i), v, gap, "");
        check(one.parts == three.parts, "coupled units on threads", lem_target_name(i), v, 0, "");
    }
}

}  // namespace

int main(int argc, char** argv) {
    // For emulators: fewer sizes; and one thread, where a processor that is alone would only wait.
    bool quick = false;
    for (int i = 1; i < argc; ++i) {
        one_thread = one_thread || std::string(argv[i]) == "alone";
        quick = quick || one_thread || std::string(argv[i]) == "quick";
    }
    for (int64_t i = 0; lem_target_name(i); ++i)
        std::printf("target %-8s %s\n", lem_target_name(i), lem_target_supported(i) ? "" : "not on this machine");
    std::vector<variant> variants = {
        {1, 1, 1, 1}, {3, 2, 1, 7}, {40, 3, 3, 17}, {13, 7, 17, 33}, {9, 5, 2, 8}, {5, 33, 2, 16}, {4, 130, 3, 12},
        {6, 3, 300, 9}, {3, 13, 2, 100}, {2, 9, 5, 129}, {150, 1, 1, 4}, {2, 16, 20, 530},
    };
    if (quick) variants.resize(6);
    const size_t sizes = variants.size() < 9 ? variants.size() : 9;
    for (size_t i = 0; i < sizes; ++i)
        for (int kind = 1; kind < (quick ? 5 : 10); ++kind) {
            variant v = variants[i];
            v.gated = kind != 1 && kind != 7;
            v.clipped = kind == 2 || kind == 8;
            v.reverse = kind == 3 || kind == 6 || kind == 7;
            v.masked = kind == 4 || kind == 7 || kind == 8;
            v.unequal = kind >= 5 && kind <= 8;
            v.bias = kind != 9;
            variants.push_back(v);
        }
    for (size_t i = 0; i < variants.size(); ++i) {
        against_oracle<double>(variants[i], unsigned(i), 1e-11);
        against_oracle<float>(variants[i], unsigned(i), 2e-4);
    }
    for (const int64_t kind : {LEM_UNITS_OSCILLATOR, LEM_UNITS_RELU})
        for (const int64_t count : {1, 7, 16, 33, 4100}) {
            units_against_oracle<double>(kind, 40, count, 1e-11);
            units_against_oracle<float>(kind, 40, count, 2e-4);
        }
    for (int64_t kind = LEM_COUPLED_OSCILLATOR; kind <= LEM_COUPLED_LSTM; ++kind)
        for (const variant& v : {variant{1, 1, 1, 1}, variant{9, 3, 1, 7}, variant{12, 7, 1, 33}, variant{5, 70, 1, 16}, variant{4, 130, 1, 20}}) {
            coupled_against_oracle<double>(kind, v, 1e-11);
            coupled_against_oracle<float>(kind, v, 2e-4);
        }
    for (int kind = 0; kind < 6; ++kind) {
        variant v{6, 3, 2, 5};
        v.gated = kind != 1, v.clipped = kind == 2, v.reverse = kind == 3, v.masked = kind == 4, v.unequal = kind > 2;
        against_differences(v);
    }
    std::printf("%d failures\n", failures);
    return failures ? 1 : 0;
}

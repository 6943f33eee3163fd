// Every target of this machine against the scalar oracle, and the oracle against finite differences.
// Built with the library (CMake option LEM_TESTS); run by `make check-all`, also under the sanitizers and under emulation.
// Exits with the number of failures. The target "wide" is the AVX-512 configuration compiled for this machine's own
// instructions, so that its index arithmetic is run everywhere.
#include <chrono>
#include <thread>
#include "test_run.h"

namespace {

// The largest difference of any part, relative to the largest value of that part.
template <class T> double difference(const results<T>& a, const results<T>& b, std::string& where, size_t parts = all_parts) {
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
    const results<T> oracle = run(x, LEM_KEEP_STORE, 1);
    for (int64_t i = 1; lem_target_name(i); ++i) {
        if (!lem_target_supported(i) || (v.bfloat16 && !lem_target_bfloat16(i))) continue;
        const std::string name = lem_target_name(i);
        lem_target_choose(i);
        const results<T> kept = run(x, LEM_KEEP_STORE, 1);
        std::string where;
        double gap = difference(kept, oracle, where);
        check(gap < tolerance, "against the oracle", name, v, gap, where);
        // What is kept changes nothing, to the bit.
        for (const int64_t keep : {LEM_KEEP_RECOMPUTE, LEM_KEEP_BOUNDED}) {
            gap = difference(run(x, keep, 1), kept, where);
            check(gap == 0.0, keep == LEM_KEEP_RECOMPUTE ? "gates computed again" : "segments run again", name, v, gap, where);
        }
        gap = difference(run(x, LEM_KEEP_NOTHING, 1, false), kept, where, 3);
        check(gap == 0.0, "nothing kept", name, v, gap, where);
        if (one_thread) continue;
        // Threads change the sums over rows only.
        for (const int64_t threads : {2, 3, 8}) {
            results<T> split = run(x, LEM_KEEP_STORE, threads, true, 1);
            gap = difference(split, kept, where);
            check(gap < tolerance, "threads", name, v, gap, where);
            for (const size_t part : {4, 5, 6, 7}) split.parts[part] = kept.parts[part];
            gap = difference(split, kept, where);
            check(gap == 0.0, "threads, to the bit", name, v, gap, where);
        }
        // Threads that share a group's units add nothing in another order: equal to the bit, weights too.
        if (v.batch > 3) continue;
        for (const int64_t keep : {LEM_KEEP_STORE, LEM_KEEP_RECOMPUTE, LEM_KEEP_BOUNDED}) {
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
    results<double> r = run(x, LEM_KEEP_STORE, 1);
    const auto loss = [&] {
        const results<double> f = run(x, LEM_KEEP_NOTHING, 1, false);
        double sum = 0.0;
        for (int64_t t = 0; t < v.steps; ++t)
            for (int64_t row = 0; row < v.batch; ++row)
                for (int64_t k = 0; k < v.d_y(); ++k) {
                    const size_t at = size_t((t * v.batch + row) * v.d_y() + k);
                    if (!v.unequal || t < x.lengths[row]) sum += f.parts[0][at] * x.grad_out[at];
                }
        for (size_t k = 0; k < x.grad_y.size(); ++k) sum += f.parts[1][k] * x.grad_y[k];
        for (size_t k = 0; k < x.grad_z.size(); ++k) sum += f.parts[2][k] * x.grad_z[k];
        return sum;
    };
    const auto sum_over_rows = [&](std::vector<double> rows, size_t units) {
        for (size_t i = units; i < rows.size(); ++i) rows[i % units] += rows[i];
        return rows;
    };
    r.parts[11] = sum_over_rows(r.parts[11], x.y_start.size());
    r.parts[12] = sum_over_rows(r.parts[12], x.z_start.size());
    std::vector<double>* const inputs[] = {&x.u,   &x.weight_u, &x.weight_y, &x.weight_z, &x.bias,
                                           &x.y_0, &x.z_0,      &x.elapsed,  &x.y_start,  &x.z_start};
    for (size_t i = 0; i < 10; ++i)
        for (size_t k = 0; k < inputs[i]->size(); k += 1 + inputs[i]->size() / 7) {
            if ((i == 7 && !v.elapsed) || (i > 7 && !v.resets)) continue;
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

// One step from operands that are bfloat16 numbers already: nothing is rounded on the way to z, so that the sums must
// agree as closely as those of floats. Products of the unrounded operands must not.
void exact_words(variant v) {
    data<float> x(v, 8);
    for (std::vector<float>* const part : {&x.u, &x.weight_u, &x.weight_y, &x.weight_z, &x.y_0, &x.z_0})
        for (float& value : *part) value = std::round(value * 64.0f) / 64.0f;
    lem_target_choose(target_index("scalar"));
    x.v.bfloat16 = false;
    const results<float> plain = run(x, LEM_KEEP_NOTHING, 1, false);
    x.v.bfloat16 = true;
    for (int64_t i = 0; lem_target_name(i); ++i) {
        if (!lem_target_supported(i) || !lem_target_bfloat16(i)) continue;
        lem_target_choose(i);
        const auto gap_of_z = [&](const results<float>& r) {
            double gap = 0.0;
            for (size_t k = 0; k < r.parts[2].size(); ++k) gap = std::fmax(gap, std::fabs(double(r.parts[2][k]) - double(plain.parts[2][k])));
            return gap;
        };
        double gap = gap_of_z(run(x, LEM_KEEP_NOTHING, 1, false));
        check(gap < 2e-6, "exact bfloat16 operands", lem_target_name(i), v, gap, "z_n");
        data<float> other = x;
        for (float& value : other.weight_y) value *= 1.0f + 1.0f / 512.0f;  // rounded away, or up: never what it was
        lem_target_choose(target_index("scalar"));
        other.v.bfloat16 = false;
        const results<float> unrounded = run(other, LEM_KEEP_NOTHING, 1, false);
        gap = gap_of_z(unrounded);
        check(gap > 2e-6, "the comparison of exact operands", lem_target_name(i), v, gap, "z_n");
    }
}

// An elapsed time of 1 everywhere changes nothing, to the bit; neither do resets that never happen.
template <class T> void without_effect(variant v) {
    for (int64_t i = 0; lem_target_name(i); ++i) {
        if (!lem_target_supported(i)) continue;
        lem_target_choose(i);
        for (const int64_t keep : {LEM_KEEP_STORE, LEM_KEEP_RECOMPUTE, LEM_KEEP_BOUNDED}) {
            v.elapsed = v.resets = false;
            data<T> x(v, 5);
            const results<T> plain = run(x, keep, 1);
            x.v.elapsed = x.v.resets = true;
            for (T& e : x.elapsed) e = T(1);
            for (uint8_t& r : x.resets) r = 0;
            std::string where;
            const double gap = difference(run(x, keep, 1), plain, where, 10);
            check(gap == 0.0, "an elapsed time of 1", lem_target_name(i), v, gap, where);
        }
    }
}

// Weights that one target packed are refused by every other; a step is the first step of a sequence.
template <class T> void packed_once(const variant& v) {
    const data<T> x(v, 6);
    for (int64_t i = 0; lem_target_name(i); ++i) {
        if (!lem_target_supported(i)) continue;
        lem_target_choose(i);
        const results<T> whole = run(x, LEM_KEEP_NOTHING, 1, false);
        std::vector<T> y = x.y_0, z = x.z_0;
        lem_problem p{};
        p.struct_bytes = sizeof p, p.item_bytes = sizeof(T), p.steps = 1, p.batch = v.batch, p.inputs = v.inputs;
        p.hidden = v.hidden, p.outputs = v.outputs, p.gated = v.gated, p.threads = 1, p.dt = v.dt, p.segment = 1;
        p.u = x.u.data(), p.u_row = v.inputs, p.bias = x.bias.data();
        p.weight_u = x.weight_u.data(), p.weight_y = x.weight_y.data(), p.weight_z = x.weight_z.data();
        p.elapsed = v.elapsed ? x.elapsed.data() : nullptr;
        p.y_0 = p.y_n = y.data(), p.z_0 = p.z_n = z.data();
        guarded packed(lem_packed_bytes(&p)), work(lem_work_bytes(&p, 0));
        p.work = work.start, p.work_bytes = work.bytes;
        bool good = lem_pack(&p, packed.start) == LEM_OK && lem_step(&p, packed.start) == LEM_OK;
        good = good && packed.intact() && work.intact() && std::equal(y.begin(), y.end(), whole.parts[0].begin());
        check(good, "a step", lem_target_name(i), v, 0, "");
        const int64_t inputs = p.inputs--;
        check(lem_step(&p, packed.start) == LEM_FOREIGN_PACKED, "weights of another size", lem_target_name(i), v, 0, "");
        p.inputs = inputs;
        for (int64_t k = 0; lem_target_name(k); ++k) {
            if (k == i || !lem_target_supported(k)) continue;
            lem_target_choose(k);
            guarded other(lem_work_bytes(&p, 0));
            p.work = other.start, p.work_bytes = other.bytes;
            check(lem_step(&p, packed.start) == LEM_FOREIGN_PACKED, "weights of another target", lem_target_name(k), v, 0, "");
        }
    }
}

// A call that is to stop returns, whoever shares its steps, writes into its own memory alone, and leaves nothing behind.
template <class T> void interrupted(const variant& v) {
    const data<T> x(v, 7);
    for (int64_t i = 0; lem_target_name(i); ++i) {
        if (!lem_target_supported(i)) continue;
        lem_target_choose(i);
        for (const int64_t keep : {LEM_KEEP_STORE, LEM_KEEP_RECOMPUTE, LEM_KEEP_BOUNDED})
            for (const int64_t team : {1, 2, 3, -3}) {
                if (one_thread && team != 1) continue;
                const results<T> before = run(x, keep, v.batch * std::abs(team), true, team);
                for (const int when : {1, 2}) run(x, keep, v.batch * std::abs(team), true, team, when);
                std::string where;
                const double gap = difference(run(x, keep, v.batch * std::abs(team), true, team), before, where);
                check(gap == 0.0, "after an interrupted call", lem_target_name(i), v, gap, where);
            }
    }
}

// A flag that is set while the call runs, at any moment: the call returns, complete or not.
void interrupted_midway(int64_t team, int64_t keep) {
    const variant v{400, 1, 2, 70};
    const data<float> x(v, 8);
    for (int wait = 0; wait < 12; ++wait) {
        int32_t stop = 0;
        lem_problem p{};
        std::vector<float> out(v.steps * v.hidden), y(v.hidden), z(v.hidden);
        p.struct_bytes = sizeof p, p.item_bytes = 4, p.steps = v.steps, p.batch = 1, p.inputs = v.inputs, p.hidden = v.hidden;
        p.gated = 1, p.threads = std::abs(team), p.team = team, p.keep = keep, p.segment = 20, p.dt = v.dt;
        p.u = x.u.data(), p.u_time = p.u_row = v.inputs, p.bias = x.bias.data();
        p.weight_u = x.weight_u.data(), p.weight_y = x.weight_y.data(), p.weight_z = x.weight_z.data();
        p.y_0 = x.y_0.data(), p.z_0 = x.z_0.data(), p.out = out.data(), p.y_n = y.data(), p.z_n = z.data(), p.stop = &stop;
        guarded saved(lem_saved_bytes(&p)), work(lem_work_bytes(&p, 0));
        p.saved = saved.start, p.saved_bytes = saved.bytes, p.work = work.start, p.work_bytes = work.bytes;
        std::thread setter([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(150 * wait));
            __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        });
        const int64_t status = lem_forward(&p);
        setter.join();
        const bool good = (status == LEM_OK || status == LEM_INTERRUPTED) && saved.intact() && work.intact();
        check(good, "interrupted midway", lem_target_name(lem_target_chosen()), v, double(status), "");
    }
}

void interruptions() {
    for (const bool gated : {true, false}) {
        variant v{60, 2, 3, 37};
        v.gated = gated, v.unequal = v.elapsed = v.resets = true, v.outputs = gated ? 0 : 20;
        interrupted<float>(v);
    }
    lem_target_choose(target_index("baseline"));
    for (const int64_t keep : {LEM_KEEP_STORE, LEM_KEEP_BOUNDED}) {
        interrupted_midway(1, keep);
        if (!one_thread) interrupted_midway(2, keep), interrupted_midway(3, keep);
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
    bool quick = false, interrupt = false;  // "interrupt": only what happens to calls that are to stop
    for (int i = 1; i < argc; ++i) {
        one_thread = one_thread || std::string(argv[i]) == "alone";
        quick = quick || one_thread || std::string(argv[i]) == "quick";
        interrupt = interrupt || std::string(argv[i]) == "interrupt";
    }
    for (int64_t i = 0; lem_target_name(i); ++i)
        std::printf("target %-8s %s\n", lem_target_name(i), lem_target_supported(i) ? "" : "not on this machine");
    if (interrupt) {
        interruptions();
        std::printf("%d failures\n", failures);
        return failures ? 1 : 0;
    }
    std::vector<variant> variants = {
        {1, 1, 1, 1}, {3, 2, 1, 7}, {40, 3, 3, 17}, {13, 7, 17, 33}, {9, 5, 2, 8}, {5, 33, 2, 16}, {4, 130, 3, 12},
        {6, 3, 300, 9}, {3, 13, 2, 100}, {2, 9, 5, 129}, {150, 1, 1, 4}, {2, 16, 20, 530},
    };
    if (quick) variants.resize(6);
    const size_t sizes = variants.size() < 9 ? variants.size() : 9;
    for (size_t i = 0; i < sizes; ++i)
        for (int kind = 1; kind < (quick ? 8 : 18); ++kind) {
            variant v = variants[i];
            const bool more = quick ? kind > 4 : kind > 9;  // elapsed times, resets, fewer units of y than of z
            if (more) {
                const int which = quick ? kind + 5 : kind;
                v.elapsed = which != 11 && which != 15, v.resets = which == 11 || which > 12;
                v.outputs = which > 11 ? std::max<int64_t>(1, which == 12 ? v.hidden - 1 : v.hidden / 3) : 0;
                v.gated = which != 14, v.clipped = which == 16, v.reverse = which == 13 || which == 14 || which == 16;
                v.masked = which == 13 || which == 17, v.unequal = which > 12, v.dt = which % 2 ? 1.0 : 0.9;
                variants.push_back(v);
                continue;
            }
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
        variant rounded = variants[i];
        rounded.bfloat16 = true;
        against_oracle<float>(rounded, unsigned(i), 3e-2);  // a last bit of a float may decide how an operand is rounded
    }
    for (const variant& v : {variant{1, 3, 2, 7}, variant{1, 9, 5, 33}, variant{1, 2, 1, 64}, variant{1, 1, 3, 130}}) exact_words(v);
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
    for (int kind = 0; kind < 14; ++kind) {
        variant v{6, 3, 2, 5};
        v.gated = kind % 7 != 1, v.clipped = kind % 7 == 2, v.reverse = kind % 7 == 3, v.masked = kind % 7 == 4, v.unequal = kind % 7 > 2;
        v.elapsed = kind > 6, v.resets = kind % 7 >= 2 && kind > 6, v.outputs = kind > 8 ? 3 : 0, v.dt = kind > 10 ? 1.0 : 0.9;
        against_differences(v);
    }
    for (const bool gated : {true, false})
        for (const bool reverse : {true, false}) {
            variant v{40, 5, 3, 37};
            v.gated = gated, v.reverse = reverse, v.unequal = v.masked = true;
            without_effect<float>(v);
            without_effect<double>(v);
            v.clipped = gated, v.outputs = 20;
            without_effect<float>(v);
            v = {1, 3, 2, 21}, v.gated = gated, v.elapsed = reverse, v.outputs = reverse ? 7 : 0;
            packed_once<float>(v);
            packed_once<double>(v);
        }
    interruptions();
    std::printf("%d failures\n", failures);
    return failures ? 1 : 0;
}

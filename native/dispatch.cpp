// The C interface: checks every size it could overrun, plans which thread runs which rows, and forwards to the target.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include "choice.h"
#include "interrupt.h"
#include "target.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

enum needs { nothing, avx2, avx512, avx512bf16 };

constexpr struct { const lem_target* target; needs what; } targets[] = {
    {&lem_target_scalar, nothing}, {&lem_target_baseline, nothing},
#if defined(LEM_X86)
    {&lem_target_avx2, avx2}, {&lem_target_avx512, avx512},
#if defined(LEM_BF16)
    {&lem_target_avx512bf16, avx512bf16},
#endif
#endif
#if defined(LEM_TEST_TARGETS)
    {&lem_target_wide, avx2},
#endif
};
constexpr int64_t target_count = sizeof(targets) / sizeof(*targets);

bool supported(int64_t index) {
    if (index < 0 || index >= target_count) return false;
#if defined(LEM_X86)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (targets[index].what == avx2) return has_avx2;
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (targets[index].what == avx512) return has_avx512;
    if (targets[index].what == avx512bf16) return has_avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    return true;
}

int64_t best() {
    int64_t index = target_count - 1;
#if defined(LEM_TEST_TARGETS)
    --index;
#endif
    while (!supported(index)) --index;
    return index;
}

int64_t chosen = -1;  // set once by lem_target_choose or by the first call

const lem_target& target() {
    if (chosen < 0) chosen = best();
    return *targets[chosen].target;
}

// In front of what forward keeps: backward must meet the same rows in the same order.
struct saved_header {
    int64_t magic, groups, steps, batch, hidden, outputs;
    int32_t target, item_bytes, keep, flags;  // flags: elapsed 1, bfloat16 2
};
// In front of packed weights: a step must read them as they were written.
struct packed_header {
    int64_t magic, inputs, hidden, outputs;
    int32_t target, item_bytes, gated, bfloat16, zero[4];
};
static_assert(sizeof(saved_header) == 64 && sizeof(packed_header) == 64, "what follows is aligned");
constexpr int64_t magic = 0x324d454c, packed_magic = 0x504d454c;
constexpr double team_step_work = 1.2e5;  // operations of a step for each member of a team beyond the first
constexpr int64_t few_rows = 1;  // rows per thread; measured: one row gains from a team
constexpr int64_t group_rows = 64;  // more rows at a time gain nothing and leave the second-level cache

int32_t flags(const lem_problem& p) { return (p.elapsed ? 1 : 0) | (p.bfloat16 ? 2 : 0); }
int64_t outputs(const lem_problem& p) { return p.outputs ? p.outputs : p.hidden; }

int64_t padded(const lem_problem& p, int64_t units) {
    const int64_t lanes = target().vector_bytes / p.item_bytes;
    return lanes < 1 ? units : (units + lanes - 1) / lanes * lanes;
}

bool valid(const lem_problem* p) {
    if (!p || p->struct_bytes != int64_t(sizeof(lem_problem)) || (p->item_bytes != 4 && p->item_bytes != 8)) return false;
    const int64_t most = int64_t(1) << 40;
    for (const int64_t size : {p->steps, p->batch, p->inputs, p->hidden})
        if (size < 1 || size > most) return false;
    if (p->hidden > (1 << 24) || p->inputs > (1 << 24) || p->steps > most / p->batch) return false;
    if (p->outputs < 0 || p->outputs > p->hidden) return false;
    if (p->bfloat16 && (p->item_bytes != 4 || !target().bfloat16)) return false;
    if (p->elapsed && !(p->dt <= 1.0 && (!p->clipped || p->clip_low <= 1.0))) return false;
    if (p->keep < LEM_KEEP_NOTHING || p->keep > LEM_KEEP_BOUNDED || p->threads < 1 || p->threads > 4096 || p->team < -4096 || p->team > 4096) return false;
    if (p->keep == LEM_KEEP_BOUNDED && p->segment < 1) return false;
    if (p->lengths)
        for (int64_t row = 0; row < p->batch; ++row)
            if (p->lengths[row] < 1 || p->lengths[row] > p->steps) return false;
    return true;
}

int64_t saved_size(const lem_problem& p) {
    const int64_t y = padded(p, outputs(p)) * p.batch * p.item_bytes, z = padded(p, p.hidden) * p.batch * p.item_bytes;
    const int64_t gates = (p.gated && p.elapsed ? 3 : 2) * (y + z);
    switch (p.keep) {
        case LEM_KEEP_STORE: return int64_t(sizeof(saved_header)) + p.steps * (z + gates);
        case LEM_KEEP_RECOMPUTE: return int64_t(sizeof(saved_header)) + p.steps * z;
        case LEM_KEEP_BOUNDED: return int64_t(sizeof(saved_header)) + (p.steps + p.segment - 1) / p.segment * (y + z);
        default: return 0;
    }
}

// How a call is spread: groups of rows, and how many threads run each group together.
struct split {
    int64_t threads, groups, team;
    bool share_steps;
};

int64_t processors() {
#if defined(_OPENMP)
    return omp_get_num_procs();
#else
    return 1;
#endif
}

// Where every member has a processor, one that is late was interrupted by another program: to give up our own would make it
// wait for us in turn, at every meeting. So wait for about a millisecond. Where there are more members, give way at once.
int64_t patience(int64_t team) { return team <= processors() ? 32768 : 64; }

// Threads that run one group of `rows` rows together, and whether they share its steps. A meeting costs a fraction of a
// microsecond, twice a step: the step must be worth it. Members beyond the processors would wait for each other's turn.
int64_t team_for(const lem_problem& p, int64_t rows, int64_t free, bool& share_steps) {
    const int64_t lanes = std::max<int64_t>(1, target().vector_bytes / p.item_bytes);
    const int64_t pairs = (p.hidden + 2 * lanes - 1) / (2 * lanes);
    const double step = 8.0 * double(p.hidden) * double(p.hidden + p.inputs) * double(rows) * double(p.item_bytes) / 4;
    share_steps = p.team ? p.team > 0 : step >= team_step_work;
    const int64_t worth = share_steps ? int64_t(1) + int64_t(std::min(step / team_step_work, 4096.0)) : free;
    const int64_t most = p.team ? std::abs(p.team) : std::min(processors(), worth);
    return std::max<int64_t>(1, std::min({most, free, pairs}));
}

double operations(const lem_problem& p) {  // of a forward pass
    return 8.0 * double(p.hidden) * double(p.hidden + p.inputs) * double(p.batch) * double(p.steps);
}

split split_for(const lem_problem& p) {
    const double work = operations(p);
    const int64_t worth = p.team ? p.threads : int64_t(1) + int64_t(std::min(work / 1e6, 4096.0));
    const int64_t threads = std::min(p.threads, worth);
    // Rows are divided first. Too few of them for a thread waste its registers: then threads share them instead.
    const int64_t wanted = p.team ? std::abs(p.team) : std::min(processors(), threads * few_rows / p.batch);
    bool share_steps;
    int64_t team = wanted < 2 ? 1 : team_for(p, p.batch, std::min(wanted, threads), share_steps);
    if (team > 1 && !share_steps) team = 1;
    const int64_t by_rows = std::min(threads / team, p.batch), group = by_rows * group_rows;
    return {by_rows * team, by_rows * ((p.batch + group - 1) / group), team, team > 1};
}

// The same for the groups that the forward call has made.
split split_back(const lem_problem& p, int64_t groups) {
    split s = {std::min(p.threads, groups), groups, 1, false};
    s.team = team_for(p, (p.batch + groups - 1) / groups, p.threads / s.threads, s.share_steps);
    s.threads *= s.team;
    return s;
}

int64_t plan_bytes(const lem_problem& p, int64_t groups) { return (8 * (2 * groups + 1 + 2 * p.batch) + 63) / 64 * 64; }

lem_plan make_plan(const lem_problem& p, const split& how, char* memory) {
    const int64_t groups = how.groups;
    int64_t* const begin = reinterpret_cast<int64_t*>(memory);
    int64_t *const before = begin + groups + 1, *const row = before + groups, *const length = row + p.batch;
    for (int64_t g = 0; g <= groups; ++g) begin[g] = p.batch * g / groups;
    if (!p.lengths) {
        for (int64_t i = 0; i < p.batch; ++i) row[i] = i, length[i] = p.steps;
    } else {
        // Longest first, dealt to the groups to and fro so that all have about the same to do. `length` holds the
        // sorted rows until they are dealt.
        for (int64_t i = 0; i < p.batch; ++i) row[i] = i;
        std::sort(row, row + p.batch, [&](int64_t a, int64_t b) {
            return p.lengths[a] != p.lengths[b] ? p.lengths[a] > p.lengths[b] : a < b;
        });
        std::copy(row, row + p.batch, length);
        for (int64_t g = 0; g <= groups; ++g) begin[g] = 0;
        const auto group_of = [&](int64_t i) { return i / groups % 2 ? groups - 1 - i % groups : i % groups; };
        for (int64_t i = 0; i < p.batch; ++i) ++begin[group_of(i) + 1];
        for (int64_t g = 0; g < groups; ++g) begin[g + 1] += begin[g];
        for (int64_t g = 0; g < groups; ++g) before[g] = begin[g];
        for (int64_t i = 0; i < p.batch; ++i) row[before[group_of(i)]++] = length[i];
        for (int64_t i = 0; i < p.batch; ++i) length[i] = p.lengths[row[i]];
    }
    int64_t total = 0;
    for (int64_t g = 0; g < groups; ++g) {
        before[g] = total;
        for (int64_t i = begin[g]; i < begin[g + 1]; ++i) total += length[i];
    }
    return {ptrdiff_t(how.threads), ptrdiff_t(groups), ptrdiff_t(how.threads), ptrdiff_t(how.team), how.share_steps, patience(how.team),
            begin, row, length, before};
}

// A plan for counting memory only: all groups of the largest size.
struct size_plan {
    int64_t begin[2], row[1] = {0}, length[1], before[1] = {0};
    lem_plan plan;
    size_plan(const lem_problem& p, const split& how)
        : begin{0, (p.batch + how.groups - 1) / how.groups}, length{p.steps},
          plan{ptrdiff_t(how.threads), 1, ptrdiff_t(how.threads), ptrdiff_t(how.team), how.share_steps, patience(how.team),
               begin, row, length, before} {}
};

int64_t work_size(const lem_problem& p, const split& how, bool backward) {
    const size_plan sizes(p, how);
    return plan_bytes(p, how.groups) + target().work_bytes(p, sizes.plan, backward);
}

thread_choice choice;

// Run a plan on as many of its threads as are worth it; a call that says how its threads work together takes them all.
template <class F> int64_t run_plan(thread_choice::kind what, const lem_problem& p, lem_plan& plan, double work, const F& call) {
    const interrupt::watch watch(p.stop, work + 100.0 * double(p.steps));
    plan.stop = watch.stop;
    if (p.team)
        call();
    else
        choice.run(what, work, plan.threads, [&](int64_t threads) {
            plan.running = ptrdiff_t(threads);
            call();
            return !watch.stopped();
        });
    return watch.stopped() ? LEM_INTERRUPTED : LEM_OK;
}

int64_t read_header(const lem_problem& p, int64_t& groups) {
    if (!p.saved || p.saved_bytes < saved_size(p)) return LEM_SMALL_BUFFER;
    saved_header h;
    std::memcpy(&h, p.saved, sizeof h);
    target();
    const bool same = h.magic == magic && h.target == chosen && h.item_bytes == p.item_bytes && h.steps == p.steps &&
                      h.batch == p.batch && h.hidden == p.hidden && h.outputs == outputs(p) && h.keep == p.keep &&
                      h.flags == flags(p);
    if (!same || h.groups < 1 || h.groups > p.batch) return LEM_FOREIGN_SAVED;
    groups = h.groups;
    return LEM_OK;
}

}  // namespace

int64_t lem_saved_bytes(const lem_problem* p) { return valid(p) ? saved_size(*p) : -LEM_BAD_PROBLEM; }

int64_t lem_work_bytes(const lem_problem* p, int64_t backward) {
    if (!valid(p)) return -LEM_BAD_PROBLEM;
    const split forward = split_for(*p);
    if (!backward) return work_size(*p, forward, false);
    int64_t groups = forward.groups;  // a forecast has nothing saved yet
    if (p->saved)
        if (const int64_t status = read_header(*p, groups)) return -status;
    return work_size(*p, split_back(*p, groups), true);
}

int64_t lem_forward(const lem_problem* p) {
    if (!valid(p) || !p->u || !p->weight_u || !p->weight_y || !p->weight_z || !p->y_0 || !p->z_0) return LEM_BAD_PROBLEM;
    if (!p->y_n || !p->z_n || !p->out || !p->work) return LEM_BAD_PROBLEM;
    const split how = split_for(*p);
    if (p->work_bytes < work_size(*p, how, false)) return LEM_SMALL_BUFFER;
    if (p->keep && (!p->saved || p->saved_bytes < saved_size(*p))) return LEM_SMALL_BUFFER;
    char* const saved = static_cast<char*>(p->saved);
    if (p->keep == LEM_KEEP_BOUNDED) std::memset(saved, 0, size_t(saved_size(*p)));  // not all of it may be used
    if (p->keep) {
        target();
        const saved_header h = {magic, how.groups, p->steps, p->batch, p->hidden, outputs(*p),
                                int32_t(chosen), int32_t(p->item_bytes), int32_t(p->keep), flags(*p)};
        std::memcpy(saved, &h, sizeof h);
    }
    char* const work = static_cast<char*>(p->work);
    lem_plan plan = make_plan(*p, how, work);
    return run_plan(thread_choice::lem_forward, *p, plan, operations(*p), [&] {
        target().forward(*p, plan, p->keep ? saved + sizeof(saved_header) : nullptr, work + plan_bytes(*p, how.groups));
    });
}

int64_t lem_backward(const lem_problem* p) {
    if (!valid(p) || p->keep == LEM_KEEP_NOTHING || !p->u || !p->weight_u || !p->weight_y || !p->weight_z)
        return LEM_BAD_PROBLEM;
    if (!p->y_0 || !p->z_0 || (!p->out && p->keep != LEM_KEEP_BOUNDED) || !p->work) return LEM_BAD_PROBLEM;
    if (!p->grad_weight_u || !p->grad_weight_y || !p->grad_weight_z || !p->grad_y_0 || !p->grad_z_0) return LEM_BAD_PROBLEM;
    if (p->resets && (!p->grad_y_start || !p->grad_z_start)) return LEM_BAD_PROBLEM;
    if (p->grad_elapsed && !p->elapsed) return LEM_BAD_PROBLEM;
    int64_t groups;
    if (const int64_t status = read_header(*p, groups)) return status;
    const split how = split_back(*p, groups);
    if (p->work_bytes < work_size(*p, how, true)) return LEM_SMALL_BUFFER;
    char* const work = static_cast<char*>(p->work);
    lem_plan plan = make_plan(*p, how, work);
    if (p->grad_elapsed) std::memset(p->grad_elapsed, 0, size_t(p->steps * p->batch * p->item_bytes));  // not all are used
    return run_plan(thread_choice::lem_backward, *p, plan, 2.0 * operations(*p), [&] {
        target().backward(*p, plan, static_cast<const char*>(p->saved) + sizeof(saved_header), work + plan_bytes(*p, groups));
    });
}

namespace {

bool valid(const lem_units* p, bool backward) {
    if (!p || p->struct_bytes != int64_t(sizeof(lem_units)) || (p->item_bytes != 4 && p->item_bytes != 8)) return false;
    const int64_t most = int64_t(1) << 40;
    if (p->steps < 1 || p->count < 1 || p->count > most || p->steps > most / p->count) return false;
    if (p->threads < 1 || p->threads > 4096 || p->kind < LEM_UNITS_OSCILLATOR || p->kind > LEM_UNITS_RELU) return false;
    const bool swings = p->kind == LEM_UNITS_OSCILLATOR;
    if (!p->w || !p->y_0 || !p->y || (swings && (!p->s || !p->z_0 || !p->z))) return false;
    if (swings && (p->keep || backward) && !p->force) return false;
    if (!backward) return p->x;
    return p->keep && p->grad_x && p->grad_w && p->grad_y_0 && (!swings || (p->grad_s && p->grad_z_0));
}

int64_t run_units(const lem_units* given, bool backward) {
    if (!valid(given, backward)) return LEM_BAD_PROBLEM;
    lem_units p = *given;
    p.threads = std::min(p.threads, int64_t(1) + int64_t(std::min(double(p.steps) * double(p.count) / 1e5, 4096.0)));
    const double work = 30.0 * double(p.steps) * double(p.count);
    const interrupt::watch watch(p.stop, work + 100.0 * double(p.steps));
    p.stop = watch.stop;
    choice.run(backward ? thread_choice::units_backward : thread_choice::units_forward, work, p.threads, [&](int64_t threads) {
        p.threads = threads;
        target().units(p, backward);
        return !watch.stopped();
    });
    return watch.stopped() ? LEM_INTERRUPTED : LEM_OK;
}

}  // namespace

int64_t lem_units_forward(const lem_units* p) { return run_units(p, false); }
int64_t lem_units_backward(const lem_units* p) { return run_units(p, true); }

namespace {

bool valid(const lem_coupled* p) {
    if (!p || p->struct_bytes != int64_t(sizeof(lem_coupled)) || (p->item_bytes != 4 && p->item_bytes != 8)) return false;
    const int64_t most = int64_t(1) << 40;
    if (p->steps < 1 || p->batch < 1 || p->hidden < 1 || p->hidden > (1 << 24)) return false;
    if (p->batch > most / p->hidden || p->steps > most / (p->batch * p->hidden)) return false;
    return p->threads >= 1 && p->threads <= 4096 && p->kind >= LEM_COUPLED_OSCILLATOR && p->kind <= LEM_COUPLED_LSTM;
}

int64_t coupled_threads(const lem_coupled& p) {
    const double work = 2.0 * double(lem_coupled_maps(p.kind) * p.hidden) * double(p.hidden) * double(p.batch) * double(p.steps);
    return std::min({p.threads, p.batch, int64_t(1) + int64_t(std::min(work / 1e6, 4096.0))});
}

int64_t run_coupled(const lem_coupled* given, bool backward) {
    if (!valid(given) || !given->c || !given->y_0 || !given->y) return LEM_BAD_PROBLEM;
    lem_coupled p = *given;
    const bool two = lem_coupled_states(p.kind) == 2;
    if (two && (!p.z_0 || !p.z || p.grad_c)) return LEM_BAD_PROBLEM;
    if (p.keep && !p.kept && lem_coupled_kept(p.kind)) return LEM_BAD_PROBLEM;
    if (!backward && (!p.x || !p.weight)) return LEM_BAD_PROBLEM;
    if (backward && (!p.keep || !p.weight_back || !p.grad_x || !p.grad_y_0 || (two && !p.grad_z_0))) return LEM_BAD_PROBLEM;
    p.threads = coupled_threads(p);
    const int64_t needed = p.threads * target().coupled_bytes(p, backward);
    if (p.work_bytes < needed || (needed && !p.work)) return LEM_SMALL_BUFFER;
    const double work = 2.0 * double(lem_coupled_maps(p.kind) * p.hidden) * double(p.hidden) * double(p.batch) * double(p.steps);
    const interrupt::watch watch(p.stop, work + 100.0 * double(p.steps));
    p.stop = watch.stop;
    choice.run(backward ? thread_choice::coupled_backward : thread_choice::coupled_forward, work, p.threads, [&](int64_t threads) {
        p.threads = threads;
        target().coupled(p, backward);
        return !watch.stopped();
    });
    return watch.stopped() ? LEM_INTERRUPTED : LEM_OK;
}

}  // namespace

int64_t lem_coupled_trait(int64_t kind, int64_t trait) {
    if (kind < LEM_COUPLED_OSCILLATOR || kind > LEM_COUPLED_LSTM) return -1;
    switch (trait) {
        case 0: return lem_coupled_constants(kind);
        case 1: return lem_coupled_kept(kind);
        case 2: return lem_coupled_states(kind);
        case 3: return lem_coupled_reads(kind);
        case 4: return lem_coupled_maps(kind);
        default: return -1;
    }
}
int64_t lem_coupled_work_bytes(const lem_coupled* p, int64_t backward) {
    return valid(p) ? coupled_threads(*p) * target().coupled_bytes(*p, backward) : -LEM_BAD_PROBLEM;
}
int64_t lem_coupled_forward(const lem_coupled* p) { return run_coupled(p, false); }
int64_t lem_coupled_backward(const lem_coupled* p) { return run_coupled(p, true); }

namespace {

packed_header header_of(const lem_problem& p) {
    target();
    return {packed_magic, p.inputs, p.hidden, outputs(p), int32_t(chosen), int32_t(p.item_bytes), p.gated != 0, p.bfloat16 != 0, {}};
}

}  // namespace

int64_t lem_packed_bytes(const lem_problem* p) {
    return valid(p) ? int64_t(sizeof(packed_header)) + target().packed_bytes(*p) : -LEM_BAD_PROBLEM;
}

int64_t lem_pack(const lem_problem* p, void* packed) {
    if (!valid(p) || !packed || !p->weight_u || !p->weight_y || !p->weight_z) return LEM_BAD_PROBLEM;
    const packed_header h = header_of(*p);
    std::memcpy(packed, &h, sizeof h);
    target().pack(*p, static_cast<char*>(packed) + sizeof h);
    return LEM_OK;
}

int64_t lem_step(const lem_problem* p, const void* packed) {
    if (!valid(p) || !packed || p->steps != 1 || p->lengths || p->keep || p->threads != 1) return LEM_BAD_PROBLEM;
    if (!p->u || !p->y_0 || !p->z_0 || !p->y_n || !p->z_n || !p->work) return LEM_BAD_PROBLEM;
    const packed_header h = header_of(*p);
    if (std::memcmp(packed, &h, sizeof h) != 0) return LEM_FOREIGN_PACKED;
    const split how = split_for(*p);
    if (p->work_bytes < work_size(*p, how, false)) return LEM_SMALL_BUFFER;
    char* const work = static_cast<char*>(p->work);
    const lem_plan plan = make_plan(*p, how, work);
    target().step(*p, plan, static_cast<const char*>(packed) + sizeof h, work + plan_bytes(*p, how.groups));
    return LEM_OK;
}

const char* lem_target_name(int64_t index) { return index >= 0 && index < target_count ? targets[index].target->name : nullptr; }
int64_t lem_target_supported(int64_t index) { return supported(index); }
int64_t lem_target_vector_bytes(int64_t index) {
    return index >= 0 && index < target_count ? targets[index].target->vector_bytes : 0;
}
int64_t lem_target_bfloat16(int64_t index) {
    return index >= 0 && index < target_count && targets[index].target->bfloat16;
}
int64_t lem_target_choose(int64_t index) {
    if (!supported(index)) return LEM_BAD_PROBLEM;
    chosen = index;
    return LEM_OK;
}
int64_t lem_target_chosen() {
    target();
    return chosen;
}

const int32_t* lem_interrupt_flag() { return &interrupt::flag; }

double lem_peak(int64_t item_bytes, int64_t threads) {
    double rate = 0.0;
    for (int i = 0; i < 60; ++i) {  // short and often: on a busy machine a long run would be interrupted
        const auto start = std::chrono::steady_clock::now();
        const double flops = target().peak(item_bytes == 8, threads < 1 ? 1 : threads);
        rate = std::max(rate, flops / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 1e9);
    }
    return rate;
}

int64_t lem_function(int64_t which, int64_t item_bytes, const void* x, void* out, int64_t count) {
    if (!x || !out || count < 0 || which < 0 || which > 3 || (item_bytes != 4 && item_bytes != 8)) return LEM_BAD_PROBLEM;
    target().function(which, item_bytes == 8, x, out, count);
    return LEM_OK;
}

int64_t lem_openmp() {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}

void* lem_pages(int64_t bytes) {
#if defined(__linux__)
    void* const pages = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    madvise(pages, size_t(bytes), MADV_HUGEPAGE);
    return pages;
#else
    return std::aligned_alloc(4096, size_t(bytes + 4095) / 4096 * 4096);
#endif
}

void lem_pages_free(void* pages, int64_t bytes) {
#if defined(__linux__)
    if (pages) munmap(pages, size_t(bytes));
#else
    (void)bytes;
    std::free(pages);
#endif
}

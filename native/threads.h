// Threads: how a call is spread over them, how several of them share the rows of one group, denormals off while they run.
#pragma once
#include "target.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif
#if defined(LEM_STD_THREADS)
#include <thread>
#include <vector>
#elif defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#endif

namespace {

// Vanishing gradients become denormal after some hundred steps and would make every operation many times slower.
struct flush_denormals {
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();
    flush_denormals() { _mm_setcsr(before | 0x8040); }
    ~flush_denormals() { _mm_setcsr(before); }
#endif
};

// body(t, count) on each of `count` threads; the runtime may give fewer than asked for.
template <class F> void parallel(ptrdiff_t threads, const F& body) {
#if defined(LEM_STD_THREADS)  // for the thread sanitizer, which does not see how OpenMP's threads wait for each other
    std::vector<std::thread> others;
    for (ptrdiff_t t = 1; t < threads; ++t)
        others.emplace_back([&body, t, threads] {
            flush_denormals flush;
            body(t, threads);
        });
    {
        flush_denormals flush;
        body(ptrdiff_t(0), threads);
    }
    for (std::thread& other : others) other.join();
    return;
#elif defined(_OPENMP)
    if (threads > 1) {
#pragma omp parallel num_threads(int(threads))
        {
            flush_denormals flush;
            body(ptrdiff_t(omp_get_thread_num()), ptrdiff_t(omp_get_num_threads()));
        }
        return;
    }
#endif
    flush_denormals flush;
    body(ptrdiff_t(0), ptrdiff_t(1));
}

// Whether a call has to end early.
inline bool stopped(const int32_t* stop) { return stop && __atomic_load_n(stop, __ATOMIC_RELAXED); }

// The threads that run one group of rows together, and which of them this is.
struct team {
    static constexpr ptrdiff_t line = 8;  // items between two members' counters: a cache line
    ptrdiff_t size = 1, member = 0;
    int64_t* met = nullptr;               // how often each member has arrived; the leader's line also has where they leave
    ptrdiff_t patience = 0;
    const int32_t* stop = nullptr;
    int64_t round = 0;

    bool leads() const { return member == 0; }

    // Wait until all members have come here. What each wrote before is then seen by all.
    void meet() {
        if (size == 1) return;
        __atomic_store_n(met + member * line, ++round, __ATOMIC_RELEASE);
        for (ptrdiff_t other = 0; other < size; ++other)
            for (ptrdiff_t spins = 0; __atomic_load_n(met + other * line, __ATOMIC_ACQUIRE) < round; ++spins) wait(spins);
    }
    // Meet, and return whether to leave the call. All members have the same answer, or they would wait for those who left:
    // the leader decides before it arrives, and which meeting it is.
    bool meet_to_leave() {
        if (size == 1) return stopped(stop);
        if (leads() && met[1] == 0 && stopped(stop)) __atomic_store_n(met + 1, round + 1, __ATOMIC_RELAXED);
        meet();
        const int64_t leaving = __atomic_load_n(met + 1, __ATOMIC_RELAXED);
        return leaving && leaving <= round;
    }
    // A partner is late by a fraction of a step; if it is much later, it has lost its processor, perhaps to us.
    void wait(ptrdiff_t spins) const {
#if defined(__SSE2__)
        _mm_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
#if defined(__unix__) || defined(__APPLE__)
        if (spins >= patience) sched_yield();
#endif
        (void)spins;
    }
};

// body(slot, team) once for each of the plan's teams, by all its members. Where fewer threads run than were planned, every
// slot is run by one thread alone: the results are the same.
template <class F> void in_teams(const lem_plan& plan, int64_t* met, const F& body) {
    const ptrdiff_t slots = plan.threads / plan.team;
    parallel(plan.running, [&](ptrdiff_t t, ptrdiff_t count) {
        if (count == plan.threads) {
            const ptrdiff_t slot = t / plan.team;
            team members{plan.team, t % plan.team, met + slot * plan.team * team::line, plan.patience, plan.stop};
            body(slot, members);
        } else {
            for (ptrdiff_t slot = t; slot < slots; slot += count) {
                team alone;
                alone.stop = plan.stop;
                body(slot, alone);
            }
        }
    });
}

}  // namespace

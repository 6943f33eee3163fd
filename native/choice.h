// How many threads a call is worth, learned from earlier calls of about the same size.
//
// More threads are faster on an idle machine from some microseconds of work on. Where other programs hold the processors,
// each parallel region waits until its last thread has had a turn, and a call of a millisecond can take ten. Which of
// the two holds cannot be known beforehand, so the first calls of a size are timed on one thread and on all, the faster is
// kept, and the other is tried again from time to time. The number of threads that run a call does not change its result:
// rows are divided by the number of threads that was asked for.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>

class thread_choice {
public:
    enum kind { lem_forward, lem_backward, units_forward, units_backward, coupled_forward, coupled_backward, kinds };

    // Runs call(threads), with `threads` or with one; `work` counts operations. A long call always takes them all. A call
    // that returns false was interrupted: its time says nothing.
    template <class F> void run(kind what, double work, int64_t threads, const F& call) {
        if (threads < 2 || work > long_call) return void(call(threads));
        const int size = std::clamp(int(2.0 * std::log2(std::max(work, 1.0))), 0, sizes - 1);
        bool all;
        {
            const std::lock_guard<std::mutex> hold(lock);
            all = records[what][size].next();
        }
        const auto start = std::chrono::steady_clock::now();
        if (!call(all ? threads : 1)) return;
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const std::lock_guard<std::mutex> hold(lock);
        records[what][size].timed(all, seconds / work);
    }

private:
    static constexpr double long_call = 4e9;
    static constexpr int sizes = 80;
    static constexpr int first_trials = 3;      // on each side; the first on all threads also starts them
    static constexpr int64_t least_gap = 16, most_gap = 1024;

    struct record {
        double cost[2] = {0.0, 0.0};            // seconds an operation: on one thread, on all
        int64_t tried[2] = {0, 0};
        int64_t since = 0, gap = least_gap;     // calls since the slower side was tried, and calls to wait

        bool next() {
            for (const bool side : {true, false})
                if (tried[side] < first_trials) return side;
            const bool faster = cost[1] < cost[0];
            if (++since < gap) return faster;
            since = 0;
            return !faster;
        }
        void timed(bool side, double seconds) {
            const bool was_faster = cost[1] < cost[0], settled = tried[0] >= first_trials && tried[1] >= first_trials;
            // The best of the first trials, then a running mean in which one interrupted call counts little.
            if (++tried[side] <= first_trials) cost[side] = tried[side] <= 2 ? seconds : std::min(cost[side], seconds);
            else cost[side] += 0.25 * (std::min(seconds, 4.0 * cost[side]) - cost[side]);
            if (!settled) return;
            if ((cost[1] < cost[0]) != was_faster) gap = least_gap;
            else if (side != was_faster) gap = std::min(2 * gap, most_gap);
        }
    };
    std::mutex lock;
    record records[kinds][sizes];
};

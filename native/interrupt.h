// Ctrl-C inside a long call. A caller that holds Python's main thread gives `lem_interrupt_flag` as the call's `stop`. For
// the length of the call a handler of SIGINT then sets this flag and runs the handler that was there before, so that the
// caller learns of the signal as it would without us. The kernel reads the flag between steps.
#pragma once
#include <cstdint>

#if defined(__unix__) || defined(__APPLE__)
#include <signal.h>
#include <unistd.h>
#define LEM_SIGNALS 1
#endif

namespace interrupt {

inline int32_t flag = 0;

#if defined(LEM_SIGNALS)

inline struct sigaction before;  // what `handle` replaces
inline pid_t watching = 0;       // the process whose call is watched: a child forked meanwhile inherits all this

inline void handle(int number, siginfo_t* info, void* context) {
    __atomic_store_n(&flag, 1, __ATOMIC_RELAXED);
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
    else before.sa_handler(number);
}

inline bool is_ours(const struct sigaction& action) { return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == handle; }

#endif

// Watches for SIGINT while it lives, if `stop` is our flag and the call is long enough to be worth it. `stop` is then what
// the call has to read; null: nothing.
class watch {
public:
    const int32_t* stop;

    watch(const int32_t* given, double operations) : stop(given) {
        if (given != &flag) return;
        stop = nullptr;
#if defined(LEM_SIGNALS)
        if (operations < long_call || watching == getpid()) return;
        struct sigaction present;
        if (sigaction(SIGINT, nullptr, &present)) return;
        if (!is_ours(present)) {
            const bool calls = (present.sa_flags & SA_SIGINFO) || (present.sa_handler != SIG_DFL && present.sa_handler != SIG_IGN);
            if (!calls || (present.sa_flags & SA_RESETHAND)) return;
            before = present;
        }
        __atomic_store_n(&flag, 0, __ATOMIC_RELAXED);
        struct sigaction ours = before;
        ours.sa_flags |= SA_SIGINFO;
        ours.sa_sigaction = handle;
        if (sigaction(SIGINT, &ours, nullptr)) return;
        watching = getpid();
        stop = &flag;
#endif
    }
    ~watch() {
#if defined(LEM_SIGNALS)
        if (stop != &flag) return;
        struct sigaction present;
        if (!sigaction(SIGINT, nullptr, &present) && is_ours(present)) sigaction(SIGINT, &before, nullptr);
        watching = 0;
#endif
    }
    watch(const watch&) = delete;
    watch& operator=(const watch&) = delete;

    bool stopped() const { return stop && __atomic_load_n(stop, __ATOMIC_RELAXED); }

private:
    static constexpr double long_call = 1e7;  // operations; fewer take some milliseconds at most
};

}  // namespace interrupt

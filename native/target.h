// What a target (one compilation of the vector source, or the scalar oracle) offers to dispatch.cpp.
#pragma once
#include <stddef.h>
#include "lem.h"

// Rows in the order in which they are run: groups of rows that one thread runs together, longest row first.
struct lem_plan {
    ptrdiff_t threads, groups;
    ptrdiff_t running;       // threads that run it: all of them, or fewer where these are faster
    ptrdiff_t team;          // threads that run one group together; divides `threads`
    bool share_steps;        // whether they share every step, or only the products over many steps
    ptrdiff_t patience;      // spins of a waiting member before it offers its processor
    const int64_t* begin;    // groups + 1: where a group begins among the ordered rows
    const int64_t* row;      // B: the row of the batch
    const int64_t* length;   // B: its length
    const int64_t* before;   // groups: row-steps of all earlier groups
    const int32_t* stop = nullptr;  // or a flag: once it is not 0, all threads leave, between two steps
};

struct lem_target {
    const char* name;
    ptrdiff_t vector_bytes;
    bool bfloat16;
    ptrdiff_t (*work_bytes)(const lem_problem&, const lem_plan&, bool backward);
    void (*forward)(const lem_problem&, const lem_plan&, char* saved, char* work);
    void (*backward)(const lem_problem&, const lem_plan&, const char* saved, char* work);
    ptrdiff_t (*packed_bytes)(const lem_problem&);
    void (*pack)(const lem_problem&, char* packed);
    void (*step)(const lem_problem&, const lem_plan&, const char* packed, char* work);
    void (*units)(const lem_units&, bool backward);
    ptrdiff_t (*coupled_bytes)(const lem_coupled&, bool backward);  // for each thread
    void (*coupled)(const lem_coupled&, bool backward);
    double (*peak)(bool wide, ptrdiff_t threads);
    void (*function)(ptrdiff_t which, bool wide, const void* x, void* out, ptrdiff_t count);
};

extern const lem_target lem_target_scalar, lem_target_baseline, lem_target_wide;  // wide: in the tests only
#if defined(LEM_X86)
extern const lem_target lem_target_avx2, lem_target_avx512, lem_target_avx512bf16;
#endif

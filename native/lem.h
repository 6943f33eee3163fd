// The C interface of the kernel: one call runs LEM, equation (3), over a whole sequence, one call runs its adjoint.
//
// All tensors are row-major; `float` or `double` as `item_bytes` says. The caller owns all memory: the kernel allocates
// nothing. Letters as in the paper: T steps, B rows, m inputs, d_y units of y and d_z units of z.
#pragma once
#include <stdint.h>

#if defined(__GNUC__)
#define LEM_API extern "C" __attribute__((visibility("default")))
#else
#define LEM_API extern "C"
#endif

enum lem_keep {              // what the forward call leaves behind for the backward call
    LEM_KEEP_NOTHING = 0,    // no backward call will come
    LEM_KEEP_STORE = 1,      // z and the four gate values of every step
    LEM_KEEP_RECOMPUTE = 2,  // z of every step; backward computes the gates again
    LEM_KEEP_BOUNDED = 3,    // (y, z) once per `segment` steps; backward runs each segment again
};

enum lem_status {
    LEM_OK = 0,
    LEM_BAD_PROBLEM = 1,     // a size, a flag or a pointer is out of range
    LEM_SMALL_BUFFER = 2,    // `saved` or `work` is smaller than lem_saved_bytes / lem_work_bytes say
    LEM_FOREIGN_SAVED = 3,   // `saved` was not written by a forward call of this problem and target
    LEM_FOREIGN_PACKED = 4,  // `packed` was not written by lem_pack for this problem and target
    LEM_INTERRUPTED = 5,     // `stop` was set: nothing that was written means anything; the same call may be made again
};

struct lem_problem {
    int64_t struct_bytes;    // sizeof(lem_problem): both sides must mean the same
    int64_t item_bytes;      // 4 or 8
    int64_t steps, batch, inputs;
    int64_t hidden;          // d_z
    int64_t outputs;         // d_y, at most d_z; 0: d_z
    int64_t gated;           // 0: both time steps are fixed to dt (single scale)
    int64_t clipped;         // whether both time steps are clipped to [clip_low, clip_high]
    int64_t reverse;         // whether time runs backwards; each row then starts at its own end
    int64_t threads;
    int64_t team;            // threads that share a group of rows where these are few; 0: chosen here; n: n of them;
                             // -n: n that share the products over many steps, but not the steps
    int64_t keep;            // enum lem_keep
    int64_t segment;         // steps between kept states, for LEM_KEEP_BOUNDED
    int64_t bfloat16;        // whether the operands of the products are rounded to bfloat16; sums and all else stay float
    double dt, clip_low, clip_high;

    const void* u;           // T, B, m with these strides (in items; the last is 1)
    int64_t u_time, u_row;
    const void* weight_u;    // 2 d_z + 2 d_y, m: V_1, V_2, V_z, V_y   (d_z + d_y, m where not gated: V_z, V_y)
    const void* weight_y;    // 2 d_z + d_y, d_y: W_1, W_2, W_z        (d_z, d_y where not gated: W_z)
    const void* weight_z;    // d_y, d_z: W_y
    const void* bias;        // as many as weight_u has rows, or null
    const void* y_0;         // B, d_y
    const void* z_0;         // B, d_z
    const void* mask;        // B, d_y or null: multiplies y where it enters the gates and z
    const int64_t* lengths;  // B or null
    const void* elapsed;     // T, B or null: the time from observation t - 1 to t; a time step g becomes 1 - (1 - g)^elapsed.
                             // In reverse, step t takes the value at t + 1, and 1 at a row's end. For dt <= 1.
    const uint8_t* resets;   // T, B or null: a new piece begins at t; the state restarts before step t (in reverse, t - 1)
    const void* y_start;     // d_y or null (zeros): the state at a restart
    const void* z_start;     // d_z or null
    void* out;               // T, B, d_y
    void* y_n;               // B, d_y
    void* z_n;               // B, d_z
    void* saved;
    int64_t saved_bytes;
    void* work;              // 64-byte aligned, as `saved`
    int64_t work_bytes;

    const void* grad_out;    // T, B, d_y with these strides, or null
    int64_t grad_out_time, grad_out_row;
    const void* grad_y_n;    // B, d_y or null
    const void* grad_z_n;    // B, d_z or null
    void* grad_u;            // T, B, m or null: then it is not computed
    void* grad_weight_u;     // as the weights; all are written, not added to
    void* grad_weight_y;
    void* grad_weight_z;
    void* grad_bias;         // null where bias is
    void* grad_y_0;
    void* grad_z_0;
    void* grad_elapsed;      // T, B or null: then it is not computed
    void* grad_y_start;      // B, d_y, to be added up over B; needed where there are resets
    void* grad_z_start;      // B, d_z
    const int32_t* stop;     // or null: the call ends early once this is not 0
};

// Sizes; negative: minus a lem_status.
LEM_API int64_t lem_saved_bytes(const lem_problem*);
LEM_API int64_t lem_work_bytes(const lem_problem*, int64_t backward);
LEM_API int64_t lem_forward(const lem_problem*);
LEM_API int64_t lem_backward(const lem_problem*);

// Units that do not see each other, each a separate sequence: n of them, x = V u + b their input.
enum lem_units_kind {
    LEM_UNITS_OSCILLATOR = 0,  // UnICORNN: z -= s (tanh(w y + x) + alpha y), then y += s z
    LEM_UNITS_RELU = 1,        // IndRNN:   y = relu(w y + x); no s, no z
};
struct lem_units {
    int64_t struct_bytes, item_bytes;
    int64_t kind, steps, count, threads;
    int64_t keep;            // whether a backward call will come
    double alpha;
    const void* x;           // T, n
    const void* w;           // n, as s, y_0, z_0
    const void* s;
    const void* y_0;
    const void* z_0;
    void* y;                 // T, n
    void* z;                 // T, n where kept, n where not: the last one
    void* force;             // T, n where kept: the tanh
    const void* grad_y;      // T, n or null
    const void* grad_y_n;    // n or null, as grad_z_n
    const void* grad_z_n;
    void* grad_x;            // T, n
    void* grad_w;            // n, as the rest; all are written, not added to
    void* grad_s;
    void* grad_y_0;
    void* grad_z_0;
    const int32_t* stop;     // as in lem_problem
};
LEM_API int64_t lem_units_forward(const lem_units*);
LEM_API int64_t lem_units_backward(const lem_units*);

// Units that see each other through one product a step: a = x + W s, then the state s = (y, z) or y, unit by unit. The
// constants c_0, c_1, ... are one number for each unit.
enum lem_coupled_kind {
    LEM_COUPLED_OSCILLATOR = 0,  // coRNN:    z += c_2 (tanh(a) - c_1 y - c_0 z), then y += c_2 z
    LEM_COUPLED_RESIDUAL = 1,    // FastRNN, antisymmetric: y = c_1 y + c_0 tanh(a)
    LEM_COUPLED_GATED = 2,       // FastGRNN: g = sigmoid(a + c_2);  y = (c_0 (1 - g) + c_1) tanh(a + c_3) + g y
    LEM_COUPLED_MODRELU = 3,     // expRNN, DTRIV, nnRNN: y = sign(a) max(|a| + c_0, 0)
    LEM_COUPLED_LSTM = 4,        // a has four parts, i, f and o their sigmoids, g a tanh; W sees y alone:
};                               //           z = c_0 f z + c_1 i g, then y = o tanh(z)
inline int64_t lem_coupled_constants(int64_t kind) { return kind == 0 ? 3 : kind == 2 ? 4 : kind == 3 ? 1 : 2; }
inline int64_t lem_coupled_maps(int64_t kind) { return kind == LEM_COUPLED_LSTM ? 4 : 1; }   // parts of a
inline int64_t lem_coupled_reads(int64_t kind) { return kind == LEM_COUPLED_OSCILLATOR ? 2 : 1; }  // states W sees
inline int64_t lem_coupled_states(int64_t kind) { return kind == LEM_COUPLED_OSCILLATOR || kind == LEM_COUPLED_LSTM ? 2 : 1; }
// Values of a unit and step that the adjoint needs in addition to the states: the tanh; tanh and gate; i, f, g, o.
inline int64_t lem_coupled_kept(int64_t kind) { return kind == 2 ? 2 : kind == 3 ? 0 : kind == 4 ? 4 : 1; }
struct lem_coupled {
    int64_t struct_bytes, item_bytes;
    int64_t kind, steps, batch, hidden, threads;
    int64_t keep;             // whether a backward call will come
    const void* x;            // T, B, maps d
    const void* weight;       // reads d, maps d: W transposed, what y is multiplied with first
    const void* weight_back;  // for backward: reads, maps d, d: W as it stands
    const void* c;            // as many as the kind has, d
    const void* y_0;          // B, d, as z_0 where there are two states
    const void* z_0;
    void* y;                  // T, B, d
    void* z;                  // T, B, d where kept; B, d where not: the last one
    void* kept;               // kept, T, B, d
    void* work;               // 64-byte aligned
    int64_t work_bytes;
    const void* grad_y;       // T, B, d or null
    const void* grad_y_n;     // B, d or null, as grad_z_n
    const void* grad_z_n;
    void* grad_x;             // T, B, maps d: the gradient of a as well
    void* grad_c;             // constants, B, d, to be added up over B; null: not computed; none where there are two states
    void* grad_y_0;           // B, d, as grad_z_0; all are written, not added to
    void* grad_z_0;
    const int32_t* stop;      // as in lem_problem
};
// A trait of a kind: 0 constants, 1 kept values, 2 states, 3 states that W sees, 4 maps; -1 for an unknown kind or trait.
LEM_API int64_t lem_coupled_trait(int64_t kind, int64_t trait);
LEM_API int64_t lem_coupled_work_bytes(const lem_coupled*, int64_t backward);  // negative: minus a lem_status
LEM_API int64_t lem_coupled_forward(const lem_coupled*);
LEM_API int64_t lem_coupled_backward(const lem_coupled*);

// A flag for `stop` that SIGINT sets, while one call at a time has it, in addition to what the handler of SIGINT does that is
// there. Short calls do not look at it. Without a handler (SIG_DFL, SIG_IGN) nothing changes.
LEM_API const int32_t* lem_interrupt_flag(void);

// Streaming: pack the weights once, then take single steps (steps = 1, y_0 -> y_n, z_0 -> z_n) on one thread. `packed` is
// 64-byte aligned and belongs to the target that wrote it.
LEM_API int64_t lem_packed_bytes(const lem_problem*);
LEM_API int64_t lem_pack(const lem_problem*, void* packed);
LEM_API int64_t lem_step(const lem_problem*, const void* packed);

// Targets: index 0 .. count - 1, best last; a name is null past the end.
LEM_API const char* lem_target_name(int64_t index);
LEM_API int64_t lem_target_supported(int64_t index);
LEM_API int64_t lem_target_vector_bytes(int64_t index);
LEM_API int64_t lem_target_bfloat16(int64_t index);  // whether it has products of bfloat16 numbers
LEM_API int64_t lem_target_choose(int64_t index);
LEM_API int64_t lem_target_chosen(void);

// Measure the multiply-add peak of the chosen target on `threads` threads, in GFLOP/s.
LEM_API double lem_peak(int64_t item_bytes, int64_t threads);
// Sweep support for the tests: out[i] = f(x[i]) with f the kernel's sigmoid (0), tanh (1), log(1 - x) for x in [0, 1) (2),
// or 1 - (1 - x)^e (3), where e stands in out[i] before the call.
LEM_API int64_t lem_function(int64_t which, int64_t item_bytes, const void* x, void* out, int64_t count);
LEM_API int64_t lem_openmp(void);

// Pages for buffers that are kept and reused: huge where the system has them. Null when there is no memory.
LEM_API void* lem_pages(int64_t bytes);
LEM_API void lem_pages_free(void* pages, int64_t bytes);

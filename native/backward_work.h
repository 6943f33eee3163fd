// The memory of the backward pass: packed weights, and what one team needs for a chunk.
#pragma once
#include "forward.h"
#include "totals.h"

namespace {

template <class T> struct back_weights {
    T *z, *y, *u, *zeros;
    back_weights(const call<T>& c, arena& a)
        : z(a.take<T>(c.depth(c.dy) * c.padded_z())), y(a.take<T>(c.depth_y() * c.padded_y())),
          u(c.p.grad_u ? a.take<T>((c.depth_y() + c.depth(c.dy)) * c.mb * c.L) : nullptr), zeros(a.take<T>(3 * c.L)) {}
};

template <class T> struct backward_work {  // of one team
    ptrdiff_t rows;      // of a chunk, at most
    ptrdiff_t jump;      // between the blocks of a chunk's panels
    ptrdiff_t *before, *chunks, *segments;
    states<T> state;     // here y and z hold the running gradients
    T *y, *masked, *z, *u;       // previous y (masked where it entered the products), z, and [u, 1] of the chunk
    T *gates;                    // gate values, where computed again
    T *grads;                    // gA, gB, gC, gD: nv + 1 panels, all as large as those of z
    T *e_y, *e_z;                // the gradient of the elapsed time, unit by unit
    T *y_0, *z_0;                // the state before the first step of the group or segment, jump n * L
    T *from_y, *from_z;          // the gradient of the states at restarts
    totals<T> total;
    states<T> again;             // for running a segment again
    T* segment;
    ptrdiff_t woven_jump;        // pairs of row-steps of y, z, [u, 1] and the gradients, where products take bfloat16
    T *y_woven, *z_woven, *u_woven, *grads_woven;
    backward_work(const call<T>& c, const lem_plan& plan, arena& a)
        : rows(most_rows(plan)), jump((rows | 1) * c.L), before(a.take<ptrdiff_t>(c.p.steps + 1)),
          chunks(a.take<ptrdiff_t>(c.p.steps + 2)), segments(a.take<ptrdiff_t>(c.p.steps + 1)),
          state(c, a, largest_group(plan)), y(a.take<T>(c.nby * jump)), masked(c.p.mask ? a.take<T>(c.nby * jump) : y),
          z(a.take<T>(c.nbz * jump)), u(a.take<T>((c.mb + 1) * jump)),
          gates(c.p.keep == LEM_KEEP_RECOMPUTE ? a.take<T>(c.gate_blocks() * jump) : nullptr),
          grads(a.take<T>((c.nv() + 1) * c.nbz * jump)), e_y(c.p.grad_elapsed ? a.take<T>(c.nby * jump) : nullptr),
          e_z(c.p.grad_elapsed ? a.take<T>(c.nbz * jump) : nullptr), y_0(a.take<T>(largest_group(plan) * c.padded_y())),
          z_0(a.take<T>(largest_group(plan) * c.padded_z())), from_y(c.p.resets ? a.take<T>(c.nby * state.jump) : nullptr),
          from_z(c.p.resets ? a.take<T>(c.nbz * state.jump) : nullptr), total(c, a),
          again(c, a, c.p.keep == LEM_KEEP_BOUNDED ? largest_group(plan) : 0),
          segment(c.p.keep == LEM_KEEP_BOUNDED ? a.take<T>(segment_row_steps(c, plan) * kept<T>::blocks(c, keep_y) * c.L)
                                                : nullptr),
          woven_jump((half(rows) | 1) * c.L), y_woven(c.paired ? a.take<T>(c.nby * woven_jump) : nullptr),
          z_woven(c.paired ? a.take<T>(c.nbz * woven_jump) : nullptr),
          u_woven(c.paired ? a.take<T>((c.mb + 1) * woven_jump) : nullptr),
          grads_woven(c.paired ? a.take<T>((c.nv() + 1) * c.nbz * woven_jump) : nullptr) {}
    static ptrdiff_t most_rows(const lem_plan& plan) { return larger(chunk_rows, largest_group(plan)); }
    static ptrdiff_t segment_row_steps(const call<T>& c, const lem_plan& plan) {
        const ptrdiff_t n = largest_group(plan), steps = c.p.segment < c.p.steps ? c.p.segment : c.p.steps;
        return steps * n + larger(chunk_rows, n);
    }
};

}  // namespace

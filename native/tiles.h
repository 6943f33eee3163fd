// The two products everything is made of, as register tiles.
//
// A panel holds a matrix (row, k) as [block of k][row][lane]: whole vectors along k, rows next to each other.
//   product: acc[row][v] = init[v] + sum_k x[row, k] * w[k][v]          x from panels, w packed as [k][v][lane]
//   outer:   total[i][v] += sum_r x[r, i] * g_v[r]                      x and g from panels, r = rows of many steps
// The sum over k runs in the same order whatever the number of rows, so a row's result does not depend on the others.
// `Paired`: x and w hold pairs of bfloat16 numbers (bf16.h), two values of k in the place of one.
#pragma once
#include "bf16.h"

namespace {

// One stretch of k: k values of all rows, in blocks `jump` items apart.
template <class T> struct span { const T* x; ptrdiff_t k, jump; };

// Rows of a tile by the number of vectors it is wide: as many accumulators as the registers hold.
template <int NV> constexpr int tile_rows() {
#if LEM_REGISTERS >= 32
    return NV == 3 ? 8 : 12;
#else
    return NV == 3 ? 4 : NV == 2 ? 6 : 8;
#endif
}

template <class T, int R, int NV, bool Paired = false>
void tile(const span<T>* spans, ptrdiff_t count, ptrdiff_t shift, const T* w, const T* init, T* acc) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    // One pointer for both cases: with a branch the compiler would keep the sums on the stack around it.
    const T* const from = init ? init : acc;
    const ptrdiff_t from_row = init ? 0 : NV * L;
    vec<T> a[R * NV];
#pragma GCC unroll 32
    for (int i = 0; i < R * NV; ++i) a[i] = load(from + i / NV * from_row + i % NV * L);
    for (const span<T>* s = spans; s < spans + count; ++s) {
        const T* x = s->x + shift;
        ptrdiff_t left = s->k;
        while (left > 0) {
            const T* const end = x + (left < L ? left : L);
            const T* at = x;
            do {
                vec<T> weights[NV];
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) weights[v] = load(w + v * L);
#pragma GCC unroll 32
                for (int r = 0; r < R; ++r) {
                    const vec<T> b = spread<T, Paired>(at + r * L);
#pragma GCC unroll 4
                    for (int v = 0; v < NV; ++v) a[r * NV + v] = multiply_add<T, Paired>(b, weights[v], a[r * NV + v]);
                }
                w += NV * L;
            } while (++at < end);
            left -= L;
            x += s->jump;
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < R * NV; ++i) store(acc + i * L, a[i]);
}

template <class T> using tile_function = void (*)(const span<T>*, ptrdiff_t, ptrdiff_t, const T*, const T*, T*);

template <class T, int NV, bool Paired> inline tile_function<T> tile_for(ptrdiff_t rows) {
#if LEM_REGISTERS >= 32
    static constexpr tile_function<T> table[12] = {
        tile<T, 1, NV, Paired>, tile<T, 2, NV, Paired>, tile<T, 3, NV, Paired>, tile<T, 4, NV, Paired>, tile<T, 5, NV, Paired>, tile<T, 6, NV, Paired>,
        tile<T, 7, NV, Paired>, tile<T, 8, NV, Paired>, tile<T, NV == 3 ? 8 : 9, NV, Paired>, tile<T, NV == 3 ? 8 : 10, NV, Paired>,
        tile<T, NV == 3 ? 8 : 11, NV, Paired>, tile<T, NV == 3 ? 8 : 12, NV, Paired>};
#else
    constexpr int most = tile_rows<NV>();
    static constexpr tile_function<T> table[8] = {
        tile<T, 1, NV, Paired>, tile<T, 2, NV, Paired>, tile<T, 3, NV, Paired>, tile<T, 4, NV, Paired>, tile<T, most < 5 ? 4 : 5, NV, Paired>,
        tile<T, most < 6 ? 4 : 6, NV, Paired>, tile<T, most < 7 ? 4 : 7, NV, Paired>, tile<T, most < 8 ? 4 : 8, NV, Paired>};
#endif
    return table[rows - 1];
}

// acc[row][v] for all rows of one panel of weights; `w` walks on to the next panel.
// The inner dimension goes in stretches whose weights stay in the first-level cache while all rows pass over them.
template <class T, int NV, bool Paired = false>
void product(const span<T>* spans, ptrdiff_t count, const T* w, const T* init, T* acc, ptrdiff_t rows) {
    constexpr ptrdiff_t L = simd<T>::lanes, most = tile_rows<NV>();
    constexpr ptrdiff_t most_k = 30 * 1024 / (NV * LEM_VECTOR_BYTES);
    const ptrdiff_t blocks = (rows + most - 1) / most;
    ptrdiff_t total = 0;
    for (ptrdiff_t i = 0; i < count; ++i) total += spans[i].k;
    // Equal stretches: a short last one would load and store all sums for a few multiply-adds.
    const ptrdiff_t stretches = blocks > 1 ? (total + most_k - 1) / most_k : 1;
    const ptrdiff_t stretch = ((total + stretches - 1) / stretches + L - 1) / L * L;
    ptrdiff_t index = 0, done = 0;  // the span we are in, and how much of it is done
    while (index < count) {
        span<T> part[4];
        ptrdiff_t parts = 0, room = stretch, walked = 0;
        while (index < count && parts < 4 && room > 0) {
            const span<T>& s = spans[index];
            const ptrdiff_t left = s.k - done, take = left <= room ? left : room / L * L;
            if (take == 0) break;
            part[parts++] = {s.x + done / L * s.jump, take, s.jump};
            room -= take;
            walked += take;
            done += take;
            if (done == s.k) ++index, done = 0;
        }
        for (ptrdiff_t b = 0; b < blocks; ++b) {
            const ptrdiff_t first = rows * b / blocks, n = rows * (b + 1) / blocks - first;
            tile_for<T, NV, Paired>(n)(part, parts, first * L, w, init, acc + first * NV * L);
        }
        w += walked * NV * L;
        init = nullptr;
    }
}

// The same for few rows and P panels of weights at once, `w_jump` apart: the multiply-adds of one panel alone would wait
// for each other. Panel number i ends up in acc + i * R * NV * L.
template <class T, int R, int NV, int P, bool Paired>
void narrow(const span<T>* spans, ptrdiff_t count, const T* w, ptrdiff_t w_jump, const T* init, ptrdiff_t init_jump, T* acc) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    vec<T> a[P][R][NV];
    for (int i = 0; i < P; ++i)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < NV; ++v) a[i][r][v] = load(init + i * init_jump + v * L);
    const auto take = [&](const T* x) __attribute__((always_inline)) {
        vec<T> b[R];
        for (int r = 0; r < R; ++r) b[r] = spread<T, Paired>(x + r * L);
        for (int i = 0; i < P; ++i)
            for (int v = 0; v < NV; ++v) {
                const vec<T> weight = load(w + i * w_jump + v * L);
                for (int r = 0; r < R; ++r) a[i][r][v] = multiply_add<T, Paired>(b[r], weight, a[i][r][v]);
            }
        w += NV * L;
    };
    for (const span<T>* s = spans; s < spans + count; ++s) {
        const T* x = s->x;
        ptrdiff_t k = s->k;
        for (; k >= L; k -= L, x += s->jump) {
#pragma GCC unroll 4
            for (ptrdiff_t i = 0; i < L; ++i) take(x + i);
        }
        for (; k > 0; --k, ++x) take(x);
    }
    for (int i = 0; i < P; ++i)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < NV; ++v) store(acc + ((i * R + r) * NV + v) * L, a[i][r][v]);
}

constexpr ptrdiff_t narrow_vectors = 8;  // accumulators of a narrow tile, at most

// As many of the `left` next panels at once as these rows allow; returns how many it was.
template <class T, int NV, bool Paired = false>
ptrdiff_t products(const span<T>* spans, ptrdiff_t count, const T* w, ptrdiff_t w_jump, const T* init, ptrdiff_t init_jump,
                   T* acc, ptrdiff_t rows, ptrdiff_t left) {
    if constexpr (NV == 3) {
        if (rows == 1 && left >= 2) return narrow<T, 1, 3, 2, Paired>(spans, count, w, w_jump, init, init_jump, acc), 2;
    } else if constexpr (NV == 2) {
        if (rows == 1 && left >= 4) return narrow<T, 1, 2, 4, Paired>(spans, count, w, w_jump, init, init_jump, acc), 4;
        if (rows == 1 && left >= 2) return narrow<T, 1, 2, 2, Paired>(spans, count, w, w_jump, init, init_jump, acc), 2;
        if (rows == 2 && left >= 2) return narrow<T, 2, 2, 2, Paired>(spans, count, w, w_jump, init, init_jump, acc), 2;
    }
    product<T, NV, Paired>(spans, count, w, init, acc, rows);
    return 1;
}

// Products of the unit blocks in `blocks` with weights packed in pairs of blocks, K deep; end(block, acc, acc_jump) takes
// each block's result. The last pair may be a single block.
template <bool Paired = false, class T, class F>
void pair_products(ptrdiff_t first, ptrdiff_t last, const span<T>* spans, ptrdiff_t count, ptrdiff_t K, const T* w,
                   const T* init, ptrdiff_t init_jump, T* acc, ptrdiff_t rows, const F& end) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    for (ptrdiff_t b = first; b < last;) {
        const T *const panel = w + b * K * L, *const start = init + b * init_jump;
        if (last - b < 2) {
            product<T, 1, Paired>(spans, count, panel, start, acc, rows);
            end(b++, acc, L);
            continue;
        }
        const ptrdiff_t done = products<T, 2, Paired>(spans, count, panel, 2 * K * L, start, 2 * init_jump, acc, rows, (last - b) / 2);
        for (ptrdiff_t i = 0; i < 2 * done; ++i) end(b++, acc + (i / 2 * rows * 2 + i % 2) * L, 2 * L);
    }
}

// Lanes of k that one tile of `outer` takes.
template <class T> constexpr ptrdiff_t outer_rows() {
    constexpr ptrdiff_t most = LEM_REGISTERS >= 32 ? 8 : 4;
    return simd<T>::lanes < most ? simd<T>::lanes : most;
}

// The sum over the rows of one chunk starts at zero and is then added: far more exact than one long sum.
template <class T, int NV, bool Paired = false>
void outer(ptrdiff_t rows, const T* x, const T* g, ptrdiff_t g_jump, T* total) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    constexpr int R = outer_rows<T>();
    vec<T> a[R][NV] = {};
    for (ptrdiff_t i = 0; i < rows; ++i, x += L, g += L) {
        vec<T> weights[NV];
        for (int v = 0; v < NV; ++v) weights[v] = load(g + v * g_jump);
        for (int r = 0; r < R; ++r) {
            const vec<T> b = spread<T, Paired>(x + r);
            for (int v = 0; v < NV; ++v) a[r][v] = multiply_add<T, Paired>(b, weights[v], a[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v) {
            T* const t = total + (r * NV + v) * L;
            store(t, load(t) + a[r][v]);
        }
}

}  // namespace

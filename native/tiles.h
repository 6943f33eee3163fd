// The two products everything is made of, as register tiles.
//
// A panel holds a matrix (row, k) as [block of k][row][lane]: whole vectors along k, rows next to each other.
//   product: acc[row][v] = init[v] + sum_k x[row, k] * w[k][v]          x from panels, w packed as [k][v][lane]
//   outer:   total[i][v] += sum_r x[r, i] * g_v[r]                      x and g from panels, r = rows of many steps
// The sum over k runs in the same order whatever the number of rows, so a row's result does not depend on the others.
#pragma once
#include "vecmath.h"

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

// Keeps a broadcast in a register: folded into every multiply-add it would be loaded again and again.
template <class T> inline void pin(vec<T>& v) {
#if LEM_REGISTERS >= 32 && LEM_VECTOR_BYTES == 64 && defined(__AVX512F__)
    asm("" : "+v"(v));
#else
    (void)v;
#endif
}

template <class T, int R, int NV>
void tile(const span<T>* spans, ptrdiff_t count, ptrdiff_t shift, const T* w, const T* init, T* acc) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    vec<T> a[R][NV];
    if (init) {
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < NV; ++v) a[r][v] = load(init + v * L);
    } else {
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < NV; ++v) a[r][v] = load(acc + (r * NV + v) * L);
    }
    const auto multiply_add = [&](const T* x) __attribute__((always_inline)) {
        vec<T> weights[NV];
        for (int v = 0; v < NV; ++v) weights[v] = load(w + v * L);
        for (int r = 0; r < R; ++r) {
            vec<T> b = splat(x[r * L]);
            pin<T>(b);
            for (int v = 0; v < NV; ++v) a[r][v] += b * weights[v];
        }
        w += NV * L;
    };
    for (const span<T>* s = spans; s < spans + count; ++s) {
        const T* x = s->x + shift;
        ptrdiff_t k = s->k;
        for (; k >= L; k -= L, x += s->jump) {
#pragma GCC unroll 4
            for (ptrdiff_t i = 0; i < L; ++i) multiply_add(x + i);
        }
        for (; k > 0; --k, ++x) multiply_add(x);
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v) store(acc + (r * NV + v) * L, a[r][v]);
}

template <class T> using tile_function = void (*)(const span<T>*, ptrdiff_t, ptrdiff_t, const T*, const T*, T*);

template <class T, int NV> inline tile_function<T> tile_for(ptrdiff_t rows) {
#if LEM_REGISTERS >= 32
    static constexpr tile_function<T> table[12] = {
        tile<T, 1, NV>, tile<T, 2, NV>, tile<T, 3, NV>, tile<T, 4, NV>, tile<T, 5, NV>, tile<T, 6, NV>,
        tile<T, 7, NV>, tile<T, 8, NV>, tile<T, NV == 3 ? 8 : 9, NV>, tile<T, NV == 3 ? 8 : 10, NV>,
        tile<T, NV == 3 ? 8 : 11, NV>, tile<T, NV == 3 ? 8 : 12, NV>};
#else
    constexpr int most = tile_rows<NV>();
    static constexpr tile_function<T> table[8] = {
        tile<T, 1, NV>, tile<T, 2, NV>, tile<T, 3, NV>, tile<T, 4, NV>, tile<T, most < 5 ? 4 : 5, NV>,
        tile<T, most < 6 ? 4 : 6, NV>, tile<T, most < 7 ? 4 : 7, NV>, tile<T, most < 8 ? 4 : 8, NV>};
#endif
    return table[rows - 1];
}

// acc[row][v] for all rows of one panel of weights; `w` walks on to the next panel.
// The inner dimension goes in stretches whose weights stay in the first-level cache while all rows pass over them.
template <class T, int NV>
void product(const span<T>* spans, ptrdiff_t count, const T* w, const T* init, T* acc, ptrdiff_t rows) {
    constexpr ptrdiff_t L = simd<T>::lanes, most = tile_rows<NV>();
    constexpr ptrdiff_t stretch = (24 * 1024 / (NV * LEM_VECTOR_BYTES) + L - 1) / L * L;
    const ptrdiff_t blocks = (rows + most - 1) / most;
    ptrdiff_t index = 0, done = 0;  // the span we are in, and how much of it is done
    while (index < count) {
        span<T> part[4];
        ptrdiff_t parts = 0, room = blocks > 1 ? stretch : ptrdiff_t(1) << 40, walked = 0;
        while (index < count && parts < 4 && room >= L) {
            const span<T>& s = spans[index];
            const ptrdiff_t left = s.k - done, take = left <= room + room / 4 ? left : room / L * L;
            part[parts++] = {s.x + done / L * s.jump, take, s.jump};
            room -= take;
            walked += take;
            done += take;
            if (done == s.k) ++index, done = 0;
        }
        for (ptrdiff_t b = 0; b < blocks; ++b) {
            const ptrdiff_t first = rows * b / blocks, n = rows * (b + 1) / blocks - first;
            tile_for<T, NV>(n)(part, parts, first * L, w, init, acc + first * NV * L);
        }
        w += walked * NV * L;
        init = nullptr;
    }
}

// The same for few rows and P panels of weights at once, `w_jump` apart: the multiply-adds of one panel alone would wait
// for each other. Panel number i ends up in acc + i * R * NV * L.
template <class T, int R, int NV, int P>
void narrow(const span<T>* spans, ptrdiff_t count, const T* w, ptrdiff_t w_jump, const T* init, ptrdiff_t init_jump, T* acc) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    vec<T> a[P][R][NV];
    for (int i = 0; i < P; ++i)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < NV; ++v) a[i][r][v] = load(init + i * init_jump + v * L);
    const auto multiply_add = [&](const T* x) __attribute__((always_inline)) {
        vec<T> b[R];
        for (int r = 0; r < R; ++r) b[r] = splat(x[r * L]);
        for (int i = 0; i < P; ++i)
            for (int v = 0; v < NV; ++v) {
                const vec<T> weight = load(w + i * w_jump + v * L);
                for (int r = 0; r < R; ++r) a[i][r][v] += b[r] * weight;
            }
        w += NV * L;
    };
    for (const span<T>* s = spans; s < spans + count; ++s) {
        const T* x = s->x;
        ptrdiff_t k = s->k;
        for (; k >= L; k -= L, x += s->jump) {
#pragma GCC unroll 4
            for (ptrdiff_t i = 0; i < L; ++i) multiply_add(x + i);
        }
        for (; k > 0; --k, ++x) multiply_add(x);
    }
    for (int i = 0; i < P; ++i)
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < NV; ++v) store(acc + ((i * R + r) * NV + v) * L, a[i][r][v]);
}

constexpr ptrdiff_t narrow_vectors = 8;  // accumulators of a narrow tile, at most

// As many of the `left` next panels at once as these rows allow; returns how many it was.
template <class T, int NV>
ptrdiff_t products(const span<T>* spans, ptrdiff_t count, const T* w, ptrdiff_t w_jump, const T* init, ptrdiff_t init_jump,
                   T* acc, ptrdiff_t rows, ptrdiff_t left) {
    if constexpr (NV == 3) {
        if (rows == 1 && left >= 2) return narrow<T, 1, 3, 2>(spans, count, w, w_jump, init, init_jump, acc), 2;
    } else if constexpr (NV == 2) {
        if (rows == 1 && left >= 4) return narrow<T, 1, 2, 4>(spans, count, w, w_jump, init, init_jump, acc), 4;
        if (rows == 1 && left >= 2) return narrow<T, 1, 2, 2>(spans, count, w, w_jump, init, init_jump, acc), 2;
        if (rows == 2 && left >= 2) return narrow<T, 2, 2, 2>(spans, count, w, w_jump, init, init_jump, acc), 2;
    }
    product<T, NV>(spans, count, w, init, acc, rows);
    return 1;
}

// Products of the unit blocks in `blocks` with weights packed in pairs of blocks, K deep; end(block, acc, acc_jump) takes
// each block's result. The last pair may be a single block.
template <class T, class F>
void pair_products(ptrdiff_t first, ptrdiff_t last, const span<T>* spans, ptrdiff_t count, ptrdiff_t K, const T* w,
                   const T* init, ptrdiff_t init_jump, T* acc, ptrdiff_t rows, const F& end) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    for (ptrdiff_t b = first; b < last;) {
        const T *const panel = w + b * K * L, *const start = init + b * init_jump;
        if (last - b < 2) {
            product<T, 1>(spans, count, panel, start, acc, rows);
            end(b++, acc, L);
            continue;
        }
        const ptrdiff_t done = products<T, 2>(spans, count, panel, 2 * K * L, start, 2 * init_jump, acc, rows, (last - b) / 2);
        for (ptrdiff_t i = 0; i < 2 * done; ++i) end(b++, acc + (i / 2 * rows * 2 + i % 2) * L, 2 * L);
    }
}

// Lanes of k that one tile of `outer` takes.
template <class T> constexpr ptrdiff_t outer_rows() {
    constexpr ptrdiff_t most = LEM_REGISTERS >= 32 ? 8 : 4;
    return simd<T>::lanes < most ? simd<T>::lanes : most;
}

// The sum over the rows of one chunk starts at zero and is then added: far more exact than one long sum.
template <class T, int NV>
void outer(ptrdiff_t rows, const T* x, const T* g, ptrdiff_t g_jump, T* total) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    constexpr int R = outer_rows<T>();
    vec<T> a[R][NV] = {};
    for (ptrdiff_t i = 0; i < rows; ++i, x += L, g += L) {
        vec<T> weights[NV];
        for (int v = 0; v < NV; ++v) weights[v] = load(g + v * g_jump);
        for (int r = 0; r < R; ++r) {
            vec<T> b = splat(x[r]);
            pin<T>(b);
            for (int v = 0; v < NV; ++v) a[r][v] += b * weights[v];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v) {
            T* const t = total + (r * NV + v) * L;
            store(t, load(t) + a[r][v]);
        }
}

}  // namespace

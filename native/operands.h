// The operands of a call's products: the panels themselves, or words of bfloat16 pairs made from them (bf16.h).
#pragma once
#include "call.h"

namespace {

inline ptrdiff_t half(ptrdiff_t n) { return (n + 1) / 2; }

// A panel as an operand of a product over its units; the words of its first `rows` rows go to `to`.
template <class T> span<T> operand(const call<T>& c, const span<T>& x, ptrdiff_t rows, T* to, ptrdiff_t to_jump) {
    if constexpr (can_pair<T>) {
        constexpr ptrdiff_t L = simd<T>::lanes;
        if (!c.paired) return x;
        for (ptrdiff_t b = 0; b * L < x.k; b += 2) {
            const T *const low = x.x + b * x.jump, *const high = (b + 1) * L < x.k ? low + x.jump : nullptr;
            T* const words = to + b / 2 * to_jump;
            for (ptrdiff_t i = 0; i < rows * L; i += L) store(words + i, words_of(load(low + i), high ? load(high + i) : vec<T>{}));
        }
        return {to, half(x.k), to_jump};
    }
    (void)c, (void)rows, (void)to, (void)to_jump;
    return x;
}

// Blocks `part` of a panel as an operand of a product over its rows: each word has two rows.
template <class T> void weave_rows(const T* from, ptrdiff_t jump, range part, ptrdiff_t rows, T* to, ptrdiff_t to_jump) {
    if constexpr (can_pair<T>) {
        constexpr ptrdiff_t L = simd<T>::lanes;
        for (ptrdiff_t b = part.first; b < part.last; ++b) {
            const T* const x = from + b * jump;
            T* words = to + b * to_jump;
            ptrdiff_t r = 0;
            for (; r + 2 <= rows; r += 2, words += L) store(words, woven(load(x + r * L), load(x + (r + 1) * L)));
            if (r < rows) store(words, woven(load(x + r * L), vec<T>{}));
        }
    }
    (void)from, (void)jump, (void)part, (void)rows, (void)to, (void)to_jump;
}

// What the weights' gradients of a chunk are products of: panels over all its row-steps, or words of two row-steps each.
template <class T> struct outer_operands {
    ptrdiff_t rows, jump;
    const T *y, *z, *u, *grads;
};

// The products of tiles.h for a call's operands.
template <class T, int NV>
ptrdiff_t call_products(const call<T>& c, const span<T>* x, const T* w, ptrdiff_t w_jump, const T* init, T* acc,
                        ptrdiff_t rows, ptrdiff_t left) {
    constexpr ptrdiff_t L = simd<T>::lanes;
    if constexpr (can_pair<T>)
        if (c.paired) return products<T, NV, true>(x, 2, w, w_jump, init, NV * L, acc, rows, left);
    return products<T, NV>(x, 2, w, w_jump, init, NV * L, acc, rows, left);
}
template <class T, class F>
void call_pairs(const call<T>& c, range blocks, const span<T>* x, ptrdiff_t count, const T* w, const T* init,
                ptrdiff_t init_jump, T* acc, ptrdiff_t rows, const F& end) {
    ptrdiff_t K = 0;
    for (ptrdiff_t i = 0; i < count; ++i) K += x[i].k;
    if constexpr (can_pair<T>)
        if (c.paired) return pair_products<true>(blocks.first, blocks.last, x, count, K, w, init, init_jump, acc, rows, end);
    pair_products(blocks.first, blocks.last, x, count, K, w, init, init_jump, acc, rows, end);
}
template <class T, int NV>
void call_outer(const call<T>& c, ptrdiff_t rows, const T* x, const T* g, ptrdiff_t g_jump, T* total) {
    if constexpr (can_pair<T>)
        if (c.paired) return outer<T, NV, true>(rows, x, g, g_jump, total);
    outer<T, NV>(rows, x, g, g_jump, total);
}

}  // namespace

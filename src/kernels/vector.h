// The widest vector registers of the machine that the program is compiled for, as GCC vector types.
// For kernels whose accumulators must stay in registers. Arithmetic is elementwise.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace tandem {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kVectorRegisters = 32;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kVectorRegisters = 16;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorRegisters = 16;
#endif

// How many accumulators fit in registers beside their operands.
inline constexpr int kAccumulators = kVectorRegisters / 2;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// memcpy allows unaligned addresses; it compiles to one move.
template <class T>
Vector<T> load(const T* from) {
  Vector<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class T>
void store(T* to, Vector<T> v) {
  std::memcpy(to, &v, sizeof v);
}

// Loads only the first `lanes` elements; the others are zero. With kFull, lanes must be kLanes<T>.
template <class T, bool kFull>
Vector<T> load_lanes(const T* from, int64_t lanes) {
  if constexpr (kFull) {
    return load(from);
  }
  Vector<T> v = {};
  std::memcpy(&v, from, static_cast<size_t>(lanes) * sizeof(T));
  return v;
}

template <class T, bool kFull>
void store_lanes(T* to, Vector<T> v, int64_t lanes) {
  if constexpr (kFull) {
    store<T>(to, v);
  } else {
    std::memcpy(to, &v, static_cast<size_t>(lanes) * sizeof(T));
  }
}

// Lanes a[0], b[0], a[1], b[1], ... from the lower halves, or from the upper halves if kUpper.
template <class T, bool kUpper>
Vector<T> interleave(Vector<T> a, Vector<T> b) {
  return [&]<size_t... kLane>(std::index_sequence<kLane...>) {
    return __builtin_shufflevector(
        a, b, (kLane / 2 + (kUpper ? kLanes<T> / 2 : 0) + (kLane % 2 ? kLanes<T> : 0))...);
  }
  (std::make_index_sequence<kLanes<T>>());
}

// Transposes a square of kLanes x kLanes elements. Each pass of interleaving rotates the bits of
// the element index (row, lane) by one. After log2(kLanes) passes row and lane are exchanged.
template <class T>
void transpose_square(Vector<T> (&rows)[kLanes<T>]) {
  constexpr int kHalf = kLanes<T> / 2;
#pragma GCC unroll 4
  for (int pass = 1; pass < kLanes<T>; pass *= 2) {
    Vector<T> next[kLanes<T>];
#pragma GCC unroll 8
    for (int i = 0; i < kHalf; ++i) {
      next[2 * i] = interleave<T, false>(rows[i], rows[i + kHalf]);
      next[2 * i + 1] = interleave<T, true>(rows[i], rows[i + kHalf]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
      rows[i] = next[i];
    }
  }
}

}  // namespace tandem

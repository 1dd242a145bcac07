// The widest vector registers of the machine that the program is compiled for, as GCC vector types:
// for kernels whose accumulators must stay in registers. Arithmetic is element by element.
#pragma once

#include <cstdint>
#include <cstring>

namespace tandem::kernels {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kAccumulators = 16;  // that fit in registers beside their operands
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kAccumulators = 8;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kAccumulators = 8;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// memcpy states an unaligned access; it compiles to one move.
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

// The first `lanes` elements only; the others load as zero. kFull promises lanes == kLanes<T>.
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

}  // namespace tandem::kernels

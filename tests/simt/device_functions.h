// What kernels may call: barriers, shuffles, votes, atomics on shared memory, and CUDA's names for
// bit and float functions. Part of the emulated <cuda_runtime.h>.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>
#include <utility>

namespace simt {

using Place = std::source_location;

// All threads of the block must call it from the same place. Returns the number of true predicates.
int block_barrier(const char* name, bool predicate, Place place);

// All lanes of `mask` must call it with the same name, mask and place. Returns the value of lane
// `source`, or for kBallot the set of lanes whose value is not zero.
inline constexpr int kBallot = -1;
uint64_t warp_exchange(const char* name, unsigned mask, uint64_t value, int source, Place place);
int lane_id();
unsigned active_lanes();  // lanes of the warp that have not returned

enum class Source { kIndex, kXor, kUp, kDown };

// The lane whose value a shuffle takes.
inline int shuffle_source(Source kind, int argument, int width) {
  const int lane = lane_id(), first = lane & ~(width - 1);
  int source = first + (argument & (width - 1));
  if (kind == Source::kXor) {
    source = lane ^ argument;
    return source < first + width ? source : lane;
  }
  if (kind == Source::kUp) {
    source = lane - argument;
    return source >= first ? source : lane;
  }
  if (kind == Source::kDown) {
    source = lane + argument;
    return source < first + width ? source : lane;
  }
  return source;
}

template <class T>
T shuffle(const char* name, Source kind, unsigned mask, T value, int argument, int width,
          Place place) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "CUDA shuffles 4 and 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(name, mask, bits, shuffle_source(kind, argument, width), place);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline unsigned ballot(const char* name, unsigned mask, bool predicate, Place place) {
  return static_cast<unsigned>(warp_exchange(name, mask, predicate, kBallot, place));
}

}  // namespace simt

inline void __syncthreads(simt::Place place = simt::Place::current()) {
  simt::block_barrier("__syncthreads", false, place);
}
inline int __syncthreads_or(int predicate, simt::Place place = simt::Place::current()) {
  return simt::block_barrier("__syncthreads_or", predicate != 0, place) > 0;
}
inline int __syncthreads_and(int predicate, simt::Place place = simt::Place::current()) {
  return simt::block_barrier("__syncthreads_and", predicate == 0, place) == 0;
}
inline int __syncthreads_count(int predicate, simt::Place place = simt::Place::current()) {
  return simt::block_barrier("__syncthreads_count", predicate != 0, place);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Place place = simt::Place::current()) {
  simt::warp_exchange("__syncwarp", mask, 0, simt::kBallot, place);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              simt::Place place = simt::Place::current()) {
  return simt::shuffle("__shfl_sync", simt::Source::kIndex, mask, value, lane, width, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  simt::Place place = simt::Place::current()) {
  return simt::shuffle("__shfl_xor_sync", simt::Source::kXor, mask, value, lane_mask, width, place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32,
                 simt::Place place = simt::Place::current()) {
  return simt::shuffle("__shfl_up_sync", simt::Source::kUp, mask, value, static_cast<int>(distance),
                       width, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                   simt::Place place = simt::Place::current()) {
  return simt::shuffle("__shfl_down_sync", simt::Source::kDown, mask, value,
                       static_cast<int>(distance), width, place);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              simt::Place place = simt::Place::current()) {
  return simt::ballot("__ballot_sync", mask, predicate != 0, place);
}
inline int __any_sync(unsigned mask, int predicate, simt::Place place = simt::Place::current()) {
  return simt::ballot("__any_sync", mask, predicate != 0, place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simt::Place place = simt::Place::current()) {
  return simt::ballot("__all_sync", mask, predicate != 0, place) == mask;
}
inline unsigned __activemask() { return simt::active_lanes(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// Atomics on shared memory; those on global memory are in Global. Threads run one at a time.
template <class T>
requires std::is_integral_v<T> T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::exchange(*address, static_cast<T>(*address + value));
}
template <class T>
requires std::is_integral_v<T> T atomicMax(T* address, std::type_identity_t<T> value) {
  return std::exchange(*address, std::max(*address, value));
}
template <class T>
requires std::is_integral_v<T> T atomicMin(T* address, std::type_identity_t<T> value) {
  return std::exchange(*address, std::min(*address, value));
}
template <class T>
requires std::is_integral_v<T> T atomicCAS(T* address, std::type_identity_t<T> expected,
                                           std::type_identity_t<T> value) {
  return std::exchange(*address, *address == expected ? value : *address);
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? std::min(x, 1.0f) : 0.0f; }
using std::max;
using std::min;

// The two 16-bit floating types, for storage; arithmetic happens in f32. Conversions round to
// nearest even. They give the same bits on the host and on a GPU, except for the sign of an fp16
// NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "src/core/host_device.h"

namespace tandem {

namespace float16 {

TANDEM_HOST_DEVICE inline float float_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

#if defined(__CUDA_ARCH__)
__device__ inline uint16_t bf16_from_float(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));  // NaN gives 0x7fff
  return bits;
}

__device__ inline uint16_t fp16_from_float(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ inline float float_from_fp16(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
#else
TANDEM_HOST_DEVICE inline uint16_t bf16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fffu : rounded);
}

// Normal results: the rounding bias is added to the bits. Subnormal results: 0.5 is added, because
// the last bit of 0.5 in f32 has the value of the smallest subnormal fp16, 2^-24.
TANDEM_HOST_DEVICE inline uint16_t fp16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = (bits >> 16) & 0x8000u;
  const uint32_t size = bits & 0x7fffffffu;
  const uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  const uint32_t large = size > 0x7f800000u ? 0x7fffu : 0x7c00u;  // NaN or infinity
  return static_cast<uint16_t>(
      sign | (size >= 0x477ff000u ? large : (size < 0x38800000u ? subnormal : normal)));
}

TANDEM_HOST_DEVICE inline float float_from_fp16(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
  const uint32_t normal = (size << 13) + (size >= 0x7c00u ? 0x70000000u : 0x38000000u);
  const float subnormal = static_cast<float>(size) * 0x1p-24f;
  return std::bit_cast<float>(sign | (size < 0x400u ? std::bit_cast<uint32_t>(subnormal) : normal));
}
#endif

}  // namespace float16

// bfloat16: the upper half of an f32.
struct Bf16 {
  Bf16() = default;
  TANDEM_HOST_DEVICE explicit Bf16(float x) : bits(float16::bf16_from_float(x)) {}
  TANDEM_HOST_DEVICE operator float() const { return float16::float_from_bf16(bits); }
  uint16_t bits;
};

// IEEE 754 binary16: 5 bits of exponent, largest number 65504.
struct Fp16 {
  Fp16() = default;
  TANDEM_HOST_DEVICE explicit Fp16(float x) : bits(float16::fp16_from_float(x)) {}
  TANDEM_HOST_DEVICE operator float() const { return float16::float_from_fp16(bits); }
  uint16_t bits;
};

template <class T>
inline constexpr bool kIs16Bit = std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>;

// The type in which kernels compute on elements of type T and keep statistics and parameter
// gradients: T itself for f64 and integers, otherwise f32.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double> || std::is_integral_v<T>, T, float>;

}  // namespace tandem

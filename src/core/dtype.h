// Element types of tensors.
#pragma once

#include <cstdint>
#include <string_view>

#include "src/core/float16.h"

namespace tandem {

enum class DType : uint8_t { kF32, kF64, kBf16, kFp16, kI32, kI64, kU8 };

int64_t size_of(DType dtype);           // bytes of one element
std::string_view name_of(DType dtype);  // "f32", "f64", ...

// The type in which kernels compute on elements of `dtype`: f64 for f64, otherwise f32.
inline DType wide_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

template <class T>
inline constexpr DType dtype_of = [] { static_assert(sizeof(T) == 0, "not a tensor element"); }();
template <>
inline constexpr DType dtype_of<float> = DType::kF32;
template <>
inline constexpr DType dtype_of<double> = DType::kF64;
template <>
inline constexpr DType dtype_of<Bf16> = DType::kBf16;
template <>
inline constexpr DType dtype_of<Fp16> = DType::kFp16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::kI32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::kI64;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::kU8;

}  // namespace tandem

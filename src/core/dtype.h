// Element types of tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "src/core/float16.h"

namespace tandem {

enum class DType : uint8_t { kF32, kF64, kBf16, kFp16, kI32, kI64, kU8, kI8 };

int64_t size_of(DType dtype);           // bytes of one element
std::string_view name_of(DType dtype);  // "f32", "f64", ...

// The type in which kernels compute on elements of `dtype`: f64 for f64, otherwise f32.
inline DType wide_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// The position of T in a list of types, in which it must be.
template <class T, class... List>
consteval size_t position_in_list() {
  static_assert((std::is_same_v<T, List> || ...), "not an element type");
  const bool is_it[] = {std::is_same_v<T, List>...};
  return std::ranges::find(is_it, true) - is_it;
}

// The DType of a type; in the order of DType.
template <class T>
inline constexpr auto dtype_of = static_cast<DType>(
    position_in_list<T, float, double, Bf16, Fp16, int32_t, int64_t, uint8_t, int8_t>());

}  // namespace tandem

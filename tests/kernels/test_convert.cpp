#include <bit>
#include <cmath>

#include "src/core/error.h"
#include "src/kernels/convert.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// Every upper half of an f32 with lower halves around the ties of bf16 (0x8000) and of fp16
// (0x1000): normal and subnormal numbers, infinities, NaN.
Tensor all_kinds_of_floats() {
  const std::vector<uint32_t> lower = {0,      1,      0x0fff, 0x1000, 0x1001,
                                       0x3000, 0x7fff, 0x8000, 0x8001, 0xffff};
  const auto count = static_cast<int64_t>(lower.size());
  const Tensor x = Tensor::empty(test_memory(), {count << 16}, DType::kF32, MemoryClass::kData);
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.data<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(i / count) << 16 |
                                              lower[static_cast<size_t>(i % count)]);
  }
  return x;
}

// x rounded to T on a device. Elements from `first` on: odd ones have no whole packs.
template <class T>
Tensor rounded_on(Device device, const Tensor& x, int64_t first) {
  const TestContext test(device);
  const int64_t n = x.elements() - first;
  const Tensor result = unwritten({x.elements()}, dtype_of<T>, device);
  convert(test.stream, to_device(x, device).slice(first, n), result.slice(first, n));
  return to_host(result).slice(first, n);
}

// core.float16 compares the conversions of the host with exact arithmetic. A GPU rounds in
// hardware: two numbers at once in packs, one elsewhere.
template <class T>
void check_bits() {
  const Tensor x = all_kinds_of_floats();
  for_each_device([&](Device device) {
    for (const int64_t first : {0, 1}) {
      SCOPED_TRACE(str(name_of(device), ", from element ", first));
      const Tensor y = rounded_on<T>(device, x, first);
      for (int64_t i = 0; i < y.elements(); ++i) {
        const float from = x.data<float>()[first + i];
        const uint16_t bits = y.data<T>()[i].bits, expected = T(from).bits;
        // The sign of an fp16 NaN is not kept on every device.
        const bool is_nan = std::is_same_v<T, Fp16> && std::isnan(from);
        ASSERT_EQ(is_nan ? bits & 0x7fff : bits, is_nan ? expected & 0x7fff : expected) << from;
      }
    }
  });
}

TEST(Convert, Bf16HasTheBitsOfTheHost) { check_bits<Bf16>(); }

TEST(Convert, Fp16HasTheBitsOfTheHost) { check_bits<Fp16>(); }

}  // namespace
}  // namespace tandem::testing

#include "src/product/product_choice.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// What a stream that only counts is asked for, with the smallest alignments.
TEST(ChoiceRecorder, NotesEachProductOnce) {
  Stream dry = Stream::dry(Device::kCuda, {});
  Memory memory(dry);
  const auto matrix = [&](int64_t elements) {
    return Tensor::empty(memory, {elements}, DType::kBf16, MemoryClass::kData);
  };
  Product p{.m = 4,
            .n = 8,
            .k = 16,
            .a = {.data = matrix(64), .stride = 16},
            .b = {.data = matrix(136), .stride = 8},
            .d = {.data = matrix(32), .stride = 8}};
  ChoiceRecorder outer;
  {
    const ChoiceRecorder recorder;
    multiply(dry, p);
    p.b.data = p.b.data.slice(8, 128);
    multiply(dry, p);
    EXPECT_EQ(recorder.noted().products, (ProductSet{{ProductKey::of(p), Alignments::of(p)}}));
    EXPECT_EQ(Alignments::of(p).b, 16u);
    p.beta = 1;
    multiply(dry, p);
    EXPECT_EQ(recorder.noted().products.size(), 2u);
  }
  EXPECT_TRUE(outer.noted().products.empty());
}

}  // namespace
}  // namespace tandem::testing

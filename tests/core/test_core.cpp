// Tensors, memory, streams, matrix products, reductions and random numbers.
#include <cmath>

#include "src/core/error.h"
#include "src/core/math.h"
#include "src/core/rng.h"
#include "src/core/visible_text.h"
#include "src/product/product.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

TEST(Shape, CountsElementsAndRefusesOverflow) {
  EXPECT_EQ(Shape({3, 4, 5}).elements(), 60);
  EXPECT_EQ(Shape({}).elements(), 1);
  EXPECT_EQ(Shape({7, 0}).elements(), 0);
  EXPECT_EQ(Shape({2, 3})[-1], 3);
  EXPECT_EQ(Shape({2, 3}).with(0, 5), Shape({5, 3}));
  EXPECT_EQ(Shape({2, 3}).with(-1, 5), Shape({2, 5}));
  EXPECT_EQ(Shape({int64_t{1} << 40, 3}).elements(), 3 * (int64_t{1} << 40));
  EXPECT_THROW(Shape({int64_t{1} << 40, int64_t{1} << 40}).elements(), Error);
}

TEST(Tensor, SlicesShareMemoryAndStayInside) {
  const Tensor whole = Tensor::zeros(test_memory(), {2, 3}, DType::kF32, MemoryClass::kData);
  whole.slice(4, 2).data<float>()[0] = 5;
  EXPECT_EQ(whole.data<float>()[4], 5);
  EXPECT_FALSE(whole.slice(0, 6).unique());
  EXPECT_THROW(whole.slice(4, 3), Error);
  EXPECT_THROW(whole.data<double>(), Error);
  EXPECT_THROW(whole.reshape({7}), Error);
}

TEST(Tensor, ViewsOfBytesHaveOtherTypes) {
  const Tensor bytes = Tensor::zeros(test_memory(), {20}, DType::kU8, MemoryClass::kData);
  const Tensor view = bytes.view(4, {2, 2}, DType::kI32);
  view.data<int32_t>()[3] = 0x01020304;
  EXPECT_EQ(bytes.data<uint8_t>()[16], 4);
  EXPECT_EQ(view.shape(), Shape({2, 2}));
  EXPECT_THROW(bytes.view(8, {2, 2}, DType::kI32), Error);  // reaches beyond
  EXPECT_THROW(bytes.view(2, {2}, DType::kI32), Error);     // between elements
  EXPECT_THROW(view.view(0, {1}, DType::kF32), Error);
}

TEST(Memory, ReusesBlocksAndCountsByClass) {
  Memory memory(Device::kCpu);
  { Tensor::empty(memory, {1000}, DType::kF32, MemoryClass::kActivations); }
  const int64_t allocations = memory.system_allocations();
  const Tensor again = Tensor::empty(memory, {1000}, DType::kF32, MemoryClass::kWorkspace);
  EXPECT_EQ(memory.system_allocations(), allocations);
  EXPECT_GE(memory.use(MemoryClass::kWorkspace).bytes, 4000);
  EXPECT_EQ(memory.use(MemoryClass::kActivations).bytes, 0);
  EXPECT_GE(memory.use(MemoryClass::kActivations).peak_bytes, 4000);
}

// 1,000,001 f32, aligned to 64 bytes; blocks for activations may be an eighth larger.
TEST(Memory, WhatStaysTakesNoMoreThanItNeeds) {
  Memory memory(Device::kCpu);
  const auto taken = [&](MemoryClass memory_class) {
    const Tensor tensor = Tensor::empty(memory, {1000001}, DType::kF32, memory_class);
    return memory.use(memory_class).bytes;
  };
  for (const MemoryClass persistent : {MemoryClass::kParameters, MemoryClass::kGradients,
                                       MemoryClass::kOptimizer, MemoryClass::kMasters}) {
    EXPECT_EQ(taken(persistent), 4000064) << name_of(persistent);
  }
  EXPECT_GT(taken(MemoryClass::kActivations), 4000064);
}

TEST(Memory, LimitIsAnErrorThatNamesWhatIsHeld) {
  Memory memory(Device::kCpu, 1 << 20);
  const Tensor held = Tensor::empty(memory, {100000}, DType::kF32, MemoryClass::kParameters);
  try {
    Tensor::empty(memory, {200000}, DType::kF32, MemoryClass::kActivations);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kOutOfMemory);
    const std::string what = error.what();
    EXPECT_NE(what.find("for activations; held: parameters"), std::string::npos) << what;
  }
}

// Cached blocks of other sizes are freed when memory runs short.
TEST(Memory, FreedBlocksAreGivenBackUnderPressure) {
  Memory memory(Device::kCpu, 1 << 20);
  { Tensor::empty(memory, {150000}, DType::kF32, MemoryClass::kActivations); }
  EXPECT_NO_THROW(Tensor::empty(memory, {200000}, DType::kF32, MemoryClass::kActivations));
}

TEST(Memory, ScratchHasFreeBlocksOfItsOwn) {
  Memory memory(Device::kCpu);
  Memory scratch = memory.scratch();
  const auto take = [](Memory& from) {
    return Tensor::empty(from, {100000}, DType::kF32, MemoryClass::kActivations);
  };
  {
    const Tensor inside = take(scratch);
    EXPECT_EQ(scratch.held(), "activations 416.0 KiB");
    EXPECT_EQ(memory.held(), "activations 416.0 KiB");
    const Tensor outside = take(memory);
    EXPECT_EQ(scratch.held(), "activations 416.0 KiB");
    EXPECT_EQ(memory.total().bytes, 2 * 416 << 10);
  }
  EXPECT_EQ(scratch.held(), "");
  EXPECT_EQ(memory.system_allocations(), 2);
  const Tensor again = take(scratch), outside = take(memory);
  EXPECT_EQ(memory.system_allocations(), 2);
  { take(scratch); }
  take(memory);  // not the block that scratch has set free
  EXPECT_EQ(memory.system_allocations(), 4);
  EXPECT_EQ(memory.reserved_bytes(), 4 * 416 << 10);
}

TEST(Memory, KeptScratchIsNotGivenBackUnderPressure) {
  for (const bool keeps : {false, true}) {
    Memory memory(Device::kCpu, 1 << 20);
    Memory scratch = memory.scratch();
    if (keeps) {
      scratch.keep_blocks();
    }
    { Tensor::empty(scratch, {150000}, DType::kF32, MemoryClass::kActivations); }
    const auto take = [&] {
      Tensor::empty(memory, {200000}, DType::kF32, MemoryClass::kActivations);
    };
    if (keeps) {
      EXPECT_THROW(take(), Error);
    } else {
      EXPECT_NO_THROW(take());
    }
  }
  EXPECT_THROW(Memory(Device::kCpu).keep_blocks(), Error);
}

TEST(Stream, BackgroundRunsInOrderAndKeepsTheFirstError) {
  Stream stream = Stream::background(Device::kCpu);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    stream.submit([&order, i] { order.push_back(i); });
  }
  stream.synchronize();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  stream.submit([] { fail(ExitCode::kTemporary, "lost"); });
  bool ran = false;
  stream.submit([&ran] { ran = true; });
  EXPECT_THROW(stream.synchronize(), Error);
  EXPECT_FALSE(ran);
}

TEST(Stream, EventOrdersTwoStreams) {
  Stream first = Stream::background(Device::kCpu), second = Stream::background(Device::kCpu);
  int value = 0, seen = -1;
  first.submit([&] {
    for (int i = 0; i < 1000000; ++i) {
      value = value + 1;
    }
  });
  second.wait(first.record());
  second.submit([&] { seen = value; });
  second.synchronize();
  EXPECT_EQ(seen, 1000000);
}

class ProductTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

// Sums of products of small integers are exact in any order, so the results must be equal.
TEST_P(ProductTest, EqualsTheDefinition) {
  const auto [m, n, k] = GetParam();
  const auto fill = [](int64_t rows, int64_t columns, int64_t step) {
    Tensor values = Tensor::empty(test_memory(), {rows, columns}, DType::kF32, MemoryClass::kData);
    for (int64_t i = 0; i < values.elements(); ++i) {
      values.data<float>()[i] = static_cast<float>(i * step % 7 - 3);
    }
    return values;
  };
  for (const bool a_flipped : {false, true}) {
    for (const bool b_flipped : {false, true}) {
      for (const float beta : {0.0f, 1.0f}) {
        const Tensor a = a_flipped ? fill(k, m, 5) : fill(m, k, 5);
        const Tensor b = b_flipped ? fill(n, k, 3) : fill(k, n, 3);
        const Tensor d0 = fill(m, n, 2);
        const Tensor d = beta == 0 ? unwritten({m, n}, DType::kF32) : fill(m, n, 2);
        multiply(test_stream(), {.m = m,
                                 .n = n,
                                 .k = k,
                                 .a = {.data = a, .transposed = a_flipped},
                                 .b = {.data = b, .transposed = b_flipped},
                                 .d = {.data = d},
                                 .alpha = 2,
                                 .beta = beta});
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n; ++j) {
            float expected = beta == 0 ? 0 : d0.data<float>()[i * n + j];
            for (int p = 0; p < k; ++p) {
              expected += 2 * a.data<float>()[a_flipped ? p * m + i : i * k + p] *
                          b.data<float>()[b_flipped ? j * k + p : p * n + j];
            }
            ASSERT_EQ(d.data<float>()[i * n + j], expected) << i << ", " << j;
          }
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, ProductTest,
                         ::testing::Values(std::tuple{1, 1, 1}, std::tuple{3, 5, 7},
                                           std::tuple{64, 64, 64}, std::tuple{129, 65, 33},
                                           std::tuple{40, 257, 190}));

// Known answers of Philox4x32-10 from the authors' Random123 distribution (kat_vectors).
TEST(Philox, GivesThePublishedNumbers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// C1, which commands terminals as well, is 80 to 9F as bytes and C2 80 to C2 9F in UTF-8.
TEST(Visible, NoControlCharacterIsLeft) {
  EXPECT_EQ(visible("a\nb\t\x1b[2J\x7f"), "a\\x0Ab\\x09\\x1B[2J\\x7F");
  EXPECT_EQ(visible("a\nb\t", "\n"), "a\nb\\x09");
  EXPECT_EQ(visible("\xC2\x80 \xC2\x9B"
                    "2J \xC2\x9F"),
            "\\xC2\\x80 \\xC2\\x9B2J \\xC2\\x9F");
  EXPECT_EQ(visible("\x80 \x9B"
                    "2J \x9F"),
            "\\x80 \\x9B2J \\x9F");
  EXPECT_EQ(visible("\xE2\x82"), "\xE2\\x82");  // the begin of a character
  // Longer than UTF-8 allows, which some terminals read all the same.
  EXPECT_EQ(visible("\xE0\x82\x9B \xC0\x8A", "\n"), "\\xE0\\x82\\x9B \\xC0\\x8A");
}

TEST(Visible, OtherCharactersStay) {
  // U+00A0, U+00E9, U+20AC, U+1F600, and U+00E9 in Latin-1
  for (const std::string text :
       {"\xC2\xA0", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xE9"}) {
    EXPECT_EQ(visible(text), text);
    EXPECT_EQ(visible("a" + text + "b"), "a" + text + "b");
  }
}

TEST(Shortened, KeepsBothEndsAndWholeCharacters) {
  EXPECT_EQ(shortened("0123456789", 10), "0123456789");
  EXPECT_EQ(shortened("0123456789A", 10), "0123456...");
  EXPECT_EQ(shortened("0123456789A", 10, 3), "0123...89A");
  const std::string accents = "\303\251\303\251\303\251\303\251\303\251";  // 5 of 2 bytes
  EXPECT_EQ(shortened(accents, 9), accents.substr(0, 6) + "...");
  EXPECT_EQ(shortened(accents, 8), accents.substr(0, 4) + "...");
  EXPECT_EQ(shortened(accents, 9, 3), accents.substr(0, 2) + "..." + accents.substr(6));
}

// The polynomial's own error is below 2e-7 relative (math.h).
TEST(Math, ExpIsAccurateAndKeepsSpecialValues) {
  for (int i = -87299; i <= 88699; ++i) {
    const float x = static_cast<float>(i) * 1e-3f;
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(math::exp(x), exact, 2e-7 * exact) << x;
  }
  EXPECT_EQ(math::exp(0.0f), 1.0f);
  for (const float small : {-88.0f, -1e30f, -INFINITY}) {
    EXPECT_EQ(math::exp(small), 0.0f) << small;
  }
  for (const float large : {89.0f, INFINITY}) {
    EXPECT_EQ(math::exp(large), INFINITY) << large;
  }
  EXPECT_TRUE(std::isnan(math::exp(NAN)));
}

}  // namespace
}  // namespace tandem::testing

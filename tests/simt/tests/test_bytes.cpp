// The bytes that memory-bound kernels move, in sectors of 32 bytes, against the least possible, and
// how wide their accesses are.
#include <gtest/gtest.h>

#include <numeric>

#include "layers/activation/activation.h"
#include "layers/cross_entropy/cross_entropy.h"
#include "layers/dropout/dropout.h"
#include "layers/embedding/embedding.h"
#include "layers/linear/linear.h"
#include "layers/pool2d/pool2d.h"
#include "layers/rope/rope.h"
#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/sgd.h"
#include "src/kernels/activation_functions.h"
#include "src/kernels/array_list.h"
#include "src/kernels/column_sums.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/reduce.h"
#include "tests/optim/optimizer_check.h"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kRows = 4096, kWidth = 768, kElements = kRows * kWidth;
constexpr double kAllowed = 1.05;  // of the least possible

// What `work` moves, in bytes; `narrow`: of these, in accesses of less than 16 bytes.
struct Moved {
  double bytes, narrow;
};

Moved moved(const std::function<void(Cuda)>& work) {
  simt::set_thread_schedule("forward");  // for which sectors are counted exactly
  Stream& stream = test_stream(Device::kCuda);
  stream.synchronize();
  simt::counters() = {};
  work(Cuda{stream.handle()});
  stream.synchronize();
  const simt::Counters& counters = simt::counters();
  return {32.0 * static_cast<double>(counters.sectors_read + counters.sectors_written),
          32.0 * static_cast<double>(counters.narrow_sectors)};
}

// `floor`: the least possible bytes. `narrow`: of these, bytes of arrays whose type is smaller than
// another's. All else must be moved in 16 bytes at a time, but for a few numbers.
void check(const char* name, int64_t floor, const std::function<void(Cuda)>& work,
           int64_t narrow = 0) {
  SCOPED_TRACE(name);
  const Moved result = moved(work);
  const auto least = static_cast<double>(floor);
  EXPECT_LE(result.bytes, kAllowed * least);
  EXPECT_GE(result.bytes, least);
  EXPECT_LE(result.narrow, static_cast<double>(narrow) + (kAllowed - 1) * least);
}

Tensor on_gpu(const Shape& shape, DType dtype) {
  return to_device(rounded_to(random_tensor(shape, DType::kF32, 3), dtype), Device::kCuda);
}

TEST(Bytes, Activations) {
  const Tensor x = on_gpu({2 * kElements}, DType::kBf16), y = on_gpu({2 * kElements}, DType::kBf16);
  const Tensor dy = on_gpu({kElements}, DType::kBf16);
  auto *xs = x.data<Bf16>(), *ys = y.data<Bf16>();
  check("GELU", 2 * 2 * kElements, [&](Cuda device) {
    kernels::activation_forward<kernels::Gelu>(device, kElements, xs, ys);
  });
  check("GELU's gradient", 3 * 2 * kElements, [&](Cuda device) {
    kernels::activation_backward<kernels::Gelu>(device, kElements, dy.data<Bf16>(), xs, ys, 0);
  });
  const int64_t chunks = kernels::row_chunks(Device::kCuda, kRows, kWidth);
  const Tensor sums = unwritten({chunks, kWidth}, DType::kF32, Device::kCuda);
  check("GELU's gradient with sums", 3 * 2 * kElements + 4 * chunks * kWidth, [&](Cuda device) {
    kernels::gelu_gradient_and_sums(device, dy.data<Bf16>(), xs, ys, sums.data<float>(), kRows,
                                    kWidth);
  });
  check("sums over rows", 2 * kElements + 4 * chunks * kWidth,
        [&](Cuda device) { kernels::sum_rows(device, xs, sums.data<float>(), kRows, kWidth); });
  check("SwiGLU", 3 * 2 * kElements,
        [&](Cuda device) { kernels::swiglu_forward(device, xs, ys, kRows, kWidth); });
  check("SwiGLU's gradient", 5 * 2 * kElements, [&](Cuda device) {
    kernels::swiglu_backward(device, dy.data<Bf16>(), xs, ys, 0.0F, kRows, kWidth);
  });
}

TEST(Bytes, Elementwise) {
  const Tensor wide = on_gpu({kElements}, DType::kF32), narrow = on_gpu({kElements}, DType::kBf16);
  const Tensor other = on_gpu({kElements}, DType::kF32);
  auto* f32 = wide.data<float>();
  auto* bf16 = narrow.data<Bf16>();
  check(
      "f32 to bf16", 6 * kElements,
      [&](Cuda device) { kernels::convert(device, kElements, f32, bf16); }, 2 * kElements);
  check(
      "bf16 to f32", 6 * kElements,
      [&](Cuda device) { kernels::convert(device, kElements, bf16, f32); }, 2 * kElements);
  check("fill", 4 * kElements, [&](Cuda device) { kernels::fill(device, kElements, f32, 1.0F); });
  check("add", 12 * kElements, [&](Cuda device) {
    kernels::add(device, kElements, other.data<float>(), f32, other.data<float>());
  });
  const DeviceNumbers numbers(Device::kCuda, {});
  // Most of dropout's instructions are random numbers: its accesses are of one element.
  check(
      "dropout", 4 * kElements,
      [&](Cuda device) {
        kernels::dropout(device, bf16, bf16, 0.1, 1, numbers.get(),
                         {{0, kElements}, kElements / 4});
      },
      4 * kElements);
  check("RoPE", 4 * kElements * 8 / 12, [&](Cuda device) {
    kernels::rope_rotate(device, {{{4, 4, 64}, 4, kRows / 4}, {}}, bf16, bf16, 1.0F);
  });
  constexpr int64_t kParts = 4, n = kElements / kParts;
  check("sums of parts", 2 * kElements + 2 * n, [&](Cuda device) {
    kernels::sum_parts<Bf16, Bf16>(device, kParts, n, bf16, reinterpret_cast<Bf16*>(f32));
  });
  check(
      "sums of parts, f32", 2 * kElements + 4 * n,
      [&](Cuda device) { kernels::sum_parts<Bf16, float>(device, kParts, n, bf16, f32); },
      2 * kElements);
  // The bias is read again for each row.
  check("rows of all ranks and a bias", 2 * kElements + 4 * n, [&](Cuda device) {
    kernels::add_row_parts(device, kParts, n / kWidth, kWidth, bf16, bf16,
                           reinterpret_cast<Bf16*>(f32));
  });
}

// Different tokens, so that every row of the table is read or written once.
TEST(Bytes, Embedding) {
  constexpr int64_t kBatch = 8, kLength = kRows / kBatch;
  std::vector<int32_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), 0);
  const Tensor tokens = to_device(int_tensor({kRows}, ids), Device::kCuda);
  const Tensor weight = on_gpu({kRows, kWidth}, DType::kBf16);
  const Tensor positions = on_gpu({kLength, kWidth}, DType::kBf16);
  const Tensor y = on_gpu({kRows, kWidth}, DType::kBf16);
  const Tensor gradient = on_gpu({kRows, kWidth}, DType::kF32);
  TestContext test(Device::kCuda);
  const Tensor workspace = test.context.workspace(
      {kernels::embedding_workspace(Device::kCuda, kRows, kRows)}, DType::kI32);
  const kernels::EmbeddingSizes sizes{kBatch, kLength, kWidth, kRows};
  // Positions are read again for each sequence.
  check("embedding", 3 * 2 * kElements + 4 * kRows, [&](Cuda device) {
    kernels::embedding_forward(device, tokens.data<int32_t>(), weight.data<Bf16>(), nullptr,
                               positions.data<Bf16>(), y.data<Bf16>(), sizes);
  });
  // A warp has 128 columns of a row, and finds the row's tokens in three sectors of its own.
  constexpr int64_t kPlaces = kElements / 128 * 3 * 32;
  check(
      "embedding's gradient", 6 * kElements + kPlaces,
      [&](Cuda device) {
        kernels::embedding_backward_tokens(device, tokens.data<int32_t>(), y.data<Bf16>(),
                                           gradient.data<float>(), 0.0F, sizes,
                                           workspace.data<int32_t>());
      },
      2 * kElements + kPlaces);
  check(
      "positions' gradient", 2 * kElements + 4 * kLength * kWidth,
      [&](Cuda device) {
        kernels::embedding_backward_positions(device, y.data<Bf16>(), gradient.data<float>(), 0.0F,
                                              kLength, sizes);
      },
      2 * kElements);
}

// Windows that touch, so that every number is read once. Places of the largest are 4 bytes.
TEST(Bytes, MaxPooling) {
  const Pool2dShape shape{.batch = 4,
                          .height = 64,
                          .width = 64,
                          .channels = kElements / (4 * 64 * 64),
                          .kernel = 2,
                          .stride = 2,
                          .padding = 0};
  const Tensor x = on_gpu({kElements}, DType::kBf16), y = on_gpu({kElements / 4}, DType::kBf16);
  TestContext test(Device::kCuda);
  const Tensor winner = test.context.workspace({kElements / 4}, DType::kI32);
  check(
      "max pooling", 2 * kElements + 6 * kElements / 4,
      [&](Cuda device) {
        kernels::max_pool2d_forward(device, shape, x.data<Bf16>(), y.data<Bf16>(),
                                    winner.data<int32_t>());
      },
      2 * kElements + 2 * kElements / 4);
}

TEST(Bytes, GradientNorm) {
  const Tensor first = on_gpu({kElements}, DType::kF32), second = on_gpu({kElements}, DType::kF32);
  const Tensor result = unwritten({1 + kReduceScratch}, DType::kF64, Device::kCuda);
  TestContext test(Device::kCuda);
  for (const Tensor& array : {first, second}) {
    kernels::fill(Cuda{test.stream.handle()}, kElements, array.data<float>(), 1.0F);
  }
  ArrayListMemory<FlatArray> memory(test.context.memory);
  // More chunks than a grid has blocks.
  const ArrayList<FlatArray> list = memory.list(test.stream, {{first.data<float>(), kElements},
                                                              {second.data<float>(), kElements},
                                                              {first.data<float>(), kElements}});
  check("gradient norm", 4 * 3 * kElements, [&](Cuda device) {
    squared_norm(device, list, result.data<double>(), result.data<double>() + 1);
  });
  EXPECT_EQ(values_of(result)[0], 3 * kElements);
}

// Rows of GPT-2's classes, stored in a multiple of 128: one read, and one write with the padding.
// Ignored rows are not read.
TEST(Bytes, CrossEntropy) {
  constexpr int64_t kTokens = 16, kIgnored = 3, kClasses = 50257, kStored = 50304;
  const Tensor logits = on_gpu({kTokens, kStored}, DType::kBf16);
  std::vector<int32_t> target_of(kTokens, 7);
  target_of[0] = target_of[5] = target_of[9] = kIgnoreTarget;
  const Tensor targets = to_device(int_tensor({kTokens}, target_of), Device::kCuda);
  const Tensor losses = unwritten({kTokens}, DType::kF32, Device::kCuda);
  const Tensor scale = on_gpu({1}, DType::kF32);
  check(
      "cross-entropy", 2 * ((kTokens - kIgnored) * kClasses + kTokens * kStored), [&](Cuda device) {
        kernels::cross_entropy_gradient<Bf16>(device, logits.data<Bf16>(), targets.data<int32_t>(),
                                              losses.data<float>(), {scale.data<float>(), 0},
                                              {kTokens, kClasses, kStored});
      });
}

// Two shards in f32: the gradient is read, value and state are read and written, and the working
// copy is written in 16 bits. The first step writes the list of shards, which stays. One launch
// prepares, one updates.
void check_optimizer(
    const char* name, int64_t slots,
    const std::function<std::unique_ptr<Optimizer>(std::span<const Shard>)>& make) {
  std::vector<Shard> shards;
  for (const bool decay : {true, false}) {
    shards.push_back({.value = on_gpu({kElements}, DType::kF32),
                      .grad = on_gpu({kElements}, DType::kF32),
                      .decay = decay,
                      .working = on_gpu({kElements}, DType::kBf16)});
  }
  const auto optimizer = make(shards);
  DeviceState state(Device::kCuda);
  state.decide(1);
  const DeviceNumbers numbers(Device::kCuda, {.lr = 1e-3});
  const auto step = [&](Cuda) {
    optimizer->step(test_stream(Device::kCuda), shards,
                    {.numbers = numbers.get(), .state = state.get()});
  };
  moved(step);
  check(name, (14 + 8 * slots) * 2 * kElements, step, 2 * 2 * kElements);
  EXPECT_EQ(simt::counters().launches, 2);
  EXPECT_EQ(simt::counters().pageable_copies, 0);
}

TEST(Bytes, AdamW) {
  check_optimizer("AdamW", 2, [](std::span<const Shard> shards) {
    return make_optimizer(AdamWOptions{}, shards, test_memory(Device::kCuda));
  });
}

TEST(Bytes, Lion) {
  check_optimizer("Lion", 1, [](std::span<const Shard> shards) {
    return make_optimizer(LionOptions{}, shards, test_memory(Device::kCuda));
  });
}

TEST(Bytes, Sgd) {
  check_optimizer("SGD", 1, [](std::span<const Shard> shards) {
    return make_optimizer(SgdOptions{}, shards, test_memory(Device::kCuda));
  });
}

}  // namespace
}  // namespace tandem::testing

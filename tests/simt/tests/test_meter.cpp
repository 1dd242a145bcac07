// Each call of kernels says what it reads and writes. Whole training steps compare this with the
// sectors of 32 bytes that the emulated GPU counts. So a call that says nothing is noticed, and so
// is a new op whose bytes are wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "layers/add/add.h"
#include "layers/models/mlp.h"
#include "layers/models/resnet.h"
#include "layers/models/transformer.h"
#include "layers/pool2d/pool2d.h"
#include "optim/adamw.h"
#include "src/step/training_step.h"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// "void tandem::{anonymous}::NormOp::backward(...)" in layers/norm/norm.cpp -> "norm
// NormOp::backward"
std::string name_of(const std::source_location& place) {
  std::string name = place.function_name();
  name.resize(std::min(name.find('('), name.size()));
  name = name.substr(name.rfind(' ') + 1);
  for (const std::string prefix : {"tandem::", "{anonymous}::"}) {
    for (size_t at = name.find(prefix); at != name.npos; at = name.find(prefix)) {
      name.erase(at, prefix.size());
    }
  }
  return std::filesystem::path(place.file_name()).stem().string() + " " + name;
}

struct Bytes {
  double said = 0, moved = 0;
};
using Calls = std::map<std::string, Bytes>;

// Adds up, for each place that calls kernels, what it said and what the emulation counted.
class Comparison final : public Meter {
 public:
  Comparison(Stream& stream, Calls& calls) : stream_(stream), calls_(calls) {
    simt::set_thread_schedule("forward");  // for which sectors are counted exactly
    stream.report_to(this);
  }
  ~Comparison() override { stream_.report_to(nullptr); }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  void call(const Work& work, const std::source_location& place,
            const std::function<void()>& run) override {
    stream_.synchronize();
    simt::counters() = {};
    run();
    stream_.synchronize();
    const simt::Counters& counters = simt::counters();
    Bytes& bytes = calls_[name_of(place)];
    bytes.said += work.bytes;
    bytes.moved += 32.0 * static_cast<double>(counters.sectors_read + counters.sectors_written);
  }

 private:
  Stream& stream_;
  Calls& calls_;
};

// What a model reads: indices below `limit`, or else numbers.
struct Input {
  Shape shape;
  int64_t limit, targets;
  bool is_text = false;
};

Tensor indices(const Shape& shape, int64_t limit) {
  std::vector<int32_t> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(i * 7 % static_cast<size_t>(limit));
  }
  return to_device(int_tensor(shape, values), Device::kCuda);
}

// A step of two micro-batches.
void add_calls_of_step(Calls& calls, Model& model, const Input& input, DType dtype = DType::kBf16,
                       bool exact = false) {
  Stream& stream = test_stream(Device::kCuda);
  Memory memory(stream), staging = Memory::pinned();
  LocalControl control;
  SelfCollectives collectives;
  Group data(control, collectives, memory, {0});
  const int64_t samples = input.shape[0];
  TrainingStep training(
      model, data, stream, memory, staging,
      {.batch = {.global_batch = 2 * samples, .given_micro_batch = samples, .ranks = 1},
       .exact = exact,
       .clip_norm = 1,
       .store = {.bucket_bytes = 1 << 20, .dtype = dtype},
       .optimizer = [](std::span<const Shard> shards, const OptimizerMemory& of_state) {
         return make_optimizer(AdamWOptions{}, shards, of_state);
       }});
  training.store().values.initialize(1);
  const auto numbers = [&] {
    return to_device(rounded_to(random_tensor(input.shape, DType::kF32, 3), dtype), Device::kCuda);
  };
  const DeviceBatch batch = {input.is_text ? indices(input.shape, input.limit) : numbers(),
                             indices({input.targets}, input.limit)};
  const Comparison comparison(stream, calls);
  training.run({.step = 0,
                .lr = 0.01,
                .targets = static_cast<double>(2 * input.targets),
                .batch = [&](int64_t) { return batch; }});
}

void add_calls_of_models(Calls& calls) {
  for (const bool llama : {false, true}) {
    Transformer model({.style = llama ? kLlama : kGpt2,
                       .vocab = 2048,
                       .context = 128,
                       .layers = 2,
                       .heads = 2,
                       .kv_heads = llama ? 1 : 0,
                       .width = 128,
                       .ffn_width = 512,
                       .dropout = 0.1,
                       .tie_embeddings = !llama});
    add_calls_of_step(calls, model,
                      {.shape = {4, 128}, .limit = 2048, .targets = 512, .is_text = true});
  }
  const auto resnet = make_resnet({.depth = 8, .in_channels = 3, .height = 16, .width = 16});
  add_calls_of_step(calls, *resnet, {.shape = {8, 16, 16, 3}, .limit = 10, .targets = 8});
  for (const bool exact : {false, true}) {
    Mlp mlp({.image_height = 16,
             .image_width = 16,
             .channels = 3,
             .layers = 2,
             .width = 256,
             .classes = 10});
    add_calls_of_step(calls, mlp, {.shape = {64, 16, 16, 3}, .limit = 10, .targets = 64},
                      exact ? DType::kF32 : DType::kBf16, exact);
  }
}

// Ops that these models have not.
void add_calls_of_other_ops(Calls& calls) {
  TestContext test(Device::kCuda);
  const auto image = [&] {
    return Variable::leaf(to_device(
        rounded_to(random_tensor({4, 32, 32, 32}, DType::kF32, 3), DType::kBf16), Device::kCuda));
  };
  const Variable x = image(), other = image();
  const Comparison comparison(test.stream, calls);
  const Variable y = max_pool2d(test.context, add(test.context, x, other), 2, 2, 0);
  test.tape.backward(test.context, y, 1.0);
}

// Bytes moved, by bytes said, where they differ by more than kAllowed. A factor of 0 belongs to
// what is not Tandem's, and what the emulation does not count.
struct Exception {
  double factor;
  const char* reason;
};
constexpr const char* kTaps = "Each tap of a kernel reads the pixels again, which a cache holds.";
constexpr const char* kTiles =
    "Each tile reads the tiles of the other side again. The rate of attention is of these bytes.";
constexpr const char* kChannels = "Each thread reads its channels' numbers, which a cache holds.";
constexpr const char* kWindows =
    "Each pixel reads what belongs to its window, which a cache holds.";
constexpr const char* kOthers = "This is work of cuBLASLt or of the driver.";
const std::map<std::string, Exception> kExceptions = {
    {"attention AttentionOp::forward", {1.3, kTiles}},
    {"attention AttentionOp::backward", {1.8, kTiles}},
    {"batchnorm2d batchnorm2d", {3.8, kChannels}},
    {"batchnorm2d BatchNormOp::backward", {5.7, kChannels}},
    {"conv2d conv2d", {5, kTaps}},
    {"conv2d Conv2dOp::differentiate_weight", {6.5, kTaps}},
    {"conv2d Conv2dOp::differentiate_x", {3.2, kTaps}},
    {"copy copy", {0, kOthers}},
    {"copy zero", {0, kOthers}},
    {"embedding EmbeddingOp::backward", {1.3, "Rows without a token are looked up, too."}},
    {"pool2d AveragePoolOp::backward", {1.9, kWindows}},
    {"pool2d MaxPoolOp::backward", {2.3, kWindows}},
    {"product enqueue", {0, kOthers}},
    {"shortcut shortcut", {0.75, "New channels are zeros, for which nothing is read."}},
};

constexpr double kAllowed = 1.25;
constexpr double kFewBytes = 1 << 14;  // numbers of a step, each of which takes a sector

TEST(Meter, EachCallSaysWhatItMoves) {
  Calls calls;
  add_calls_of_models(calls);
  add_calls_of_other_ops(calls);
  for (const auto& [name, exception] : kExceptions) {
    EXPECT_TRUE(calls.contains(name)) << name << ": " << exception.reason;
  }
  for (const auto& [name, bytes] : calls) {
    const auto found = kExceptions.find(name);
    const double factor = found == kExceptions.end() ? 1 : found->second.factor;
    if (factor == 0) {
      EXPECT_GT(bytes.said, 0) << name;
      EXPECT_EQ(bytes.moved, 0) << name;
    } else if (bytes.moved > kFewBytes || bytes.said > kFewBytes) {
      EXPECT_LE(bytes.moved, kAllowed * factor * bytes.said) << name;
      EXPECT_GE(bytes.moved, factor / kAllowed * bytes.said) << name;
    }
  }
}

}  // namespace
}  // namespace tandem::testing

// How long an offloaded update and the forward pass after it take together, in dry runs of a GPU
// that need not exist.
#include <gtest/gtest.h>

#include <algorithm>

#include "layers/models/transformer.h"
#include "tests/step/dry_step.h"

namespace tandem::testing {
namespace {

constexpr int64_t kBatch = 4, kRun = 4096;

// A transformer that notes when its forward pass ends.
class Watched final : public Model {
 public:
  explicit Watched(const TransformerConfig& config) : inner_(config) {
    for (const Block& block : inner_.blocks()) {
      add(block);
    }
  }
  Loss loss(Context& context, const Tensor& input, const Tensor& targets) override {
    Loss result = inner_.loss(context, input, targets);
    end_s = context.stream.clock().now_s;
    return result;
  }
  double flops_per_sample() const override { return inner_.flops_per_sample(); }
  double end_s = 0;

 private:
  Transformer inner_;
};

struct Times {
  double forward_s = 0;  // from the beginning of a step, the update that it makes included
  double all_copies_s = 0, first_runs_s = 0, first_block_s = 0;  // of what is copied, each way
};

// Products take the time of computing; other kernels take none, nor do updates.
Times third_step(double host_bytes_per_s, bool offloads) {
  constexpr int64_t kContext = 16;
  Watched model(resolved({.vocab = 96, .context = kContext, .layers = 6, .heads = 4, .width = 64}));
  DryStep dry(model, kBatch, kContext,
              {.flops_per_s = 1e12,
               .bytes_per_s = 1e18,
               .attention_flops_per_s = 1e12,
               .host_bytes_per_s = host_bytes_per_s},
              {.bucket_bytes = int64_t{200} << 10,
               .dtype = DType::kBf16,
               .offload_run = offloads ? kRun : 0});
  double begin_s = 0;
  for (int64_t step = 0; step < 3; ++step) {
    begin_s = dry.stream.clock().now_s;
    dry.run(step);
  }
  Times times{.forward_s = model.end_s - begin_s};
  const std::vector<int64_t>& first = dry.training.store().layout.flat().buckets_of(0);
  const OptimizerShards& shards = dry.training.store().shards;
  for (size_t i = 0; i < shards.all().size(); ++i) {
    const double copied_s =  // a master and two moments
        3.0 * static_cast<double>(shards.all()[i].value.bytes()) / host_bytes_per_s;
    times.all_copies_s += copied_s;
    times.first_runs_s += i < 2 ? copied_s : 0;
    times.first_block_s += std::ranges::count(first, shards.bucket(i)) > 0 ? copied_s : 0;
  }
  return times;
}

// The first two runs arrive during backward. A byte of other kernels takes 1e-18 s: all of them
// together less than the tolerance.
TEST(OffloadTime, CopiesHideBehindTheForwardPass) {
  constexpr double kTolerance_s = 1e-9;
  const double forward_s = third_step(1, false).forward_s;
  const double bytes = third_step(1, true).all_copies_s;
  for (const double share : {0.25, 1.0, 4.0, 16.0}) {  // the time of copies, of that of forward
    const Times times = third_step(bytes / (share * forward_s), true);
    EXPECT_NEAR(times.all_copies_s, share * forward_s, 1e-6 * forward_s);
    const double longer_s = std::max(times.all_copies_s, forward_s);
    EXPECT_GE(times.forward_s,
              std::max(times.all_copies_s - times.first_runs_s, forward_s) - kTolerance_s)
        << share;
    EXPECT_LE(times.forward_s, longer_s + times.first_block_s + kTolerance_s) << share;
  }
}

}  // namespace
}  // namespace tandem::testing

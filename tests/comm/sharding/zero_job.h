// Training steps of small models through the store, made as the trainer makes them, for tests of
// what must not depend on the ZeRO stage.
#pragma once

#include <memory>

#include "comm/sharding/param_store.h"
#include "optim/optimizer.h"
#include "src/autograd/tape.h"
#include "tests/comm/sharding/chain_model.h"
#include "tests/support/harness.h"
#include "tests/support/ranks.h"

namespace tandem::testing {

struct ZeroPlan {
  Links links{};  // of a chain model; empty: a small GPT-2 with dropout and a tied embedding
  StoreOptions store{};
  bool exact = false;  // sets store.exact_micro_batches
  int micro_steps = 1;
  uint64_t seed = 1;  // of dropout and rounding
  bool recompute = false;
  std::string optimizer = "adamw";  // adamw, sgd (with momentum), gradient (betas 0)
  double clip_norm = 0.1;           // low enough to clip
  std::vector<int> nodes{};         // of each rank; empty: all on one node
  Sharing sharing = Sharing::kWorld;
};

// The stages, for loops.
inline constexpr std::array<int, 4> kStages = {0, 1, 2, 3};

class ZeroJob {
 public:
  ZeroJob(const Ranks& ranks, const ZeroPlan& plan);

  // Leaf l is a micro-batch with its own samples. With k micro-steps, rank r has leaves r k to
  // r k + k - 1.
  void step();
  void gradients();  // a step without the update
  // The gradient of one micro-batch, which need not be this rank's; for a job of 1 rank.
  std::vector<double> leaf_gradient(int64_t leaf);
  void evaluate();  // a forward pass without tape
  void train(int steps);

  // Collective: gathered from all ranks, parameter after parameter.
  std::vector<double> weights() const;  // masters, frozen ones too
  std::vector<double> summed_gradients() const;
  std::vector<double> state(std::string_view slot) const;  // of the optimizer
  double grad_norm() const { return state_.grad_norm; }
  double squared_norm();

  // Sets the block's elements in `all`, which is ordered as weights(), to the values that its
  // layers read. Call it between acquire and release.
  void read(BlockId block, std::vector<double>& all) const;

  // Waits until everything is sent, and returns the traffic.
  WireCount wire();

  ParamStore& store() { return *store_; }
  const Memory& memory() const { return memory_; }
  int64_t leaves() const { return plan_.micro_steps * data_.size(); }

  // Called after each acquire (true) and before each release (false).
  std::function<void(BlockId, Pass, bool)> watch;
  // Called before each report that a gradient is final.
  std::function<void()> before_final;

 private:
  class WatchedGate;
  bool run_micro_steps();
  bool micro_step(int64_t leaf, bool last);
  Variable losses(Context& context, int64_t leaf);
  std::vector<double> collect(const std::function<Tensor(size_t)>& flat_of_shard) const;
  std::vector<int64_t> first_elements() const;  // by ParamId, and the end

  ZeroPlan plan_;
  Stream& stream_ = test_stream();
  Memory memory_{Device::kCpu}, scratch_memory_{Device::kCpu};
  Group data_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<Optimizer> optimizer_;
  Tape tape_;
  StepNumbers numbers_{};
  StepState state_{};
  uint64_t steps_ = 0;
};

}  // namespace tandem::testing

// The outer step of islands, groups of ranks that train copies of a model apart and now and then
// exchange what they moved (Douillard et al. 2023, "DiLoCo: Distributed low-communication training
// of language models"). Nesterov's momentum, as in optim/sgd.h:
//     d = mean over islands of (anchor - value)
//     momentum = mu momentum + d
//     anchor = anchor - lr (d + mu momentum)
//     value = anchor + what the island has moved since d was measured
// The last term is that of streaming DiLoCo (Douillard et al. 2025): training may go on while d is
// on its way. Without it, all islands have the same values afterwards.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "optim/optimizer.h"

namespace tandem {

struct OuterOptions {
  double lr = 0.7;        // at least 0
  double momentum = 0.9;  // mu, in [0, 1); with 0 and lr 1, all go on from their mean
};

// An island's optimizer, and the outer step beside it. State: that of the island's optimizer, and
// slot "outer_m", f32. The anchor is where all islands last were together; it is no slot, because
// values are equal to it whenever the islands are. Both are MemoryClass::kOptimizer: 8 bytes per
// element. Arrays of `elements()` numbers hold the shards one after another.
class OuterOptimizer final : public Optimizer {
 public:
  // Throws Error(kConfig) naming the key that is out of range, Error(kOutOfMemory) from `memory`.
  OuterOptimizer(std::unique_ptr<Optimizer> inner, const OuterOptions& options,
                 std::span<const Shard> shards, Memory& memory);

  void step(Stream& stream, std::span<const Shard> shards, const StepInputs& inputs) override {
    inner_->step(stream, shards, inputs);
  }
  void prepare(Stream& stream, const StepInputs& inputs) override {
    inner_->prepare(stream, inputs);
  }
  void update(Stream& stream, const Shard& shard, std::span<const Tensor> state) override {
    inner_->update(stream, shard, state);
  }
  void visit(const StateVisitor& visitor) const override;
  const Optimizer& inner() const { return *inner_; }

  // What follows is enqueued on the stream. `shards`: those of the constructor.

  // The islands are together: anchor = values.
  void start(Stream& stream, std::span<const Shard> shards) const;
  // moved = anchor - value. moved: f32 [elements()].
  void measure(Stream& stream, std::span<const Shard> shards, const Tensor& moved) const;
  // The outer step. d: f32 [elements()]. before: the values when d was measured, f32 [elements()];
  // empty if they have not changed since. Working copies of the values are left to the caller.
  void outer_step(Stream& stream, std::span<const Shard> shards, const Tensor& d,
                  const Tensor& before) const;

  int64_t elements() const { return anchor_.elements(); }
  const Tensor& anchor() const { return anchor_; }  // f32 [elements()]

 private:
  // Calls work(value, part) for each shard. part(array) is the shard's part of an array; empty if
  // that is.
  template <class F>
  void for_each(std::span<const Shard> shards, F work) const;

  std::unique_ptr<Optimizer> inner_;
  OuterOptions options_;
  std::vector<int64_t> begins_;  // of the shards in the arrays, and the end
  Tensor anchor_, momentum_;
};

namespace kernels {

struct OuterScalars {
  float lr, momentum;
};

// to = a - b; all [n].
void difference(Cpu, int64_t n, const float* a, const float* b, float* to);
void difference(Cuda, int64_t n, const float* a, const float* b, float* to);
// to = sum / count; both [n].
void mean(Cpu, int64_t n, const float* sum, float count, float* to);
void mean(Cuda, int64_t n, const float* sum, float count, float* to);
// The step of the head of this file. d: in; anchor, momentum and value: in and out; before: in, or
// null; all [n].
void outer_step(Cpu, const OuterScalars& scalars, int64_t n, const float* d, const float* before,
                float* anchor, float* momentum, float* value);
void outer_step(Cuda, const OuterScalars& scalars, int64_t n, const float* d, const float* before,
                float* anchor, float* momentum, float* value);

// For one element. Each sum has only one product, as in optim/adamw.h.
TANDEM_HOST_DEVICE inline void outer_step_of(const OuterScalars& s, float d, float moved_since,
                                             float& anchor, float& momentum, float& value) {
  momentum = d + s.momentum * momentum;
  anchor -= s.lr * (d + s.momentum * momentum);
  value = anchor + moved_since;
}

struct Minus {
  TANDEM_HOST_DEVICE float operator()(float a, float b) const { return a - b; }
};
struct Over {
  float count;
  TANDEM_HOST_DEVICE float operator()(float sum) const { return sum / count; }
};

}  // namespace kernels

}  // namespace tandem

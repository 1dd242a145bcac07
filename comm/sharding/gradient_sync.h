// Brings the gradients of a model's parameters from the layers to their sums over all ranks.
//
// Gradients are flat f32 arrays, cut into buckets. A bucket is summed over ranks during the
// backward pass, in f32, bf16 or fixed point. Gradients are not averaged: the factor 1 / targets is
// in the gradient from which backward starts. Besides its shards, a rank in ZeRO stages 2 and 3
// holds the whole gradients of at most two blocks.
//
// A step: begin_step; for each micro-step begin_backward, the model's forward pass with this gate,
// the tape's backward pass with on_final as its callback, finish_backward. Then the optimizer
// updates the shards of optimizer_shards.h, and ParamValues::gather follows. A call out of this
// order throws an Error(kInternal) that names it.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "comm/sharding/exact/exact_sums.h"
#include "comm/sharding/launch_order.h"
#include "comm/sharding/param_values.h"
#include "src/kernels/reduce.h"

namespace tandem {

class GradientSync final : public Gate {
 public:
  // All references must outlive this. Throws Error(kConfig) for options that exclude each other.
  GradientSync(const ModelLayout& layout, ParamValues& values, Stream& stream, Memory& memory,
               const StoreOptions& options);

  // Forgets the gradients: the first write to each overwrites it.
  void begin_step();
  void begin_backward(bool last_micro_step);
  // The tape's OnFinal callback: this micro-step adds nothing more to the parameter's gradient.
  void on_final(Context& context, Parameter& parameter);
  // Starts the remaining reductions. After the last micro-step, later work on the compute stream
  // sees the sums over ranks. Throws an Error(kConfig) that names a parameter without gradient in
  // the whole step, unless unused_is_error is false.
  //
  // False if the sums are exact and did not fit. Then nothing was changed, and all ranks must run
  // the whole step again, from begin_step.
  [[nodiscard]] bool finish_backward();

  // As in ParamValues. Sharded gradients get memory before a block's backward pass, and are sent
  // after it.
  void acquire(Context& context, BlockId block, Pass pass) override;
  void release(Context& context, BlockId block, Pass pass) override;
  bool is_collective() const override { return values_.is_collective(); }

  // result (f64 [1]) = the sum of squares of this rank's share of the gradients. Summed over ranks,
  // this is the global squared norm; NaN or infinite if a gradient is. All ZeRO stages give the
  // same bits if their buckets are the same. With exact sums rank 0 holds all of it, and the others
  // 0. Call after finish_backward. scratch: f64 [kReduceScratch].
  void squared_norm(const Tensor& result, const Tensor& scratch);
  // Whether gradients() hold the sums of a step.
  bool is_summed() const { return state_ == State::kSummed; }
  // The number of trained parameters without gradient in the last step; no value if that is an
  // error.
  std::optional<int64_t> unused() const;

  // The gradients on this rank: f32, the range place(bucket).gradients(); empty for a frozen
  // bucket.
  const Tensor& gradients(int64_t bucket) const { return buckets_[bucket].gradients; }
  // The size of all gradients in f32, padding included.
  int64_t bytes() const { return layout_.flat().trained_elements() * size_of(DType::kF32); }
  // The exact sums, for their exponents in checkpoints; null for floating-point sums.
  ExactSums* exact() { return exact_ ? &*exact_ : nullptr; }

 private:
  struct BucketMemory {
    Tensor gradients;  // f32, place.gradients()
    Tensor sums;       // i64: exact sums of the same range
    Tensor leaf;       // f32: of sharded gradients the whole bucket, in one micro-step
    Tensor message;    // to send: leaf or gradients, as they are or converted, or sums
    std::optional<Event> message_there;  // holds the sum over ranks
    bool written = false;                // sharded gradients, or sums, hold values of this step
    int64_t missing = 0;                 // parameters that are not final yet in this micro-step

    const Tensor& whole_gradient() const { return leaf ? leaf : gradients; }
  };
  // In each state the calls that may come next: begin_step; begin_backward; on_final or
  // finish_backward; squared_norm or begin_step.
  enum class State : uint8_t { kIdle, kBegun, kBackward, kSummed };

  void expect(State state, const char* call) const;
  void open(int64_t bucket);
  void require_gradient(Parameter& parameter);
  void become_ready(int64_t bucket);
  void reduce(int64_t bucket);
  void make_message(int64_t bucket);
  void send(int64_t bucket);
  void finish_oldest();
  bool finish_exact();

  const ModelLayout& layout_;
  ParamValues& values_;
  Stream& stream_;
  Memory& memory_;
  StoreOptions options_;
  std::vector<BucketMemory> buckets_;
  std::optional<ExactSums> exact_;
  bool is_finite_ = true;  // the leaves of the exact sums were

  State state_ = State::kIdle;
  LaunchOrder launch_order_{[this](int64_t bucket) { reduce(bucket); }};
  std::deque<int64_t> in_flight_;  // buckets whose messages are in flight
  bool last_micro_step_ = false;
  std::vector<bool> used_;          // by ParamId: got a gradient in this step
  ArrayListMemory<FlatArray> own_;  // on a GPU: this rank's share of the gradients
};

}  // namespace tandem

// Brings the gradients of a model's parameters from the layers to their sums over all ranks.
//
// Gradients are flat f32 arrays, cut into buckets. A bucket is summed over ranks during the
// backward pass, by a SumRule; here are the order of that and its states. Gradients are not
// averaged: the factor 1 / targets is in the gradient from which backward starts. Besides its
// shards, a rank in ZeRO stages 2 and 3 holds the whole gradients of at most two blocks.
//
// A step: begin_step; for each micro-step begin_backward, the model's forward pass with this gate,
// the tape's backward pass with on_final as its callback, finish_backward. Then the optimizer
// updates the shards of optimizer_shards.h, and ParamValues::gather follows. A call out of this
// order throws an Error(kInternal) that names it.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "comm/sharding/launch_order.h"
#include "comm/sharding/param_values.h"
#include "comm/sharding/sum_rule.h"

namespace tandem {

class GradientSync final : public Gate {
 public:
  // All references must outlive this. Throws Error(kConfig) for options that exclude each other.
  GradientSync(const ModelLayout& layout, ParamValues& values, Stream& stream, Memory& memory,
               const StoreOptions& options);

  // Forgets the gradients: the first write to each overwrites it.
  void begin_step();
  // numbers: of this micro-step, in device memory; needed if its gradients are rounded at random.
  void begin_backward(bool last_micro_step, const StepNumbers* numbers = nullptr);
  // The tape's OnFinal callback: this micro-step adds nothing more to the parameter's gradient.
  void on_final(Context& context, Parameter& parameter);
  // Starts the remaining reductions. After the last micro-step, later work on the compute stream
  // sees the sums over ranks. Throws an Error(kConfig) that names a parameter without gradient in
  // the whole step, unless unused_is_error is false.
  //
  // False if the rule cannot give the sums of this step. Then nothing was changed, and all ranks
  // must run the whole step again, from begin_step.
  [[nodiscard]] bool finish_backward();

  // As in ParamValues. Sharded gradients get memory before a block's backward pass, and are sent
  // after it.
  void acquire(Context& context, BlockId block, Pass pass) override;
  void release(Context& context, BlockId block, Pass pass) override;
  void await_exchange(Stream& compute, const Event& done) override {
    values_.timeline().wait(compute, done);
  }
  bool is_collective() const override { return values_.is_collective(); }

  // result (f64 [1]) = the sum of squares of this rank's share of the gradients. Summed over ranks,
  // this is the global squared norm; NaN or infinite if a gradient is. All ZeRO stages give the
  // same bits if their buckets are the same. Call after finish_backward. scratch: f64
  // [kReduceScratch].
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
  // For what it remembers from step to step, which checkpoints keep.
  SumRule& rule() { return *rule_; }

 private:
  struct BucketMemory {
    Tensor gradients;  // f32, place.gradients()
    Tensor sums;       // of the rule's dtype, the same range; the gradients themselves if it is f32
    Tensor leaf;       // f32: of sharded gradients the whole bucket, in one micro-step
    SumRule::Message message;
    std::optional<Event> message_there;  // its sum has arrived
    bool written = false;                // the sums hold values of this step
    int64_t missing = 0;                 // parameters that are not final yet in this micro-step
  };
  // In each state the calls that may come next: begin_step; begin_backward; on_final or
  // finish_backward; squared_norm or begin_step.
  enum class State : uint8_t { kIdle, kBegun, kBackward, kSummed };

  void expect(State state, const char* call) const;
  // Whether the rule sums each micro-step by itself, apart from the gradients.
  bool sums_are_apart() const { return rule_->dtype() != DType::kF32; }
  void open(int64_t bucket);
  void require_gradient(Parameter& parameter, bool last);
  void add_shared();
  void become_ready(int64_t bucket);
  void reduce(int64_t bucket);
  void send(int64_t bucket, const SumRule::Message& message);
  void finish_oldest();

  const ModelLayout& layout_;
  ParamValues& values_;
  Stream& stream_;
  Memory scratch_;
  StoreOptions options_;
  std::vector<BucketMemory> buckets_;
  std::unique_ptr<SumRule> rule_;

  State state_ = State::kIdle;
  LaunchOrder launch_order_{[this](int64_t bucket) { reduce(bucket); }};
  // Buckets whose messages are in flight. With more we wait for the oldest, which frees its memory.
  static constexpr size_t kInFlight = 1;
  std::deque<int64_t> in_flight_;
  bool last_micro_step_ = false;
  std::vector<bool> used_;  // by ParamId: got a gradient in this step
};

}  // namespace tandem

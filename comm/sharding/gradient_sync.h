// The gradients of a model's parameters, from the layers to their sums over all ranks.
//
// Gradients are f32 and flat, cut into buckets. A bucket is summed over ranks while the backward
// pass goes on, in f32, in bf16 or in fixed point. Sums are pure: the mean over the global batch is
// in what the backward pass starts from. Stages 2 and 3 hold at most two blocks' gradients.
//
// A step: begin_step; for each micro-step begin_backward, the model's forward pass with this gate,
// the tape's backward pass with on_final as its callback, finish_backward. Then the optimizer, on
// shards of optimizer_shards.h, and ParamValues::gather. A call out of this order is an
// Error(kInternal) that names it.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "comm/sharding/exact_sums.h"
#include "comm/sharding/param_values.h"
#include "comm/turns.h"

namespace tandem {

class GradientSync final : public Gate {
 public:
  struct Options {
    bool overlap = true;             // communicate while computation goes on
    bool unused_is_error = true;     // a parameter without gradient; otherwise its gradient is zero
    DType wire_dtype = DType::kF32;  // between ranks: f32, bf16
    int64_t exact_leaves = 0;        // 0: floating-point sums. Otherwise sums that no split changes
                                     // (exact_sums.h), and the micro-batches of all ranks in a step
  };
  // All references must outlive this. Throws Error(kConfig) for options that exclude each other.
  GradientSync(const ModelLayout& layout, ParamValues& values, Stream& stream, Memory& memory,
               const Options& options);

  // Forgets the gradients: the first write overwrites.
  void begin_step();
  void begin_backward(bool last_micro_step);
  // The tape's OnFinal callback: this micro-step adds nothing more to the parameter's gradient.
  void on_final(Context& context, Parameter& parameter);
  // Starts the reductions that are left; after the last micro-step, later work on the compute
  // stream sees the sums over ranks. Throws Error(kConfig) that names a parameter which got no
  // gradient in the whole step, unless that is allowed.
  //
  // True, unless the sums are exact and did not fit: then nothing was changed, and the whole step
  // must be run again, from begin_step, by all ranks alike.
  [[nodiscard]] bool finish_backward();

  // As those of the values; around the backward pass of a block also memory for its gradients.
  void acquire(Context& context, BlockId block, Pass pass) override;
  void release(Context& context, BlockId block, Pass pass) override;
  bool is_collective() const override { return values_.is_collective(); }

  // result (f64 [1]) = the sum of squares of this rank's share of the gradients. Summed over ranks,
  // this is the global squared norm, in all stages with the same bits where buckets are cut alike;
  // NaN or infinite if a gradient is. With exact sums rank 0 holds all of it, and the others 0.
  // Call after finish_backward. scratch: f64 [kReduceScratch].
  void squared_norm(const Tensor& result, const Tensor& scratch);
  // Wanted parameters that got no gradient in the step before this call; none where that is an
  // error.
  std::optional<int64_t> unused() const;

  // The sums here: f32, of place(bucket).gradients(); nothing of a frozen bucket.
  const Tensor& gradients(int64_t bucket) const { return buckets_[bucket].gradients; }
  // Of all gradients in f32, padding included: what the formulas for traffic call E'.
  int64_t bytes() const { return layout_.flat().trained_elements() * size_of(DType::kF32); }
  // The exponents of exact sums, for checkpoints; null without them.
  ExactSums* exact() { return exact_ ? &*exact_ : nullptr; }

 private:
  struct BucketMemory {
    Tensor gradients;  // f32, place.gradients()
    Tensor sums;       // i64 of exact sums; as `gradients`
    Tensor leaf;       // f32: while sharded gradients are whole: of one micro-step
    Tensor message;    // on the wire: the leaf or gradients themselves, in another dtype, or sums
    std::optional<Event> message_there;  // its sum over ranks
    bool written = false;                // sharded gradients, or sums, hold something of this step
    int64_t missing = 0;                 // parameters that are not final yet in this micro-step

    const Tensor& whole_gradient() const { return leaf ? leaf : gradients; }
  };
  // What may be called: begin_step, begin_backward, on_final and finish_backward, anything else.
  enum class State : uint8_t { kIdle, kBegun, kBackward, kSummed };

  void allocate();
  void expect(State state, const char* call) const;
  bool is_exact() const { return options_.exact_leaves > 0; }
  void open(int64_t bucket);
  void settle(Parameter& parameter);
  void become_ready(int64_t bucket);
  void reduce(int64_t bucket);
  void make_message(int64_t bucket);
  void send(int64_t bucket);
  void finish_oldest();
  bool finish_exact();
  void await(BucketMemory& memory);
  std::vector<ExactSegment> exact_segments(int64_t bucket, Range range) const;

  const ModelLayout& layout_;
  ParamValues& values_;
  Stream& stream_;
  Memory& memory_;
  Options options_;
  std::vector<BucketMemory> buckets_;
  std::optional<ExactSums> exact_;
  bool is_finite_ = true;  // what the exact sums were of

  State state_ = State::kIdle;
  Turns turns_{[this](int64_t bucket) { reduce(bucket); }};
  std::deque<int64_t> in_flight_;  // buckets whose messages are under way
  bool last_micro_step_ = false;
  std::vector<bool> used_;  // by ParamId: got a gradient in this step
};

}  // namespace tandem

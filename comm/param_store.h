// The memory of a model's parameters, gradients and master weights, over all ranks.
//
// Everything lives in flat buffers, cut into buckets (flat_layout.h); how a bucket rests between
// its uses is a row of kZero (flat_buffer.h), ZeRO's table. Every Parameter is given views: of the
// whole value and gradient, for as long as its block needs them. Gradients and masters are f32; the
// values that layers compute with are the masters themselves, or their copy rounded to bf16 or fp16
// (Micikevicius et al. 2018, "Mixed precision training"). A frozen parameter has values alone, in
// the type that layers compute with.
//
// The store is the model's gate (blocks ask it for their values), receives the tape's word that a
// gradient is final, sums gradients over ranks bucket by bucket while backward goes on, and shows
// the optimizer this rank's part as flat shards. Sums are pure: the mean over the global batch is
// in the backward seed.
//
// A step: begin_step; for each micro-step begin_backward, the model's forward pass with this gate,
// the tape's backward pass with on_final as its callback, finish_backward; then the optimizer on
// shards(), then gather. Padding between and behind parameters is zero and stays zero.
//
// Stage 3 holds at most two blocks' values at a time besides the shared parameters, which rest
// whole: a block's are gathered while the one before it computes, and given back behind it; the
// last block's serve forward and backward. Stages 2 and 3 hold at most two blocks' gradients.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/exact_sums.h"
#include "comm/exposure.h"
#include "comm/flat_buffer.h"
#include "comm/flat_layout.h"
#include "comm/turns.h"
#include "src/autograd/context.h"
#include "src/autograd/gate.h"
#include "src/core/shard.h"

namespace tandem {

class ParamStore final : public Gate {
 public:
  struct Options {
    int64_t bucket_bytes = int64_t{4} << 20;
    bool overlap = true;             // communicate while computation goes on
    int zero = 0;                    // ZeRO stage
    bool unused_is_error = true;     // a parameter without gradient; otherwise its gradient is zero
    DType dtype = DType::kF32;       // of parameter values: f32, bf16, fp16
    DType wire_dtype = DType::kF32;  // of gradients between ranks: f32, bf16
    int64_t exact_leaves = 0;        // 0: floating-point sums. Otherwise sums that no split changes
                                     // (exact_sums.h), and the micro-batches of all ranks in a step
  };

  // Part of a parameter's weights in this rank's memory.
  struct Weights {
    const Parameter* parameter = nullptr;
    int64_t offset = 0;  // in the parameter
    Tensor data{};       // flat; masters: f32; of a frozen parameter: values, in their type
  };
  // Part of a parameter and where it lies in a shard; in elements.
  struct Piece {
    const Parameter* parameter = nullptr;
    int64_t offset = 0;        // in the parameter
    int64_t shard_offset = 0;  // in the shard
    int64_t count = 0;
  };

  // Collective. Sets id, value and grad of all parameters; the blocks' order is the forward order
  // and the BlockId. `stream`: the compute stream. All references must outlive the store. Throws
  // Error(kConfig) for a ZeRO stage that does not exist and for options that exclude each other,
  // and when the layout differs between ranks.
  ParamStore(std::vector<BlockParameters> blocks, Hierarchy& ranks, Stream& stream, Memory& memory,
             const Options& options);

  // Collective. Fills all values: a pure function of the seed and the parameters' names.
  void initialize(uint64_t seed);
  // Collective, after shards()[].value were written from outside: rounds them into the values and
  // brings these to all ranks.
  void publish();
  // Collective, behind the optimizer: starts to bring the updated values to all ranks, in the order
  // in which the next forward pass wants them. Blocks wait for theirs when they begin.
  void gather();

  // Forgets the gradients: the first write overwrites.
  void begin_step();
  void begin_backward(bool last_micro_step);
  // The tape's OnFinal callback: this micro-step adds nothing more to the parameter's gradient.
  void on_final(Context& context, Parameter& parameter);
  // Starts the reductions that are left; after the last micro-step, later work on the compute
  // stream sees the sums over ranks in shards(). Throws Error(kConfig) that names a parameter which
  // got no gradient in the whole step, unless that is allowed.
  //
  // True, unless the sums are exact and did not fit: then nothing was changed, and the whole step
  // must be run again, from begin_step, by all ranks alike.
  [[nodiscard]] bool finish_backward(Context& context);

  void acquire(Context& context, BlockId block, Pass pass) override;
  void release(Context& context, BlockId block, Pass pass) override;
  bool is_collective() const override;  // blocks communicate when they begin

  // result (f64 [1]) = the sum of squares of this rank's share of the gradients: the sum over ranks
  // is that of all, in all stages with the same bits where buckets are cut alike; NaN or infinite
  // if one is. With exact sums rank 0's is that of all right away, and the others' are 0. Behind
  // finish_backward. scratch: f64 [kReduceScratch].
  void squared_norm(const Tensor& result, const Tensor& scratch);
  // Parameters that got no gradient in the step before this call, frozen ones aside; none where
  // that is an error.
  std::optional<int64_t> unused() const;
  // Everything that waited for communication; for the trainer to add to, and to take.
  Exposure& exposure() { return exposure_; }

  // What the optimizer sees: per bucket at most two, the decayed and the other parameters. Frozen
  // ones are in none.
  std::span<const Shard> shards() const { return shards_; }
  // All of shards()[shard], by offset; padding belongs to no piece.
  std::vector<Piece> pieces(size_t shard) const;
  // All weights here, those of frozen parameters too.
  std::vector<Weights> weights() const;
  // What of them this rank writes to a checkpoint: over all ranks, every element exactly once.
  std::vector<Piece> owned_pieces(size_t shard) const;
  std::vector<Weights> owned_weights() const;

  const FlatLayout& layout() const { return layout_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }  // by ParamId
  int64_t parameter_elements() const;                                        // without padding
  // Of all gradients in f32, padding included: what the formulas for traffic call E'.
  int64_t gradient_bytes() const { return layout_.trained_elements() * size_of(DType::kF32); }
  DType dtype() const { return options_.dtype; }
  Hierarchy& ranks() const { return ranks_; }
  // The exponents of exact sums, for checkpoints; null without them.
  ExactSums* exact() { return exact_ ? &*exact_ : nullptr; }

 private:
  // A bucket's memory on this rank. "Part": this rank's part of it; otherwise the whole bucket.
  struct BucketMemory {
    Resting rests{};
    Range part{};
    Tensor values;     // part when sharded; the compute dtype
    Tensor masters;    // f32; part when the state is sharded; memory of `values` where they are f32
                       // or frozen
    Tensor gradients;  // f32; part when sharded; nothing when frozen
    Tensor sums;       // i64 of exact sums; as `gradients`

    Tensor gathered;                    // while sharded values are whole: between fetch and release
    std::optional<Event> values_there;  // the communication that brings the values
    Tensor leaf;                        // f32: while sharded gradients are whole: of one micro-step
    Tensor message;  // on the wire: the leaf or gradients themselves, in another dtype, or sums
    std::optional<Event> message_there;  // its sum over ranks
    bool written = false;                // sharded gradients, or sums, hold something of this step
    int64_t missing = 0;                 // parameters that are not final yet in this micro-step

    bool shards_values() const { return rests.parameters == Placement::kSharded; }
    bool shards_gradients() const { return rests.gradients == Placement::kSharded; }
    bool shards_state() const { return rests.state == Placement::kSharded; }
    const Tensor& whole_gradient() const { return leaf ? leaf : gradients; }
  };

  // param_store.cpp: the memory.
  void allocate();
  void add_shards();
  Range state_range(int64_t bucket) const;  // what masters, gradients and state here are of
  Range owned_range(int64_t bucket) const;  // over all ranks, every element exactly once
  void bind(int64_t bucket, const Tensor& flat, Tensor Parameter::*view) const;
  std::vector<Piece> pieces_in(size_t shard, Range range) const;
  void add_weights(int64_t bucket, Range range, std::vector<Weights>& all) const;
  void await(std::optional<Event>& communication);
  bool is_alone() const { return ranks_.world().size() == 1; }

  // param_store_values.cpp: values that come and go.
  void start_gather(int64_t bucket, const Tensor& whole);
  void fetch(int64_t bucket);
  void fetch_block(int64_t block);
  void drop_all_but(int64_t block, int64_t next);
  bool has_sharded(int64_t block) const;
  int64_t next_sharded(int64_t block, Pass pass) const;

  // param_store_gradients.cpp: gradients on their way to sums.
  bool is_exact() const { return options_.exact_leaves > 0; }
  void open_gradients(int64_t bucket);
  void settle(Parameter& parameter);
  void become_ready(int64_t bucket);
  void reduce(int64_t bucket);
  void send(int64_t bucket);
  void finish_oldest_reduction();
  bool finish_exact();
  std::vector<ExactSegment> exact_segments(int64_t bucket, Range range) const;

  Hierarchy& ranks_;
  Stream& stream_;
  Memory& memory_;
  Options options_;
  std::vector<BlockParameters> blocks_;
  std::vector<Parameter*> parameters_;
  FlatLayout layout_;
  int64_t first_trained_;  // the first block of a wanted parameter: backward ends there
  std::vector<BucketMemory> buckets_;
  std::vector<Shard> shards_;
  struct ShardPlace {
    int64_t bucket;
    Range range;  // in the flat buffers
  };
  std::vector<ShardPlace> shard_places_;
  std::optional<ExactSums> exact_;
  bool is_finite_ = true;  // what the exact sums were of

  Turns turns_{[this](int64_t bucket) { reduce(bucket); }};
  std::deque<int64_t> in_flight_;  // buckets whose messages are under way
  bool last_micro_step_ = false;
  std::vector<bool> used_;  // by ParamId: got a gradient in this step
  Exposure exposure_;
};

}  // namespace tandem

// The memory of a model's parameters and gradients, over all ranks.
//
// Values and gradients live in flat buffers; every Parameter is given views of them. Gradients and
// the master weights, which the optimizer updates, are f32; the values that layers compute with are
// the master weights themselves, or their copy rounded to bf16 or fp16 (Micikevicius et al. 2018,
// "Mixed precision training"). The
// store is the model's gate (blocks ask it for their values), receives the tape's word that a
// gradient is final, sums gradients over ranks bucket by bucket while backward goes on, and shows
// the optimizer flat shards. Sums are pure: the mean over the global batch is in the backward seed.
//
// A step: begin_step, then for each micro-step begin_backward, the tape's backward pass with
// on_final as its callback, finish_backward; then the optimizer on shards(). Padding between and
// behind parameters is zero and stays zero.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/flat_layout.h"
#include "comm/reducer.h"
#include "src/autograd/context.h"
#include "src/autograd/gate.h"
#include "src/core/shard.h"

namespace tandem {

class ParamStore final : public Gate {
 public:
  struct Options {
    int64_t bucket_bytes = int64_t{4} << 20;
    bool overlap = true;             // reduce while backward goes on, not after it
    int zero = 0;                    // ZeRO stage
    bool unused_is_error = true;     // a parameter without gradient; otherwise its gradient is zero
    DType dtype = DType::kF32;       // of parameter values: f32, bf16, fp16
    DType wire_dtype = DType::kF32;  // of gradients between ranks: f32, bf16
  };

  // Part of a parameter and where it lies in a shard; in elements.
  struct Piece {
    const Parameter* parameter = nullptr;
    int64_t offset = 0;        // in the parameter
    int64_t shard_offset = 0;  // in the shard
    int64_t count = 0;
  };

  // Collective. Sets id, value and grad (views) of all parameters; the blocks' order is the
  // forward order and the BlockId. The parameters, the communicator and the memory must outlive the
  // store. Throws Error(kConfig) for a ZeRO stage that this build does not have, and when the
  // layout differs between ranks.
  ParamStore(std::vector<BlockParameters> blocks, Communicator& communicator, Memory& memory,
             const Options& options);

  // Fills all values: a pure function of the seed and the parameters' names.
  void initialize(Stream& stream, uint64_t seed);
  // After shards()[].value were written from outside: rounds them into the values.
  void publish(const Stream& stream);

  // Forgets the gradients: the first write overwrites.
  void begin_step();
  void begin_backward(bool last_micro_step);
  // The tape's OnFinal callback: this micro-step adds nothing more to the parameter's gradient.
  void on_final(Context& context, Parameter& parameter);
  // After the last micro-step: starts the reductions that are left; later work on the compute
  // stream sees the sums over ranks. Throws Error(kConfig) that names a parameter which got no
  // gradient in the whole step, unless that is allowed. Returns the communication that no
  // computation hid: nothing after the other micro-steps and with one rank.
  Exposure finish_backward(Context& context);

  // With replicated parameters there is nothing to bring or to drop.
  void acquire(Context&, BlockId, Pass) override {}
  void release(Context&, BlockId, Pass) override {}

  // What the optimizer sees: per bucket at most two, the decayed and the other parameters.
  std::span<const Shard> shards() const { return shards_; }
  // All of shards()[shard], by offset; padding belongs to no piece.
  std::vector<Piece> pieces(size_t shard) const;
  // What this rank writes to a checkpoint: over all ranks, every element exactly once.
  std::vector<Piece> owned_pieces(size_t shard) const;

  const FlatLayout& layout() const { return layout_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }  // by ParamId
  int64_t parameter_elements() const;                                        // without padding
  // Of the flat gradient buffer, padding included: a step sends 2 (N - 1) / N of it per rank.
  int64_t gradient_bytes() const { return gradients_.bytes(); }
  DType dtype() const { return options_.dtype; }

 private:
  void add_shard(Range range, bool decay);
  std::vector<Piece> pieces_in(size_t shard, Range range) const;
  void make_reducer(Memory& memory);
  void settle_unused(const Stream& stream, Parameter& parameter) const;

  Communicator& communicator_;
  Options options_;
  std::vector<BlockParameters> blocks_;
  std::vector<Parameter*> parameters_;
  FlatLayout layout_;
  Tensor masters_;    // f32 [layout().elements()]
  Tensor values_;     // the masters, or of the compute dtype
  Tensor gradients_;  // f32
  std::vector<Shard> shards_;
  std::vector<Range> shard_ranges_;  // in the flat buffers
  std::optional<Reducer> reducer_;   // none with one rank
  bool last_micro_step_ = false;
  std::vector<int64_t> missing_;  // by bucket: parameters that are not final yet
};

}  // namespace tandem

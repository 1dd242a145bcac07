// The values of a model's parameters over all ranks: where layers read them, and the f32 master
// weights that an optimizer updates.
//
// Values are the masters themselves, or their copy rounded to bf16 or fp16 (Micikevicius et al.
// 2018, "Mixed precision training"). A frozen parameter has values alone. Stage 3 holds at most two
// blocks' values at a time besides the shared parameters, which rest whole: a block's values are
// gathered while the block before it computes, and freed after use; the last block's serve forward
// and backward. Padding between and after parameters is zero and stays zero.
#pragma once

#include <optional>
#include <vector>

#include "comm/exposure.h"
#include "comm/sharding/model_layout.h"
#include "src/autograd/context.h"
#include "src/autograd/gate.h"

namespace tandem {

class ParamValues final : public Gate {
 public:
  // `dtype`: f32, bf16 or fp16. `overlap`: gather while computation goes on. `stream`: the compute
  // stream. All references must outlive this.
  ParamValues(const ModelLayout& layout, Stream& stream, Memory& memory, DType dtype,
              bool overlap = true);

  // Collective. Fills all values: a pure function of the seed and the parameters' names.
  void initialize(uint64_t seed);
  // Collective, after masters were written from outside: rounds them into the values and brings
  // these to all ranks.
  void publish();
  // Collective, after the optimizer: starts to bring the updated values to all ranks, in the order
  // in which the next forward pass wants them. Blocks wait for theirs when they begin.
  void gather();
  // Later work on the compute stream sees all that gather() brings.
  void await_all();

  void acquire(Context& context, BlockId block, Pass pass) override;
  void release(Context& context, BlockId block, Pass pass) override;
  bool is_collective() const override;  // blocks communicate when they begin

  // Of place(bucket).state(): f32, or of a frozen bucket values in their type.
  const Tensor& masters(int64_t bucket) const { return buckets_[bucket].masters; }
  // The values that an optimizer rounds anew, as masters; nothing where they are the masters.
  Tensor working(int64_t bucket) const;

  // Part of a parameter's masters in this rank's memory.
  struct Weights {
    const Parameter* parameter = nullptr;
    int64_t offset = 0;  // in the parameter
    Tensor data{};       // flat; f32, or of a frozen parameter in the type of values
  };
  std::vector<Weights> weights() const;        // all that are here
  std::vector<Weights> owned_weights() const;  // over all ranks, every element exactly once

  DType dtype() const { return dtype_; }
  // Everything that waited for communication; to add to, and to take.
  Exposure& exposure() { return exposure_; }

 private:
  struct BucketMemory {
    Tensor values;                // place.values(); the compute dtype
    Tensor masters;               // place.state(); where they are no copy, memory of `values`
    Tensor gathered;              // while sharded values are whole: between fetch and release
    std::optional<Event> arrive;  // the communication that brings the values
  };

  void allocate(Memory& memory);
  Tensor state_in(int64_t bucket, const Tensor& values) const;
  void add_weights(int64_t bucket, Range range, std::vector<Weights>& all) const;
  void await(BucketMemory& memory);
  void start_gather(int64_t bucket, const Tensor& whole);
  void fetch(int64_t block);
  void drop_all_but(int64_t block, int64_t next);
  bool has_sharded(int64_t block) const;
  int64_t next_sharded(int64_t block, Pass pass) const;

  const ModelLayout& layout_;
  Stream& stream_;
  Memory& memory_;
  DType dtype_;
  bool overlap_;
  std::vector<BucketMemory> buckets_;
  Exposure exposure_;
};

}  // namespace tandem

// The values of a model's parameters over all ranks: the values that layers read, and the f32
// master weights that an optimizer updates.
//
// Values are the masters themselves, or a copy rounded to bf16 or fp16 (Micikevicius et al. 2018,
// "Mixed precision training"). Values that are gathered in eight bits are rounded on all ranks; if
// they are f32, then they are a copy, too. A frozen parameter has only values. In ZeRO stage 3 a
// block's values are gathered while the previous block computes, and freed after use. Besides the
// shared parameters, which are always whole, at most two blocks are whole at a time. The last
// block's values are kept from forward to backward. Padding between and after parameters is zero
// and stays zero, and so do the padding rows of classes, because their gradient is zero.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "comm/sharding/model_layout.h"
#include "src/autograd/context.h"
#include "src/autograd/gate.h"
#include "src/trace/timeline.h"

namespace tandem {

class ParamValues final : public Gate {
 public:
  // `stream`: the compute stream. `host`: page-locked memory, for options.offload_run. All
  // references must outlive this.
  ParamValues(const ModelLayout& layout, Stream& stream, Memory& memory,
              const StoreOptions& options, Memory* host = nullptr);

  // Each rank fills what it keeps: a pure function of the seed and the parameters' names.
  void initialize(uint64_t seed);
  // Call after masters were written from outside: rounds them into the values.
  void publish();
  // Updates masters and values of a bucket, and returns when they are written.
  using Update = std::function<Event(int64_t bucket)>;
  // Call after the optimizer, or leave the update to gather(), which calls it for each trained
  // bucket, in their order. The values are then not whole, as after initialize() and publish(), and
  // gather() must come before the next block begins.
  void outdate(Update update = {});
  // Collective. Starts to gather the values on all ranks, in the order in which a forward pass
  // needs them; does nothing if they are whole. A block waits for its values when it begins.
  void gather();
  // Afterwards later work on the compute stream sees all values that gather() brings.
  void await_all();

  void acquire(Context& context, BlockId block, Pass pass) override;
  void release(Context& context, BlockId block, Pass pass) override;
  // Blocks communicate when they begin.
  bool is_collective() const override { return next_sharded(-1, Pass::kForward) >= 0; }

  // The range place(bucket).state(): f32 masters, on the host if those of 16-bit values are
  // offloaded; of a frozen bucket its values, in their dtype.
  const Tensor& masters(int64_t bucket) const { return buckets_[bucket].masters; }
  // The values of the same range in bf16 or fp16, which an optimizer writes; empty if they are f32.
  Tensor working(int64_t bucket) const;

  // A run of a parameter's masters in this rank's memory.
  struct Weights {
    const Parameter* parameter = nullptr;
    int64_t offset = 0;  // in the parameter
    Tensor data{};       // flat; f32, or for a frozen parameter the dtype of values
  };
  // All on this rank.
  std::vector<Weights> weights() const { return weights_here(false); }
  // Over all ranks, every element exactly once.
  std::vector<Weights> saved_weights() const { return weights_here(true); }

  DType dtype() const { return options_.dtype; }
  // Where the compute stream's time goes; waiting for values is in it. Callers may add to it, and
  // take it.
  Timeline& timeline() { return timeline_; }

 private:
  struct BucketMemory {
    Tensor values;                 // place.values(); the compute dtype
    Tensor masters;                // place.state(); a view of `values`, unless these are a copy
    Tensor gathered;               // the whole bucket of sharded values: from fetch to release
    std::optional<Event> late;     // the last update of the values, if gather() has made it
    std::optional<Event> updated;  // that update, until the compute stream waits for it
    std::optional<Event> arrive;   // the communication that brings the values
  };

  Tensor state_in(int64_t bucket, const Tensor& values) const;
  void round(const Tensor& masters, const Tensor& rounded);
  std::vector<Weights> weights_here(bool only_saved) const;
  void start_gather(int64_t bucket, const Tensor& whole, const Event& ready);
  void await(BucketMemory& bucket);
  void fetch(int64_t block);
  void drop_all_but(int64_t block, int64_t next);
  bool has_sharded(int64_t block) const;
  int64_t next_sharded(int64_t block, Pass pass) const;

  const ModelLayout& layout_;
  Stream& stream_;
  Memory scratch_;
  StoreOptions options_;
  std::vector<BucketMemory> buckets_;
  bool are_outdated_ = false;  // since the last gather()
  Update update_;              // which gather() must still call
  Timeline timeline_;
};

}  // namespace tandem

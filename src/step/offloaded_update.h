// The optimizer's update where masters and state rest in the host's memory: they stream through the
// device's memory, bucket by bucket, beside what the compute stream does. The kernel is that of
// other steps, so the bits are, too (ZeRO-Offload, Ren et al. 2021, updates on the CPU instead).
//
// A step leaves its update to the next one, whose forward pass hides most of it:
// ParamValues::gather() calls update() for each bucket, in forward order. The first runs arrive
// before, during backward.
#pragma once

#include <span>
#include <vector>

#include "comm/sharding/param_store.h"
#include "optim/optimizer.h"
#include "src/device/host/window.h"

namespace tandem {

class OffloadedUpdate {
 public:
  // `compute`: the stream that computes gradients. All references must outlive this.
  OffloadedUpdate(const ParamStore& store, Optimizer& optimizer, Stream& compute, Memory& memory);

  // Begins to bring the first runs, if they are not there.
  void prefetch();
  // Updates a bucket's shards by what Optimizer::prepare() has prepared. The buckets must come in
  // their order, each once for a step. Returns when values are written.
  Event update(int64_t bucket);
  // Masters and state are as the updates so far leave them.
  Event rest() { return window_.rest(); }
  // Copied so far, each way.
  int64_t bytes() const { return window_.bytes(); }

 private:
  // A shard, and what of it rests on the host: its masters, if they do, then its state by slot.
  struct Run {
    int64_t bucket = 0;
    Shard shard{};
    std::vector<Tensor> resting{};
  };
  static std::vector<Run> runs_of(const ParamStore& store, const Optimizer& optimizer);
  void bring_until(size_t end);
  void update_run(const Run& run);

  Optimizer& optimizer_;
  Stream& compute_;
  std::vector<Run> runs_;  // by shard
  Stream work_;
  HostWindow window_;
  size_t next_ = 0;  // the run to update
};

}  // namespace tandem

// Collectives among GPUs over NCCL, on a CUDA stream of their own with high priority.
//
// The host enqueues a collective and goes on. A rank that is lost or stuck shows at wait(), which
// has a deadline; Event::synchronize() would wait for ever. After a failure the communicator is
// aborted, with all that it was split from and into, and everything but control messages throws the
// same error.
//
// Control messages take another way and need no GPU.
#pragma once

#include <atomic>
#include <memory>

#include "comm/collectives.h"
#include "comm/control.h"
#include "comm/group.h"

struct ncclComm;

namespace tandem {

class NcclStream;

class NcclCollectives final : public Collectives {
 public:
  // Elements of one NCCL call; longer tensors are cut.
  static constexpr int64_t kLargestCount = int64_t{1} << 30;

  // Collective. The ranks of `control`, all of the job, each with the GPU in use on this thread.
  // `control` must outlive this and carries all control messages. `timeout_s`: seconds without
  // progress that start-up and wait() allow; read at every wait. Throws Error(kConfig) when two
  // ranks have one GPU, kTemporary when NCCL does not come up.
  NcclCollectives(Control& control, const std::atomic<double>& timeout_s,
                  int64_t largest_count = kLargestCount);
  ~NcclCollectives() override;

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  Stream& stream() override;
  // Sees failures of all collectives on the stream, of whichever split.
  void wait(const Event& event) override;

  // Tensors in this GPU's memory, which must live until the collective has been waited for.
  void all_reduce(const Tensor& inout, Traffic traffic) override;
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void all_to_all(const Tensor& in, const Tensor& out) override;
  void broadcast(const Tensor& inout, int root) override;

  std::unique_ptr<Collectives> split(std::span<const int> colors) override;
  void set_nodes(std::span<const int> node_of_rank) override { group_.set_nodes(node_of_rank); }
  // Of tensors: what this rank sends in a ring, though NCCL may choose another way.
  WireCount wire() const override;

 private:
  NcclCollectives(std::shared_ptr<NcclStream> nccl, std::unique_ptr<Control> control, Group group,
                  int64_t largest_count);
  template <class F>
  void start(const char* name, int64_t bytes, F calls);
  int next() const { return (rank() + 1) % size(); }  // along the ring
  void count(Traffic traffic, int to, int64_t bytes);

  std::unique_ptr<Control> own_control_;  // of a split
  Control& control_;
  int64_t largest_count_;
  Group group_;
  std::shared_ptr<NcclStream> nccl_;  // shared with what this was split from and into
  int exceptions_;                    // under way when this was made
  ncclComm* comm_;
  WireCount wire_;
  int64_t number_ = 0;  // of the last collective
};

}  // namespace tandem

// Collectives among GPUs over NCCL, on CUDA streams of their own with high priority.
//
// The host enqueues a collective and goes on. A lost or stuck rank is noticed by wait(), which has
// a deadline; Event::synchronize() would wait for ever. A failure aborts the communicators of the
// job and of all splits. Afterwards everything except control messages throws the same error.
//
// Control messages do not go through NCCL and need no GPU.
#pragma once

#include <atomic>
#include <memory>

#include "comm/transport/ranks.h"
#include "src/device/ranks/collectives.h"
#include "src/device/ranks/control.h"
#include "src/trace/flight_log.h"

struct ncclComm;

namespace tandem {

class NcclStream;

class NcclCollectives final : public Collectives {
 public:
  // Most elements of one NCCL call; longer tensors take several calls.
  static constexpr int64_t kLargestCount = int64_t{1} << 30;

  // Collective. Joins the ranks of `control`, which are all ranks of the job; each uses the current
  // GPU of its calling thread. `control` carries all control messages and must outlive this.
  // `timeout_s`: seconds without progress that start-up and wait() allow; read at every wait.
  // Throws Error(kConfig) if two ranks use one GPU, Error(kTemporary) if NCCL does not start.
  NcclCollectives(Control& control, const std::atomic<double>& timeout_s,
                  int64_t largest_count = kLargestCount);
  ~NcclCollectives() override;

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  Stream& stream() override { return *stream_; }
  // Throws for failures of all collectives of the job, also those of other splits.
  void wait(const Event& event) override;

  // Tensors must be in this GPU's memory and live until the collective has been waited for.
  void all_reduce(const Tensor& inout, Traffic traffic) override;
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                    std::span<const Range> received, int64_t agreed_bytes) override;

  void before_graph(Stream& compute) override;
  void add_graph(const Event& done) override;

  std::unique_ptr<Collectives> split(std::span<const int> colors) override;
  std::unique_ptr<Collectives> split_apart(std::span<const int> colors) override;
  void set_nodes(std::span<const int> node_of_rank) override { group_.set_nodes(node_of_rank); }
  // Tensor bytes are those of a ring, though NCCL may choose another algorithm.
  WireCount wire() const override;

 private:
  NcclCollectives(const NcclCollectives& all, std::shared_ptr<Stream> stream,
                  std::span<const int> colors, bool is_apart);
  WireCount& counter();
  template <class F>
  void start(const char* name, Traffic traffic, int64_t to_next, int64_t bytes, F calls);

  std::unique_ptr<Control> own_control_;  // of a split
  Control& control_;
  int64_t largest_count_;
  Ranks group_;
  const uint64_t flight_group_ = flight_log().open_group(group_.name());
  std::shared_ptr<NcclStream> nccl_;  // shared with splits
  std::shared_ptr<Stream> stream_;
  int exceptions_;  // in flight when this was made
  ncclComm* comm_;
  WireCount wire_, wire_of_graph_;  // the latter at each launch
  int64_t number_ = 0;              // of the last collective
};

}  // namespace tandem

// Collectives among GPUs over NCCL, on a CUDA stream of their own with high priority.
//
// The host enqueues a collective and goes on. A rank that is lost or stuck shows at wait(), which
// has a deadline; Event::synchronize() would wait for ever. After a failure the communicator is
// aborted, and everything but control messages throws the same error.
//
// Control messages take another way and need no GPU.
#pragma once

#include <atomic>
#include <memory>

#include "comm/communicator.h"

namespace tandem {

class NcclCommunicator final : public Communicator {
 public:
  // Elements of one NCCL call; longer tensors are cut.
  static constexpr int64_t kLargestCount = int64_t{1} << 30;

  // Collective. The ranks of `control`, each with the GPU in use on this thread. `control` must
  // outlive this and carries all control messages. `timeout_s`: seconds without progress that
  // start-up and wait() allow; read at every wait. Throws Error(kConfig) when two ranks have one
  // GPU, kTemporary when NCCL does not come up.
  NcclCommunicator(Communicator& control, const std::atomic<double>& timeout_s,
                   int64_t largest_count = kLargestCount);
  ~NcclCommunicator() override;

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  Stream& stream() override { return stream_; }
  void wait(const Event& event) override;

  // Tensors in this GPU's memory, which must live until the collective has been waited for. Sums
  // are f32, f64, bf16 or fp16.
  void all_reduce(const Tensor& inout) override;
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void broadcast(const Tensor& inout, int root) override;

  std::vector<double> sum(std::span<const double> values) override { return control_.sum(values); }
  std::string broadcast(std::string text, int root) override {
    return control_.broadcast(std::move(text), root);
  }
  std::vector<std::string> all_gather(const std::string& text) override {
    return control_.all_gather(text);
  }
  void barrier() override { control_.barrier(); }
  // Payload: what this rank sends in a ring, though NCCL may choose another way.
  WireCount wire() const override;

 private:
  class Nccl;  // the library's communicator

  Communicator& control_;
  int64_t largest_count_;
  Stream stream_;
  std::unique_ptr<Nccl> nccl_;
  int64_t payload_bytes_ = 0, collectives_ = 0;
};

}  // namespace tandem

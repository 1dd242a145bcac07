// Collectives over MPI point-to-point messages, on the world's worker thread, or apart from it on a
// thread of their own.
//
// Tensors in GPU memory are staged through the host: slow, but it lets ranks share a GPU.
#pragma once

#include <functional>
#include <memory>

#include "comm/transport/mpi_queue.h"
#include "src/device/ranks/collectives.h"

namespace tandem {

class MpiCollectives final : public Collectives {
 public:
  explicit MpiCollectives(MpiQueue queue);

  int rank() const override { return queue_.rank(); }
  int size() const override { return queue_.size(); }
  Stream& stream() override { return queue_.worker(); }

  // Errors of a tensor collective are thrown at the next wait for the stream: kTemporary if a rank
  // is silent or the network fails, kInternal if ranks disagree about sizes.
  void all_reduce(const Tensor& inout, Traffic traffic) override;
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                    std::span<const Range> received, int64_t agreed_bytes) override;

  std::unique_ptr<Collectives> split(std::span<const int> colors) override;
  std::unique_ptr<Collectives> split_apart(std::span<const int> colors) override;
  void set_nodes(std::span<const int> node_of_rank) override { queue_.set_nodes(node_of_rank); }
  // Bytes that the worker has sent so far: exact after stream().synchronize().
  WireCount wire() const override;

 private:
  class Staging;
  using Work = std::function<void(Ring&, Staging&)>;
  MpiCollectives(MpiQueue queue, std::shared_ptr<Staging> staging, std::shared_ptr<Stream> own)
      : own_worker_(std::move(own)), queue_(std::move(queue)), staging_(std::move(staging)) {}
  void start(MpiKind kind, Traffic traffic, int64_t bytes, Work work);

  std::shared_ptr<Stream> own_worker_;  // shared with splits; null: the world's
  MpiQueue queue_;
  std::shared_ptr<Staging> staging_;  // shared with splits: the worker runs one at a time
  int64_t collectives_ = 0;
};

}  // namespace tandem

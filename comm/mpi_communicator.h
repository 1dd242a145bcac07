// Collectives over MPI point-to-point messages, on the world's worker thread.
//
// Each collective has a number. It travels in the message tags, so that ranks which call different
// collectives never take each other's bytes for their own: they run into the deadline, and the
// error names the collective on each side.
//
// Tensors in GPU memory are staged through the host: slow, but it lets ranks share a GPU.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace tandem {

enum class MpiKind : uint8_t;

class MpiCommunicator final : public Communicator {
 public:
  // All ranks of the job. `worker`: the background stream whose thread started MPI. `timeout_s`:
  // seconds without any message after which a collective fails; read at every wait.
  MpiCommunicator(Stream& worker, const std::atomic<double>& timeout_s);
  ~MpiCommunicator() override;  // what the worker still has to do for it goes on

  int rank() const override;
  int size() const override;
  Stream& stream() override { return worker_; }

  // Errors of a tensor collective appear at the next wait for the stream: kTemporary when a rank
  // is silent or the network fails, kInternal when ranks disagree about sizes.
  void all_reduce(const Tensor& inout, Traffic traffic) override;
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void all_to_all(const Tensor& in, const Tensor& out) override;
  void broadcast(const Tensor& inout, int root) override;

  std::unique_ptr<Communicator> split(std::span<const int> colors) override;
  void set_nodes(std::span<const int> node_of_rank) override;

  std::vector<double> sum(std::span<const double> values) override;
  std::string broadcast(std::string text, int root) override;
  std::vector<std::string> all_gather(const std::string& text) override;
  void barrier() override;
  // What the worker has sent so far: exact after stream().synchronize().
  WireCount wire() const override;

 private:
  struct Channel;  // what the worker uses
  using Work = std::function<void(Channel&)>;
  MpiCommunicator(Stream& worker, std::shared_ptr<Channel> channel);
  void start(MpiKind kind, Traffic traffic, int64_t bytes, Work work);
  void run(MpiKind kind, int64_t bytes, Work work);  // a control message

  Stream& worker_;
  std::shared_ptr<Channel> channel_;
  int64_t collectives_ = 0;
};

}  // namespace tandem

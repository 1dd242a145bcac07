// The communicator of a world with one rank: every sum is the value itself. Nothing is sent, and
// stream() runs its work inline.
#pragma once

#include "comm/communicator.h"

namespace tandem {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : stream_(Stream::compute(Device::kCpu)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Stream& stream() override { return stream_; }
  void all_reduce(const Tensor&, Traffic) override {}
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void all_to_all(const Tensor& in, const Tensor& out) override;
  void broadcast(const Tensor& inout, int root) override;
  std::unique_ptr<Communicator> split(std::span<const int> colors) override;
  void set_nodes(std::span<const int>) override {}
  std::vector<double> sum(std::span<const double> values) override;
  std::string broadcast(std::string text, int root) override;
  std::vector<std::string> all_gather(const std::string& text) override;
  void barrier() override {}
  WireCount wire() const override { return {}; }

 private:
  Stream stream_;
};

}  // namespace tandem

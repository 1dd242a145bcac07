// The collectives of a group of 1 rank: every sum is the value itself. Nothing is sent, and
// stream() runs its work inline.
#pragma once

#include "comm/collectives.h"

namespace tandem {

class SelfCollectives final : public Collectives {
 public:
  SelfCollectives() : stream_(Stream::compute(Device::kCpu)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Stream& stream() override { return stream_; }
  void all_reduce(const Tensor&, Traffic) override {}
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void all_to_all(const Tensor& in, const Tensor& out) override;
  void broadcast(const Tensor& inout, int root) override;
  std::unique_ptr<Collectives> split(std::span<const int> colors) override;
  void set_nodes(std::span<const int>) override {}
  WireCount wire() const override { return {}; }

 private:
  Stream stream_;
};

}  // namespace tandem

// The collectives of a group of 1 rank: every sum is the value itself. Nothing is sent, and
// stream() runs its work inline.
#pragma once

#include <cstring>

#include "src/core/error.h"
#include "src/device/ranks/collectives.h"

namespace tandem {

class SelfCollectives final : public Collectives {
 public:
  SelfCollectives() : stream_(Stream::compute(Device::kCpu)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Stream& stream() override { return stream_; }
  void all_reduce(const Tensor&, Traffic) override {}
  void reduce_scatter(const Tensor& in, const Tensor& out) override { copy(in, out); }
  void all_gather(const Tensor& in, const Tensor& out) override { copy(in, out); }
  void all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                    std::span<const Range> received, int64_t) override {
    require_chunks(in, sent, out, received);
    copy(in.slice(sent[0].begin, sent[0].count()),
         out.slice(received[0].begin, received[0].count()));
  }
  std::unique_ptr<Collectives> split(std::span<const int> colors) override {
    require(colors.size() == 1, "split: there is not one color for each rank");
    return std::make_unique<SelfCollectives>();
  }
  void set_nodes(std::span<const int>) override {}
  WireCount wire() const override { return {}; }

 private:
  static void copy(const Tensor& in, const Tensor& out) {
    require(in.dtype() == out.dtype() && in.elements() == out.elements(),
            "SelfCollectives: in and out differ in dtype or size");
    require(in.raw() == out.raw() || in.device() == Device::kCpu,
            "SelfCollectives: copies host memory only");
    if (in.raw() != out.raw()) {
      std::memcpy(out.raw(), in.raw(), static_cast<size_t>(in.bytes()));
    }
  }

  Stream stream_;
};

}  // namespace tandem

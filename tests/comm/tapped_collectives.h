// Collectives that report each tensor collective before they pass it on.
#pragma once

#include <functional>

#include "src/device/ranks/collectives.h"

namespace tandem::testing {

class TappedCollectives final : public Collectives {
 public:
  // `tap` is called with the kind of traffic and the whole array, on the calling thread.
  using Tap = std::function<void(Traffic, const Tensor& whole)>;
  TappedCollectives(Collectives& inner, Tap tap) : inner_(inner), tap_(std::move(tap)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Stream& stream() override { return inner_.stream(); }
  void wait(const Event& event) override { inner_.wait(event); }
  void all_reduce(const Tensor& inout, Traffic traffic) override {
    tap_(traffic, inout);
    inner_.all_reduce(inout, traffic);
  }
  void reduce_scatter(const Tensor& in, const Tensor& out) override {
    tap_(Traffic::kReduceScatter, in);
    inner_.reduce_scatter(in, out);
  }
  void all_gather(const Tensor& in, const Tensor& out) override {
    tap_(Traffic::kAllGather, out);
    inner_.all_gather(in, out);
  }
  void all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                    std::span<const Range> received, int64_t agreed_bytes) override {
    tap_(Traffic::kAllToAll, in);
    inner_.all_to_all_v(in, sent, out, received, agreed_bytes);
  }
  std::unique_ptr<Collectives> split(std::span<const int> colors) override {
    return inner_.split(colors);
  }
  void set_nodes(std::span<const int> nodes) override { inner_.set_nodes(nodes); }
  WireCount wire() const override { return inner_.wire(); }

 private:
  Collectives& inner_;
  Tap tap_;
};

}  // namespace tandem::testing

// Control messages without communication: every rank is assumed to contribute the same as this one.
// That is true for a job of 1 rank, and a dry run assumes it. Nothing is sent or counted.
#pragma once

#include <algorithm>
#include <chrono>

#include "comm/transport/ranks.h"
#include "src/core/error.h"
#include "src/device/ranks/control.h"

namespace tandem {

class LocalControl final : public Control {
 public:
  explicit LocalControl(int rank = 0, int size = 1) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<double> sum(std::span<const double> values) override {
    std::vector<double> sums(values.begin(), values.end());
    std::ranges::for_each(sums, [this](double& value) { value *= size_; });
    return sums;
  }
  std::string broadcast(std::string text, int root) override {
    require(root >= 0 && root < size_, "broadcast: there is no rank ", root);
    return text;
  }
  std::vector<std::string> all_gather(const std::string& text) override {
    return std::vector<std::string>(static_cast<size_t>(size_), text);
  }
  void barrier() override {}
  ClockReading read_clock() override {
    return {
        .at =
            std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count()};
  }
  std::unique_ptr<Control> split(std::span<const int> colors) override {
    const Ranks part = Ranks(rank_, size_).split(colors);
    return std::make_unique<LocalControl>(part.rank(), part.size());
  }
  void set_nodes(std::span<const int>) override {}
  WireCount wire() const override { return {}; }

 private:
  int rank_, size_;
};

}  // namespace tandem

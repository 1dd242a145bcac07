// Control messages over MPI, on the world's worker thread. Each waits until the thread has done all
// earlier work, tensor collectives included.
#pragma once

#include <cstring>

#include "comm/control.h"
#include "comm/transport/mpi_queue.h"
#include "comm/transport/mpi_wire.h"
#include "src/core/error.h"

namespace tandem {

class MpiControl final : public Control {
 public:
  explicit MpiControl(MpiQueue queue) : queue_(std::move(queue)) {}

  int rank() const override { return queue_.rank(); }
  int size() const override { return queue_.size(); }

  std::vector<double> sum(std::span<const double> values) override {
    const auto bytes = static_cast<int64_t>(values.size_bytes());
    require(bytes <= kLargestMessage, "sum: too many values for a control message");
    std::vector<std::string> all;
    queue_.run(MpiKind::kSum, bytes, [&](Ring& ring) {
      const std::string own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
      all = ring.exchange(own, std::vector<int64_t>(static_cast<size_t>(size()), bytes));
    });
    std::vector<double> total(values.size(), 0.0);
    for (const std::string& one : all) {
      for (size_t i = 0; i < total.size(); ++i) {
        double value = 0;
        std::memcpy(&value, one.data() + i * sizeof value, sizeof value);
        total[i] += value;
      }
    }
    return total;
  }

  std::string broadcast(std::string text, int root) override {
    require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
    queue_.run(MpiKind::kHandOut, static_cast<int64_t>(text.size()),
               [&](Ring& ring) { text = ring.hand_out(std::move(text), root); });
    return text;
  }

  std::vector<std::string> all_gather(const std::string& text) override {
    std::vector<std::string> all;
    queue_.run(MpiKind::kExchange, static_cast<int64_t>(text.size()),
               [&](Ring& ring) { all = ring.exchange(text); });
    return all;
  }

  void barrier() override { queue_.meet(MpiKind::kBarrier); }

  std::unique_ptr<Control> split(std::span<const int> colors) override {
    return std::make_unique<MpiControl>(queue_.split(colors));
  }
  void set_nodes(std::span<const int> node_of_rank) override { queue_.set_nodes(node_of_rank); }
  WireCount wire() const override { return queue_.sent(); }

 private:
  MpiQueue queue_;
};

}  // namespace tandem

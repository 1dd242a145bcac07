// Control messages over MPI, on the world's worker thread. Each waits until the thread has done all
// earlier work, tensor collectives included.
#pragma once

#include "comm/transport/mpi_queue.h"
#include "src/device/ranks/control.h"

namespace tandem {

class MpiControl final : public Control {
 public:
  explicit MpiControl(MpiQueue queue) : queue_(std::move(queue)) {}

  int rank() const override { return queue_.rank(); }
  int size() const override { return queue_.size(); }
  std::vector<double> sum(std::span<const double> values) override;
  std::string broadcast(std::string text, int root) override;
  std::vector<std::string> all_gather(const std::string& text) override;
  void barrier() override;
  ClockReading read_clock() override;
  std::unique_ptr<Control> split(std::span<const int> colors) override {
    return std::make_unique<MpiControl>(queue_.split(colors));
  }
  void set_nodes(std::span<const int> node_of_rank) override { queue_.set_nodes(node_of_rank); }
  WireCount wire() const override { return queue_.sent(); }

 private:
  MpiQueue queue_;
};

}  // namespace tandem

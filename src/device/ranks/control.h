// Small messages that control a job: votes, texts, errors. Calls block the caller, need no GPU, and
// count as Traffic::kControl. Every rank must make the same calls in the same order.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/device/ranks/wire_count.h"

namespace tandem {

class Control {
 public:
  virtual ~Control() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual std::vector<double> sum(
      std::span<const double> values) = 0;  // added in rank order: all ranks get the same bits
  virtual std::string broadcast(std::string text, int root) = 0;
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;  // by rank
  virtual void barrier() = 0;

  // As in Collectives.
  virtual std::unique_ptr<Control> split(std::span<const int> colors) = 0;
  virtual void set_nodes(std::span<const int> node_of_rank) = 0;
  virtual WireCount wire() const = 0;
};

}  // namespace tandem

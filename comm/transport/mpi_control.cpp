#include "comm/transport/mpi_control.h"

#include <cstring>

#include "comm/transport/mpi_wire.h"
#include "src/core/error.h"

namespace tandem {

std::vector<double> MpiControl::sum(std::span<const double> values) {
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

std::string MpiControl::broadcast(std::string text, int root) {
  require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
  queue_.run(MpiKind::kHandOut, static_cast<int64_t>(text.size()),
             [&](Ring& ring) { text = ring.hand_out(std::move(text), root); });
  return text;
}

std::vector<std::string> MpiControl::all_gather(const std::string& text) {
  std::vector<std::string> all;
  queue_.run(MpiKind::kExchange, static_cast<int64_t>(text.size()),
             [&](Ring& ring) { all = ring.exchange(text); });
  return all;
}

ClockReading MpiControl::read_clock() {
  ClockReading reading;
  queue_.run(MpiKind::kClock, sizeof reading.offset,
             [&](Ring& ring) { reading = ring.read_clock(); });
  return reading;
}

void MpiControl::barrier() { queue_.meet(MpiKind::kBarrier); }

}  // namespace tandem

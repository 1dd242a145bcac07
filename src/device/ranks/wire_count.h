// The bytes that a rank has sent: for which purpose, and inside its node or to other nodes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tandem {

// What bytes are sent for. kControl: messages that control the job, such as norms and votes. All
// other bytes are payload.
enum class Traffic : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kControl,
};
inline constexpr int kTraffics = 5;
std::string_view name_of(Traffic traffic);  // "all_reduce", ..., "control"

// Bytes that this rank has sent since the start, to ranks on its own node and on other nodes.
struct WireCount {
  struct Bytes {
    int64_t inside = 0, between = 0;
    int64_t total() const { return inside + between; }
    bool operator==(const Bytes&) const = default;
  };
  std::array<Bytes, kTraffics> by{};
  int64_t collectives = 0;  // tensor collectives started, except control

  const Bytes& of(Traffic traffic) const { return by[static_cast<size_t>(traffic)]; }
  Bytes payload() const;  // all except control
  // Counts bytes that were sent to a rank; `away`: on another node.
  void add(Traffic traffic, bool away, int64_t bytes) {
    Bytes& sent = by[static_cast<size_t>(traffic)];
    (away ? sent.between : sent.inside) += bytes;
  }
  // Adds `other` that many times.
  WireCount& add(const WireCount& other, int64_t times);
  WireCount& operator+=(const WireCount& other) { return add(other, 1); }
  WireCount operator-(const WireCount& earlier) const { return WireCount(*this).add(earlier, -1); }
  bool operator==(const WireCount&) const = default;
};

}  // namespace tandem

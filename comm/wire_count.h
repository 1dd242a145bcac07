// What a rank has sent, by what it was for and how far it went.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tandem {

// What bytes are sent for. kControl: messages that steer the job, such as norms and votes; the rest
// is payload.
enum class Traffic : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kControl,
};
inline constexpr int kTraffics = 6;
std::string_view name_of(Traffic traffic);  // "all_reduce", ..., "control"

// Bytes that this rank sent since the start, to ranks of its own node and of others.
struct WireCount {
  struct Bytes {
    int64_t inside = 0, between = 0;
    int64_t total() const { return inside + between; }
    bool operator==(const Bytes&) const = default;
  };
  std::array<Bytes, kTraffics> by{};
  int64_t collectives = 0;  // tensor collectives started, but for control

  const Bytes& of(Traffic traffic) const { return by[static_cast<size_t>(traffic)]; }
  Bytes payload() const;  // all but control
  WireCount& operator+=(const WireCount& other);
  WireCount operator-(const WireCount& earlier) const;
  bool operator==(const WireCount&) const = default;
};

}  // namespace tandem

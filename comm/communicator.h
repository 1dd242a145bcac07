// Collectives among the ranks of a job. Sums are pure: averaging is folded into the backward seed.
//
// Tensor collectives are asynchronous: they run in order on stream(), and every rank must call the
// same ones in the same order. Control messages are small, block the caller, and are counted apart
// from the gradient payload.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/stream.h"
#include "src/core/tensor.h"

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

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Stream& stream() = 0;

  // Blocks the host until the event. Throws Error(kTemporary) that names the collective when one of
  // stream() failed or nothing has moved for the deadline. For waits behind which a collective may
  // stand; errors of the stream itself come out of event.synchronize() alike.
  virtual void wait(const Event& event) { event.synchronize(); }

  // Sums are of f32, f64 or i64. i64 wraps around. All ranks get the same bits.
  //
  // Element-wise sum over ranks, in place. `traffic`: kAllReduce or kControl, for the count alone.
  virtual void all_reduce(const Tensor& inout, Traffic traffic = Traffic::kAllReduce) = 0;
  // in [size * n], out [n]: out becomes the sum over ranks of part rank() of in. `in` is scratch
  // afterwards; `out` may be part rank() of it.
  virtual void reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  // in [n], out [size * n]: part r of out becomes rank r's in. `in` may be part rank() of out. Any
  // dtype.
  virtual void all_gather(const Tensor& in, const Tensor& out) = 0;
  // in, out [size * n], apart: part r of out becomes part rank() of rank r's in. Any dtype.
  virtual void all_to_all(const Tensor& in, const Tensor& out) = 0;
  virtual void broadcast(const Tensor& inout, int root) = 0;

  // Collective: the ranks of one color, in the order of their ranks here, as a communicator on the
  // same stream. `colors`: of every rank, the same on all. This one must outlive it.
  virtual std::unique_ptr<Communicator> split(std::span<const int> colors) = 0;
  // Says which node each rank is on, for wire(); before the first tensor collective. Splits made
  // afterwards know it too. Without it all are on one node.
  virtual void set_nodes(std::span<const int> node_of_rank) = 0;

  // Control messages.
  virtual std::vector<double> sum(
      std::span<const double> values) = 0;  // added in rank order: same bits on all
  virtual std::string broadcast(std::string text, int root) = 0;
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;  // by rank
  virtual void barrier() = 0;
  // What was sent up to now; of tensor collectives that are under way perhaps a part.
  virtual WireCount wire() const = 0;
};

}  // namespace tandem

// Point-to-point messages over MPI among a group of ranks, with a deadline. Only one thread may use
// it; any thread may read the counters. The threads of several groups take turns to call MPI.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/transport/ranks.h"
#include "comm/transport/ring.h"
#include "src/device/ranks/wire_count.h"

namespace tandem {

// The kind of collective that a message belongs to; part of the message's tag.
enum class MpiKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kSum,
  kHandOut,
  kExchange,
  kBarrier,
  kSplit,
  kClock,
};

std::string_view name_of(MpiKind kind);  // "all_reduce"

class MpiWire final : public Transport {
 public:
  // `comm` has the group's ranks, and nobody else sends messages over it. It is never freed,
  // because MPI_Comm_free is a collective; MPI_Finalize ends it.
  MpiWire(MPI_Comm comm, Ranks group, const std::atomic<double>& timeout_s);
  // All ranks of the job. MPI must be initialised.
  static std::unique_ptr<MpiWire> of_the_job(const std::atomic<double>& timeout_s);
  // Collective. Call it after a collective with a deadline, which shows that all ranks are here:
  // MPI_Comm_split itself waits for ever.
  std::unique_ptr<MpiWire> split(std::span<const int> colors) const;

  const Ranks& ranks() const { return group_; }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void set_nodes(std::span<const int> node_of_rank) { group_.set_nodes(node_of_rank); }

  // The messages that follow belong to this collective.
  void begin(MpiKind kind, Traffic traffic, int64_t bytes);
  Ticket send(int to, const std::byte* data, int64_t bytes) override;
  Ticket receive(int from, std::byte* data, int64_t bytes) override;
  // Throws Error(kTemporary) if nothing comes until the deadline; the error names the ranks that do
  // not wait in any collective. Throws Error(kInternal) if the message has another length.
  void wait(Ticket ticket) override;

  WireCount sent() const;  // bytes only; from any thread

 private:
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = 0;
    int64_t bytes = 0;
    bool outgoing = false;
  };

  Ticket keep(const Message& message);
  int tag() const;
  std::string place() const;
  std::string other(const Message& message) const;  // "rank 3"
  [[noreturn]] void fail_silent(const Message& message, double seconds) const;

  MPI_Comm comm_;
  Ranks group_;
  const std::atomic<double>& timeout_s_;
  MpiKind kind_ = MpiKind::kBarrier;
  Traffic traffic_ = Traffic::kControl;
  int64_t bytes_ = 0;
  int64_t number_ = 0;
  std::vector<Message> messages_;
  std::vector<Ticket> free_;
  struct Sent {
    std::atomic<int64_t> inside{0}, between{0};
  };
  std::array<Sent, kTraffics> sent_;
};

}  // namespace tandem

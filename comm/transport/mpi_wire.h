// Messages among a group of ranks over MPI point-to-point, with a deadline. All members but the
// counters are used by the thread that runs MPI alone.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "comm/transport/ring.h"
#include "comm/wire_count.h"

namespace tandem {

// What a message belongs to, in its tag.
enum class MpiKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSum,
  kHandOut,
  kExchange,
  kBarrier,
  kSplit,
};

class MpiWire final : public Transport {
 public:
  // `comm` has the group's ranks and nobody else sends messages over it. It is not freed, which
  // would take all its ranks: MPI_Finalize ends it.
  MpiWire(MPI_Comm comm, Group group, const std::atomic<double>& timeout_s);
  // All ranks of the job; MPI is up.
  static std::unique_ptr<MpiWire> of_the_job(const std::atomic<double>& timeout_s);
  // Collective, behind a collective that has shown that all ranks are here: MPI waits for ever.
  std::unique_ptr<MpiWire> split(std::span<const int> colors) const;

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void set_nodes(std::span<const int> node_of_rank) { group_.set_nodes(node_of_rank); }

  // The messages that follow belong to this collective.
  void begin(MpiKind kind, Traffic traffic, int64_t bytes);
  Ticket send(int to, const std::byte* data, int64_t bytes) override;
  Ticket receive(int from, std::byte* data, int64_t bytes) override;
  // Throws Error(kTemporary) when nothing comes for the deadline; it names the ranks that wait in
  // no collective at all. Error(kInternal) for a message of another length.
  void wait(Ticket ticket) override;

  WireCount sent() const;  // bytes alone; any thread

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
  void require_length(const Message& message, const MPI_Status& status) const;
  [[noreturn]] void fail_silent(const Message& message) const;

  MPI_Comm comm_;
  Group group_;
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

// A queue of a group's messages. A worker thread, as a rule the one that started MPI, runs them in
// the order in which they were queued.
//
// Each collective has a number, which is in the message tags. So ranks that call different
// collectives never mix up their bytes: they run into the deadline, and each rank's error names its
// own collective.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>

#include "comm/transport/ring.h"
#include "src/device/ranks/wire_count.h"
#include "src/device/stream.h"

namespace tandem {

enum class MpiKind : uint8_t;

class MpiQueue {
 public:
  // All ranks of the job. `worker`: the background stream whose thread started MPI. `timeout_s`:
  // seconds without any message after which a collective fails; read at every wait. Control
  // messages and tensor collectives may each have their own queue: their tags differ in the kind.
  MpiQueue(Stream& worker, const std::atomic<double>& timeout_s);
  // Collective: a queue for the ranks with this rank's color. `worker`: whose thread runs it, if
  // not the same one.
  MpiQueue split(std::span<const int> colors) const { return split(colors, worker_); }
  MpiQueue split(std::span<const int> colors, Stream& worker) const;

  Stream& worker() const { return worker_; }
  int rank() const;
  int size() const;
  void set_nodes(std::span<const int> node_of_rank) const;

  using Work = std::function<void(Ring&)>;
  // Queues `work`, which runs even if this object is destroyed before.
  void start(MpiKind kind, Traffic traffic, int64_t bytes, Work work) const;
  // Queues a control message and waits for it, and so for all earlier work.
  void run(MpiKind kind, int64_t bytes, Work work) const;
  void meet(MpiKind kind) const;  // waits for every rank

  // Bytes that the worker has sent so far: exact after worker().synchronize(). Does not count
  // collectives.
  WireCount sent() const;

 private:
  struct Channel;  // used by the worker
  MpiQueue(Stream& worker, std::shared_ptr<Channel> channel);

  Stream& worker_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace tandem

// Messages of a group, in the order in which they are asked for: the one worker thread, which has
// started MPI, runs them after all that it was given before.
//
// Each collective has a number. It travels in the message tags, so that ranks which call different
// collectives never take each other's bytes for their own: they run into the deadline, and the
// error names the collective on each side.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>

#include "comm/transport/ring.h"
#include "comm/wire_count.h"
#include "src/device/stream.h"

namespace tandem {

enum class MpiKind : uint8_t;

class MpiQueue {
 public:
  // All ranks of the job. `worker`: the background stream whose thread started MPI. `timeout_s`:
  // seconds without any message after which a collective fails; read at every wait. Control
  // messages and tensors of the job may have a queue each: their kinds tell them apart.
  MpiQueue(Stream& worker, const std::atomic<double>& timeout_s);
  // Collective: the ranks of one color.
  MpiQueue split(std::span<const int> colors) const;

  Stream& worker() const { return worker_; }
  int rank() const;
  int size() const;
  void set_nodes(std::span<const int> node_of_rank) const;

  using Work = std::function<void(Ring&)>;
  // What the worker still has to do goes on when this has ended.
  void start(MpiKind kind, Traffic traffic, int64_t bytes, Work work) const;
  // A control message: waits for it, and for all before.
  void run(MpiKind kind, int64_t bytes, Work work) const;
  void meet(MpiKind kind) const;  // every rank has come

  // What the worker has sent so far: exact after worker().synchronize(). Bytes alone.
  WireCount sent() const;

 private:
  struct Channel;  // what the worker uses
  MpiQueue(Stream& worker, std::shared_ptr<Channel> channel);

  Stream& worker_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace tandem

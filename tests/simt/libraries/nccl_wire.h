// Messages between the ranks of an emulated NCCL communicator. No call blocks. Messages that were
// started are complete when arrived() is true; until then their memory must not change.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace simt {

using Bytes = std::vector<std::byte>;

class Wire {
 public:
  virtual ~Wire() = default;
  // True once all ranks are connected.
  virtual bool connected() = 0;
  // Start a message to or from another rank. Messages between two ranks keep their order.
  virtual void send(int to, const Bytes& data) = 0;
  virtual void receive(int from, std::byte* data, size_t bytes) = 0;
  virtual bool arrived() = 0;  // whether all started messages are complete
};

// Starts to gather equal numbers of bytes of all ranks into `all`, by rank.
void gather(Wire& wire, int ranks, int rank, const Bytes& own, Bytes& all);

// A unique id, which says how to reach this process.
ncclUniqueId new_id();

// Connects `rank` of `ranks` over MPI; rank 0 must be the process that made the id. 1 rank needs no
// MPI; for more ranks it is a failure when there is no MPI.
std::unique_ptr<Wire> connect(const ncclUniqueId& id, int ranks, int rank);

}  // namespace simt

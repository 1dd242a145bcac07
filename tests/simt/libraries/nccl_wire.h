// How the ranks of an emulated NCCL communicator reach each other, without ever blocking. What was
// started is complete once arrived() says so; until then memory must stay as it is.
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
  // To and from one other rank. Messages between two ranks keep their order.
  virtual void send(int to, const Bytes& data) = 0;
  virtual void receive(int from, std::byte* data, size_t bytes) = 0;
  virtual bool arrived() = 0;  // all that was started
};

// Starts to gather equal numbers of bytes of all ranks into `all`, by rank.
void gather(Wire& wire, int ranks, int rank, const Bytes& own, Bytes& all);

// An id that no other has, which says how to reach this process.
ncclUniqueId new_id();

// `rank` among `ranks`; rank 0 must be the process that made the id. Over MPI; one rank alone needs
// none. A failure where there is no MPI.
std::unique_ptr<Wire> connect(const ncclUniqueId& id, int ranks, int rank);

}  // namespace simt

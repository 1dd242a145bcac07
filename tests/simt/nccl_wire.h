// How the ranks of an emulated NCCL communicator reach each other. One gathering at a time, without
// ever blocking.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace simt {

class Wire {
 public:
  virtual ~Wire() = default;
  // True once all ranks are connected.
  virtual bool connected() = 0;
  // Starts to gather equal numbers of bytes of all ranks into `all`, by rank. Both must stay as
  // they are until arrived() says so.
  virtual void gather(const std::vector<std::byte>& own, std::vector<std::byte>& all) = 0;
  virtual bool arrived() = 0;  // all that was started
};

// Over MPI, whose ranks must be the communicator's; one rank alone needs none. A failure where
// there is no MPI.
std::unique_ptr<Wire> connect(int ranks, int rank);

}  // namespace simt

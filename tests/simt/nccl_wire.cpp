#include "tests/simt/nccl_wire.h"

#include <string>

#include "tests/simt/simt.h"

#if defined(TANDEM_SIMT_MPI)
#include <mpi.h>
#endif

namespace simt {

namespace {

class OneRank final : public Wire {
 public:
  bool connected() override { return true; }
  void gather(const std::vector<std::byte>& own, std::vector<std::byte>& all) override {
    all = own;
  }
  bool arrived() override { return true; }
};

#if defined(TANDEM_SIMT_MPI)

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    fail(std::string("NCCL's emulation: ") + call, "error " + std::to_string(code));
  }
}

// On a copy of the world's communicator. It is left to MPI_Finalize: to free it would take all
// ranks.
class MpiWire final : public Wire {
 public:
  MpiWire(int ranks, int rank) : ranks_(ranks) {
    int started = 0, level = 0, world_ranks = 0, world_rank = 0;
    check(MPI_Initialized(&started), "MPI_Initialized");
    if (!started) {
      fail("NCCL: several ranks in a process without MPI");
    }
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    check(MPI_Comm_size(MPI_COMM_WORLD, &world_ranks), "MPI_Comm_size");
    check(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
    if (level != MPI_THREAD_MULTIPLE || world_ranks != ranks || world_rank != rank) {
      fail("NCCL: its emulation needs MPI_THREAD_MULTIPLE and MPI's own ranks");
    }
    check(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &requests_.emplace_back()), "MPI_Comm_idup");
  }

  bool connected() override { return arrived(); }

  void gather(const std::vector<std::byte>& own, std::vector<std::byte>& all) override {
    const auto bytes = static_cast<int>(own.size());
    all.resize(own.size() * static_cast<size_t>(ranks_));
    check(MPI_Iallgather(own.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_,
                         &requests_.emplace_back()),
          "MPI_Iallgather");
  }

  bool arrived() override {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    if (done) {
      requests_.clear();
    }
    return done != 0;
  }

 private:
  int ranks_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Request> requests_;
};

#endif

}  // namespace

std::unique_ptr<Wire> connect(int ranks, int rank) {
  if (ranks == 1) {
    return std::make_unique<OneRank>();
  }
#if defined(TANDEM_SIMT_MPI)
  return std::make_unique<MpiWire>(ranks, rank);
#else
  static_cast<void>(rank);
  fail("NCCL: several ranks, and the emulation was built without MPI");
#endif
}

}  // namespace simt

#include "tests/simt/libraries/nccl_wire.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/simt/simt.h"

#if defined(TANDEM_SIMT_MPI)
#include <mpi.h>
#endif

namespace simt {

namespace {

// The first bytes of a unique id are text for people; the last bytes are an address.
struct Address {
  int process = 0;  // MPI rank of the process that made the id
  int number = 0;   // counts the ids of that process
};

Address address_of(const ncclUniqueId& id) {
  Address address;
  std::memcpy(&address, id.internal + sizeof id.internal - sizeof address, sizeof address);
  return address;
}

class OneRank final : public Wire {
 public:
  bool connected() override { return true; }
  void send(int, const Bytes&) override { fail("NCCL: a send where there is one rank"); }
  void receive(int, std::byte*, size_t) override {
    fail("NCCL: a receive where there is one rank");
  }
  bool arrived() override { return true; }
};

#if defined(TANDEM_SIMT_MPI)

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    fail(std::string("NCCL's emulation: ") + call, "error " + std::to_string(code));
  }
}

int mpi_rank() {
  int rank = 0, started = 0;
  check(MPI_Initialized(&started), "MPI_Initialized");
  if (started) {
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  }
  return rank;
}

// Messages in MPI's world, with a tag of the communicator's own above the tags of programs. Each
// rank tells rank 0 which process it is, and rank 0 tells all ranks.
class MpiWire final : public Wire {
 public:
  MpiWire(const Address& root, int ranks, int rank)
      : rank_(rank), processes_(static_cast<size_t>(ranks)), introductions_(processes_.size()) {
    require_mpi();
    int world = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
    tag_ = kFirstTag + root.number * world + root.process;
    if (rank > 0) {
      introductions_[0] = {rank, mpi_rank()};
      start_send(root.process, &introductions_[0], sizeof(Introduction));
      start_receive(root.process, processes_.data(), bytes_of_processes());
      return;
    }
    for (int other = 1; other < ranks; ++other) {
      start_receive(MPI_ANY_SOURCE, &introductions_[other], sizeof(Introduction));
    }
  }

  bool connected() override {
    if (connected_ || !arrived()) {
      return connected_;
    }
    connected_ = true;
    if (rank_ == 0) {
      processes_[0] = mpi_rank();
      for (size_t i = 1; i < introductions_.size(); ++i) {
        processes_[introductions_[i].rank] = introductions_[i].process;
      }
      for (size_t other = 1; other < processes_.size(); ++other) {
        start_send(processes_[other], processes_.data(), bytes_of_processes());
      }
    }
    return true;
  }

  void send(int to, const Bytes& data) override {
    start_send(processes_[to], data.data(), data.size());
  }
  void receive(int from, std::byte* data, size_t bytes) override {
    start_receive(processes_[from], data, bytes);
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
  static constexpr int kFirstTag = 1 << 16;
  struct Introduction {
    int rank = 0, process = 0;
  };

  static void require_mpi() {
    int started = 0, level = 0;
    check(MPI_Initialized(&started), "MPI_Initialized");
    if (!started) {
      fail("NCCL: several ranks in a process without MPI");
    }
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level != MPI_THREAD_MULTIPLE) {
      fail("NCCL: its emulation needs MPI_THREAD_MULTIPLE");
    }
  }
  size_t bytes_of_processes() const { return processes_.size() * sizeof(int); }

  void start_send(int process, const void* data, size_t bytes) {
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, process, tag_, MPI_COMM_WORLD,
                    &requests_.emplace_back()),
          "MPI_Isend");
  }
  void start_receive(int process, void* data, size_t bytes) {
    check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, process, tag_, MPI_COMM_WORLD,
                    &requests_.emplace_back()),
          "MPI_Irecv");
  }

  int rank_, tag_ = 0;
  bool connected_ = false;
  std::vector<int> processes_;  // in MPI's world, by rank
  std::vector<Introduction> introductions_;
  std::vector<MPI_Request> requests_;
};

#else

int mpi_rank() { return 0; }

#endif

}  // namespace

void gather(Wire& wire, int ranks, int rank, const Bytes& own, Bytes& all) {
  all.resize(own.size() * static_cast<size_t>(ranks));
  for (int other = 0; other < ranks; ++other) {
    std::byte* place = all.data() + own.size() * static_cast<size_t>(other);
    if (other == rank) {
      std::copy(own.begin(), own.end(), place);
    } else {
      wire.receive(other, place, own.size());
    }
  }
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) {
      wire.send(other, own);
    }
  }
}

ncclUniqueId new_id() {
  static std::atomic<int> made{0};
  const Address address{mpi_rank(), ++made};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  ncclUniqueId id = {};
  std::snprintf(id.internal, sizeof id.internal, "process %d, id %d, at %lld", getpid(),
                address.number, static_cast<long long>(now));
  std::memcpy(id.internal + sizeof id.internal - sizeof address, &address, sizeof address);
  return id;
}

std::unique_ptr<Wire> connect(const ncclUniqueId& id, int ranks, int rank) {
  if (ranks == 1) {
    return std::make_unique<OneRank>();
  }
#if defined(TANDEM_SIMT_MPI)
  return std::make_unique<MpiWire>(address_of(id), ranks, rank);
#else
  static_cast<void>(address_of(id));
  static_cast<void>(rank);
  fail("NCCL: several ranks, and the emulation was built without MPI");
#endif
}

}  // namespace simt

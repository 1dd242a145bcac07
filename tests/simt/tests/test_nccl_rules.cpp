// The emulated NCCL reports each broken rule by name. Runs on every rank of a job of 1 to 4 ranks
// (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/transport/nccl_collectives.h"
#include "src/device/cuda.h"
#include "tests/simt/tests/rules.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

class NcclRules : public ::testing::Test {
 protected:
  static constexpr int64_t kCount = 64;  // of a rank
  Control& control = test_world().control();
  const int rank = control.rank();
  const int size = control.size();
  ncclComm_t comm = nullptr, other_comm = nullptr;
  cudaStream_t stream = nullptr, other_stream = nullptr;
  float *in = nullptr, *out = nullptr;  // [size * kCount]

  void SetUp() override {
    ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking), cudaSuccess);
    in = device_floats(size * kCount);
    out = device_floats(size * kCount);
    cudaMemset(in, 0, static_cast<size_t>(size * kCount) * sizeof(float));
  }
  void TearDown() override {
    ncclCommAbort(comm);
    ncclCommAbort(other_comm);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other_stream);
    cudaFree(in);
    cudaFree(out);
  }

  void start(ncclUniqueId id, bool shares = false) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = shares;
    ncclCommInitRankConfig(&comm, size, id, rank, &config);
  }
  static ncclUniqueId shared_id() {
    ncclUniqueId id{};
    ncclGetUniqueId(&id);
    const std::string text =
        test_world().control().broadcast(std::string(id.internal, sizeof id.internal), 0);
    text.copy(id.internal, sizeof id.internal);
    return id;
  }
  void settle() {
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
      ncclCommGetAsyncError(comm, &state);
    }
  }
  void start() {
    start(shared_id());
    settle();
  }
  // Starts a second communicator, too.
  void start_both() {
    start();
    std::swap(comm, other_comm);
    start();
  }
  // A collective of the second communicator, on its stream.
  void other_all_reduce(float* data) {
    std::swap(comm, other_comm);
    ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, other_stream);
    settle();
    std::swap(comm, other_comm);
  }
  void all_reduce() { ncclAllReduce(in, out, kCount, ncclFloat32, ncclSum, comm, stream); }
  void all_gather() { ncclAllGather(in, out, kCount, ncclFloat32, comm, stream); }
};

TEST_F(NcclRules, AreKept) {
  start();
  const std::string message = simt::failure_of([&] {
    all_reduce();
    settle();
    all_gather();
    settle();
  });
  EXPECT_EQ(message, "");
  ncclCommFinalize(comm);
  settle();
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST_F(NcclRules, RanksCallInTheSameOrder) {
  start();
  const bool odd = rank == size - 1;
  const std::string message = simt::failure_of([&] {
    odd ? all_gather() : all_reduce();
    settle();
    odd ? all_reduce() : all_gather();
    settle();
  });
  if (size == 1) {
    EXPECT_EQ(message, "");
    return;
  }
  EXPECT_NE(message.find("ranks call different collectives"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 0: call 1, all_reduce of 64 x f32"), std::string::npos) << message;
  EXPECT_NE(message.find("call 1, all_gather of 64 x f32"), std::string::npos) << message;
}

TEST_F(NcclRules, RanksCallCommunicatorsInTheSameOrder) {
  start_both();
  const bool odd = rank == size - 1;
  float* data = device_floats(kCount);
  const std::string message = simt::failure_of([&] {
    if (odd) {
      other_all_reduce(data);
    }
    all_reduce();
    settle();
    if (!odd) {
      other_all_reduce(data);
    }
  });
  EXPECT_EQ(message.find("ranks call communicators in different orders") != std::string::npos,
            size > 1)
      << message;
  cudaFree(data);
}

// A GPU that may start the second first could do so while another one starts the first.
TEST_F(NcclRules, CommunicatorsStartInTheOrderOfTheCalls) {
  start_both();
  float* data = device_floats(kCount);
  const auto message = [&](const char* keeps_order) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", keeps_order, 1);
    simt::set_stream_schedule("comm-late");  // `stream` has a high priority
    return simt::failure_of([&] {
      all_reduce();
      settle();
      other_all_reduce(data);
    });
  };
  EXPECT_EQ(message("1"), "");
  const std::string unordered = message("0");
  EXPECT_NE(unordered.find("nothing orders groups of two communicators"), std::string::npos)
      << unordered;
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  cudaFree(data);
}

TEST_F(NcclRules, GroupsAreAlike) {
  start();
  const std::string message = simt::failure_of([&] {
    ncclGroupStart();
    all_reduce();
    ncclBroadcast(in, out, kCount, ncclFloat32, rank == size - 1 ? size - 1 : 0, comm, stream);
    ncclGroupEnd();
    settle();
  });
  EXPECT_EQ(message.find("ranks call different collectives") != std::string::npos, size > 1)
      << message;
}

// Sends to the next rank and receives from the previous one.
TEST_F(NcclRules, SendsAreWhatIsReceived) {
  start();
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto pass = [&](size_t sent, size_t received) {
    return simt::failure_of([&] {
      ncclGroupStart();
      ncclSend(in, sent, ncclFloat32, next, comm, stream);
      ncclRecv(out, received, ncclFloat32, previous, comm, stream);
      ncclGroupEnd();
      settle();
    });
  };
  if (size == 1) {
    EXPECT_EQ(ncclSend(in, 1, ncclFloat32, 0, comm, stream), ncclInvalidArgument);
    return;
  }
  EXPECT_EQ(pass(kCount, kCount), "");
  const std::string message = pass(rank == 0 ? kCount - 1 : kCount, kCount);
  EXPECT_NE(message.find("call 2, sends and receives: from rank 0 to rank 1"), std::string::npos)
      << message;
}

TEST_F(NcclRules, AllUseOneId) {
  ncclUniqueId id = shared_id();
  id.internal[0] = rank == size - 1 ? 'x' : id.internal[0];
  start(id);
  const std::string message = simt::failure_of([&] { settle(); });
  EXPECT_EQ(message.find("different unique ids") != std::string::npos, size > 1) << message;
}

// Parts of even and of odd ranks, each from its last rank to its first.
TEST_F(NcclRules, PartsShareBuffersIfTheWholeDoes) {
  for (const bool shares : {false, true}) {
    start(shared_id(), shares);
    settle();
    const int64_t before = simt::counters().nccl_buffers;
    EXPECT_EQ(ncclCommSplit(comm, rank % 2, -rank, &other_comm, nullptr), ncclSuccess);
    EXPECT_EQ(simt::counters().nccl_buffers, before + !shares);
    if (!shares) {
      settle();
      ncclCommAbort(other_comm);
      ncclCommAbort(comm);
    }
  }
  expect_caught("last call is in progress", [&] { all_reduce(); });
  settle();
  std::swap(comm, other_comm);
  settle();
  const auto mine = static_cast<float>(rank);
  cudaMemcpy(in, &mine, sizeof mine, cudaMemcpyHostToDevice);
  ncclAllGather(in, out, 1, ncclFloat32, comm, stream);
  settle();
  std::vector<float> expected, found;
  for (int other = size - 1; other >= 0; --other) {
    if (other % 2 == rank % 2) {
      expected.push_back(static_cast<float>(other));
    }
  }
  found.resize(expected.size());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaMemcpy(found.data(), out, found.size() * sizeof(float), cudaMemcpyDeviceToHost);
  EXPECT_EQ(found, expected);
}

TEST_F(NcclRules, NothingComesAfterAbort) {
  start();
  ncclCommAbort(comm);
  expect_caught("used after its end", [&] { all_reduce(); });
}

TEST_F(NcclRules, NothingComesBeforeTheStart) {
  start(shared_id());
  expect_caught("used before it is ready", [&] { all_reduce(); });
  settle();
}

TEST_F(NcclRules, ACallIsFinishedBeforeTheNext) {
  start();
  expect_caught("last call is in progress", [&] {
    all_reduce();
    all_gather();
  });
}

TEST_F(NcclRules, BuffersAreInPlaceOrApart) {
  start();
  expect_caught("buffers overlap", [&] {
    ncclAllReduce(in, in + 1, kCount / 2, ncclFloat32, ncclSum, comm, stream);
    settle();
  });
}

TEST_F(NcclRules, BuffersAreDeviceMemory) {
  start();
  expect_caught("send buffer of NCCL's all_reduce", [&] {
    ncclAllReduce(in, out, static_cast<size_t>(size * kCount) * 100, ncclFloat32, ncclSum, comm,
                  stream);
    settle();
  });
}

// Only a part whose work need not wait for that of the whole has buffers of its own.
TEST_F(NcclRules, OneSetOfBuffersServesTheJobAndItsParts) {
  cuda::use_device(rank);
  NcclCollectives all(control, test_world().timeout_s());
  const std::vector<int> colors(static_cast<size_t>(size));
  const int64_t before = simt::counters().nccl_buffers;
  const auto part = all.split(colors);
  const auto part_of_part = part->split(colors);
  EXPECT_EQ(simt::counters().nccl_buffers, before);
  const auto apart = all.split_apart(colors);
  EXPECT_EQ(simt::counters().nccl_buffers, before + 1);
}

}  // namespace
}  // namespace tandem::testing

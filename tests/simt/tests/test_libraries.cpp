// The emulated cuBLASLt and NCCL report each broken rule by name, and CUDA's errors are those of
// the program. Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <cublasLt.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <functional>
#include <string>

#include "src/core/error.h"
#include "src/device/cuda_check.h"
#include "tests/simt/simt.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

void expect_caught(const std::string& what, const std::function<void()>& run) {
  const std::string message = simt::failure_of(run);
  EXPECT_NE(message.find(what), std::string::npos) << message;
}

float* device_floats(int64_t n) {
  float* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, static_cast<size_t>(n) * sizeof(float)), cudaSuccess);
  return data;
}

// --- CUDA ---

// Another machine may do what a sick GPU cannot. A wrong kernel is wrong everywhere.
TEST(CudaErrors, OfASickGpuAreTemporaryAndNameTheHost) {
  const auto error_of = [](cudaError_t code) {
    try {
      cuda::check(code);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("of host " + test_world().host()), std::string::npos)
          << error.what();
      return error.code();
    }
    return ExitCode::kOk;
  };
  for (const cudaError_t code :
       {cudaErrorDevicesUnavailable, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
        cudaErrorHardwareStackError, cudaErrorLaunchFailure, cudaErrorSystemNotReady,
        cudaErrorUnknown}) {
    EXPECT_EQ(error_of(code), ExitCode::kTemporary) << code;
  }
  for (const cudaError_t code :
       {cudaErrorInvalidValue, cudaErrorIllegalAddress, cudaErrorMisalignedAddress}) {
    EXPECT_EQ(error_of(code), ExitCode::kInternal) << code;
  }
  EXPECT_EQ(error_of(cudaErrorMemoryAllocation), ExitCode::kOutOfMemory);
  EXPECT_EQ(error_of(cudaSuccess), ExitCode::kOk);
}

// --- cuBLASLt ---

// C [n, n] = A B in f32, in separate steps, so that a test can spoil one of them.
struct Product {
  static constexpr int64_t n = 8;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t layout;
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t chosen;
  float *a = device_floats(n * n), *b = device_floats(n * n), *c = device_floats(n * n);
  float* workspace = device_floats(1024);

  Product() {
    cublasLtCreate(&handle);
    cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutInit(&layout, CUDA_R_32F, n, n, n);
    cublasLtMatmulPreferenceInit(&preference);
    const uint64_t bytes = 4096;
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
  }
  ~Product() {
    for (float* data : {a, b, c, workspace}) {
      cudaFree(data);
    }
    cublasLtDestroy(handle);
  }
  void choose() {
    int found = 0;
    cublasLtMatmulAlgoGetHeuristic(handle, &operation, &layout, &layout, &layout, &layout,
                                   &preference, 1, &chosen, &found);
  }
  void run(size_t workspace_bytes = 4096) {
    const float alpha = 1, beta = 0;
    cublasLtMatmul(handle, &operation, &alpha, a, &layout, b, &layout, &beta, c, &layout, c,
                   &layout, &chosen.algo, workspace, workspace_bytes, nullptr);
  }
};

TEST(CublasLtRules, AreKept) {
  Product product;
  const std::string message = simt::failure_of([&] {
    product.choose();
    product.run();
  });
  EXPECT_EQ(message, "");
}

TEST(CublasLtRules, DescriptorsAreInitialised) {
  Product product;
  product.layout = {};
  expect_caught("descriptor was not initialised", [&] { product.choose(); });
}

TEST(CublasLtRules, AnAlgorithmServesItsProductAlone) {
  Product product;
  product.choose();
  const cublasOperation_t flipped = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(&product.operation, CUBLASLT_MATMUL_DESC_TRANSA, &flipped,
                                 sizeof flipped);
  expect_caught("chosen for another product", [&] { product.run(); });
}

TEST(CublasLtRules, OperandsAreAlignedAsPromised) {
  Product product;
  product.choose();
  float* const whole = product.a;
  product.a = whole + 1;
  expect_caught("less aligned than the algorithm was promised", [&] { product.run(); });
  product.a = whole;
}

TEST(CublasLtRules, WorkspaceIsLargeEnough) {
  Product product;
  product.choose();
  expect_caught("workspace smaller", [&] { product.run(16); });
}

TEST(CublasLtRules, OperandsAreDeviceMemory) {
  Product product;
  product.choose();
  std::swap(product.a, product.workspace);
  cudaFree(product.a);
  expect_caught("A of cublasLtMatmul", [&] { product.run(); });
  product.a = device_floats(1);
}

// --- NCCL ---

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

  void start(ncclUniqueId id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
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

}  // namespace
}  // namespace tandem::testing

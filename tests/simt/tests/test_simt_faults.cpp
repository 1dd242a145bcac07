// Planted faults: the emulated GPU must report each by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "src/device/global.h"
#include "src/kernels/block.cuh"
#include "tests/simt/device_vector.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"

namespace tandem {
namespace {

using simt::DeviceVector;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// The failure of launching kKernel with one block.
template <auto kKernel, class... A>
std::string failure_of_kernel(dim3 block, A... arguments) {
  return simt::failure_of([=] { launch<kKernel>(Cuda{nullptr}, 1, block, 0, arguments...); });
}

// The setting under which out[0, 64) of kKernel differs.
template <auto kKernel>
std::string disagreement_of_kernel(unsigned blocks) {
  return simt::disagreement([=] {
    DeviceVector<float> out(std::vector<float>(64, 0.0f));
    launch<kKernel>(Cuda{nullptr}, blocks, 64 / blocks, 0, out.data());
    return simt::bytes_of(out.values());
  });
}

struct Line {
  float values[64];
};

// --- Races. ---

template <bool kBarrier>
__global__ void reverse_kernel(Global<float> out) {
  Line& line = shared<Line>();
  line.values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if constexpr (kBarrier) {
    __syncthreads();
  }
  out.store(threadIdx.x, line.values[63 - threadIdx.x]);
}

TEST(Fault, RemovedBarrier) {
  EXPECT_EQ(disagreement_of_kernel<reverse_kernel<true>>(1), "");
  EXPECT_EQ(disagreement_of_kernel<reverse_kernel<false>>(1), "threads=backward");
}

__global__ void last_one_wins_kernel(Global<float> out) {
  Line& line = shared<Line>();
  line.values[threadIdx.x / 2] = static_cast<float>(threadIdx.x);
  __syncthreads();
  out.store(threadIdx.x, line.values[threadIdx.x / 2]);
}

TEST(Fault, RaceOnSharedMemory) {
  EXPECT_EQ(disagreement_of_kernel<last_one_wins_kernel>(1), "threads=backward");
}

// Right in forward and backward order; only a third order shows the race.
__global__ void hidden_race_kernel(Global<float> out) {
  Line& line = shared<Line>();
  if (threadIdx.x % 32 == 0 || threadIdx.x % 32 == 31) {
    line.values[0] = 0.0f;
  } else {
    line.values[0] += 1.0f;
    out.store(threadIdx.x, threadIdx.x == 20 ? line.values[0] : 0.0f);
  }
}

TEST(Fault, RaceThatOnlyAShuffleShows) {
  EXPECT_THAT(disagreement_of_kernel<hidden_race_kernel>(1), StartsWith("threads="));
}

__global__ void block_order_kernel(Global<float> out) {
  out.store(threadIdx.x, out.load(threadIdx.x) * 2.0f + static_cast<float>(blockIdx.x));
}

TEST(Fault, DependenceOnTheOrderOfBlocks) {
  EXPECT_EQ(disagreement_of_kernel<block_order_kernel>(2), "threads=backward");
}

__global__ void reads_uninitialised_kernel(Global<float> out) {
  Line& line = shared<Line>();
  if (threadIdx.x != 7) {
    line.values[threadIdx.x] = 1.0f;
  }
  __syncthreads();
  out.store(threadIdx.x, line.values[threadIdx.x]);
}

TEST(Fault, UninitialisedSharedMemory) {
  EXPECT_EQ(disagreement_of_kernel<reads_uninitialised_kernel>(1), "poison=60");
}

TEST(Fault, UninitialisedDeviceMemory) {
  EXPECT_EQ(simt::disagreement([] { return simt::bytes_of(DeviceVector<int>(4).values()); }),
            "poison=60");
}

// --- Global memory. ---

__global__ void store_at_kernel(Global<float> x, int64_t i) {
  if (threadIdx.x == 3) {
    x.store(i, 1.0f);
  }
}

TEST(Fault, OutOfBoundsStore) {
  const DeviceVector<float> x(100), other(100);
  EXPECT_THAT(
      failure_of_kernel<store_at_kernel>(dim3(32), x.data(), int64_t{100}),
      AllOf(StartsWith("simt: out of bounds store in kernel store_at_kernel, block (0,0,0), "
                       "thread (3,0,0): 4 bytes"),
            HasSubstr("offset 400 of an allocation of 400 bytes")));
  EXPECT_THAT(failure_of_kernel<store_at_kernel>(dim3(32), x.data(), int64_t{-1}),
              HasSubstr("out of bounds store"));
  // Inside another allocation, and far from any.
  EXPECT_THAT(failure_of_kernel<store_at_kernel>(dim3(32), x.data(), other.data() - x.data()),
              HasSubstr("out of bounds store"));
  EXPECT_THAT(failure_of_kernel<store_at_kernel>(dim3(32), x.data(), int64_t{1} << 60),
              HasSubstr("out of bounds store"));
  EXPECT_EQ(failure_of_kernel<store_at_kernel>(dim3(32), x.data(), int64_t{99}), "");
}

TEST(Fault, HostPointerInAKernel) {
  std::vector<float> host(8);
  EXPECT_THAT(failure_of_kernel<store_at_kernel>(dim3(32), host.data(), int64_t{0}),
              HasSubstr("is in no device allocation"));
}

TEST(Fault, UseAfterFree) {
  float* freed = DeviceVector<float>(100).data();
  EXPECT_THAT(failure_of_kernel<store_at_kernel>(dim3(32), freed, int64_t{5}),
              AllOf(HasSubstr("use after free store"), HasSubstr("freed 0 operations ago")));
  EXPECT_THAT(simt::failure_of([=] { cudaFree(freed); }), HasSubstr("double free"));
  EXPECT_THAT(simt::failure_of([=] { cudaMemset(freed, 0, 4); }),
              HasSubstr("use after free, destination of cudaMemsetAsync"));
}

__global__ void load16_kernel(Global<const float> x, Global<float> out, int64_t i) {
  out.store(threadIdx.x, x.load16(i)[0]);
}

TEST(Fault, UnalignedLoad) {
  const DeviceVector<float> x(100), out(32);
  EXPECT_THAT(failure_of_kernel<load16_kernel>(dim3(1), x.data(), out.data(), int64_t{2}),
              HasSubstr("unaligned load in kernel load16_kernel"));
}

TEST(Fault, HostAccessToDeviceMemory) {
  simt::set_protect(true);
  {
    const DeviceVector<float> x(std::vector<float>(100, 3.0f));
    EXPECT_THAT(simt::failure_of([&] { x.data()[1] = 2.0f; }),
                AllOf(HasSubstr("host access to device memory"), HasSubstr("offset 4 of")));
    EXPECT_EQ(failure_of_kernel<store_at_kernel>(dim3(32), x.data(), int64_t{5}), "");
    EXPECT_EQ(x.values()[5], 1.0f);
    float* freed = DeviceVector<float>(4).data();
    EXPECT_THAT(simt::failure_of([=] { freed[1] = 2.0f; }),
                AllOf(HasSubstr("host access to device memory"), HasSubstr("freed ")));
  }
  simt::set_protect(false);
}

TEST(Fault, CopyInTheWrongDirection) {
  const DeviceVector<float> x(1);
  float host = 0;
  EXPECT_THAT(simt::failure_of([&] { cudaMemcpy(&host, x.data(), 4, cudaMemcpyHostToDevice); }),
              HasSubstr("copy in the wrong direction"));
}

// --- Barriers and warps. ---

__global__ void conditional_barrier_kernel() {
  if (threadIdx.x < 40) {
    __syncthreads();
  }
}

__global__ void two_barriers_kernel() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(Fault, DivergentBarrier) {
  EXPECT_THAT(failure_of_kernel<conditional_barrier_kernel>(dim3(64)),
              AllOf(HasSubstr("divergent barrier in kernel conditional_barrier_kernel"),
                    HasSubstr("threads 0 to 39 wait in __syncthreads at "),
                    HasSubstr("; 40 to 63 have returned")));
  EXPECT_THAT(failure_of_kernel<two_barriers_kernel>(dim3(64)),
              HasSubstr("divergent barrier in kernel two_barriers_kernel"));
}

__global__ void missing_lane_kernel(unsigned mask) {
  if (threadIdx.x != 5) {
    __shfl_xor_sync(mask, 1, 16);
  }
}

__global__ void lane_outside_kernel() { __syncwarp(0x7fffffffu); }

__global__ void source_outside_kernel() {
  if (threadIdx.x < 4) {
    __shfl_sync(0xfu, 1, 7);
  }
}

TEST(Fault, ShuffleWithMissingLanes) {
  EXPECT_THAT(
      failure_of_kernel<missing_lane_kernel>(dim3(32), kAllLanes),
      AllOf(HasSubstr("__shfl_xor_sync (mask 0xffffffff)"), HasSubstr("5 to 5 have returned")));
  EXPECT_THAT(failure_of_kernel<missing_lane_kernel>(dim3(24), kAllLanes),
              HasSubstr("__shfl_xor_sync (mask 0xffffffff)"));
  EXPECT_THAT(failure_of_kernel<lane_outside_kernel>(dim3(32)),
              HasSubstr("__syncwarp by a lane outside its mask"));
  EXPECT_THAT(failure_of_kernel<source_outside_kernel>(dim3(32)),
              HasSubstr("__shfl_sync from a lane outside its mask"));
}

// --- Launches. ---

__global__ void empty_kernel() {}

TEST(Fault, ImpossibleLaunch) {
  const auto failure = [](dim3 grid, dim3 block, size_t dynamic_bytes) {
    return simt::failure_of(
        [=] { launch<empty_kernel>(Cuda{nullptr}, grid, block, dynamic_bytes); });
  };
  EXPECT_THAT(failure(1, 1025, 0), HasSubstr("too many threads or none in kernel empty_kernel"));
  EXPECT_THAT(failure(1, dim3(64, 32), 0), HasSubstr("too many threads"));
  EXPECT_THAT(failure(0, 32, 0), HasSubstr("impossible grid in kernel empty_kernel"));
  EXPECT_THAT(failure(dim3(1, 65536), 32, 0), HasSubstr("impossible grid"));
  EXPECT_THAT(failure(1, 32, 164 * 1024), HasSubstr("too much shared memory in kernel empty"));
  EXPECT_EQ(failure(dim3(1, 65535), 1, 163 * 1024), "");
}

template <int kBytes>
struct Bytes {
  char values[kBytes];
};

__global__ void static_shared_kernel() {
  shared<Bytes<30000>>();
  shared<Bytes<20000>>();
}

__global__ void past_the_end_kernel() { dynamic_shared<float>()[threadIdx.x] = 1.0f; }

TEST(Fault, SharedMemory) {
  EXPECT_THAT(failure_of_kernel<static_shared_kernel>(dim3(1)),
              HasSubstr("too much shared memory in kernel static_shared_kernel"));
  EXPECT_THAT(failure_of_kernel<past_the_end_kernel>(dim3(1)),
              HasSubstr("dynamic shared memory that the launch did not ask for"));
  EXPECT_THAT(simt::failure_of(
                  [] { launch<past_the_end_kernel>(Cuda{nullptr}, 1, 32, 31 * sizeof(float)); }),
              HasSubstr("store past the end of shared memory"));
}

// --- Streams and errors. ---

__global__ void fill_kernel(Global<float> x, float value) { x.store(threadIdx.x, value); }

// The values that a communication stream copies after a computing stream wrote them.
simt::Bytes copy_across_streams(bool event_before, bool event_after) {
  const DeviceVector<float> x(std::vector<float>(32, 0.0f)), y(32);
  cudaStream_t compute, comm;
  cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, 0);
  cudaStreamCreateWithPriority(&comm, cudaStreamNonBlocking, -5);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  launch<fill_kernel>(Cuda{compute}, 1, 32, 0, x.data(), 1.0f);
  if (event_before) {
    cudaEventRecord(event, compute);
    cudaStreamWaitEvent(comm, event);
  }
  cudaMemcpyAsync(y.data(), x.data(), 32 * sizeof(float), cudaMemcpyDefault, comm);
  if (event_after) {
    cudaEventRecord(event, comm);
    cudaStreamWaitEvent(compute, event);
  }
  launch<fill_kernel>(Cuda{compute}, 1, 32, 0, x.data(), 2.0f);
  cudaDeviceSynchronize();
  cudaEventDestroy(event);
  cudaStreamDestroy(compute);
  cudaStreamDestroy(comm);
  return simt::bytes_of(y.values());
}

TEST(Fault, MissingEventBetweenStreams) {
  EXPECT_EQ(simt::disagreement([] { return copy_across_streams(true, true); }), "");
  EXPECT_EQ(simt::disagreement([] { return copy_across_streams(false, true); }),
            "streams=compute-late");
  EXPECT_EQ(simt::disagreement([] { return copy_across_streams(true, false); }),
            "streams=comm-late");
}

template <int kNumber>
__global__ void loaded_late_kernel() {}

// The failure, if any, of a kernel that starts during a collective on another stream.
template <int kNumber>
std::string failure_beside_a_collective(bool with_others) {
  struct Arrival {  // the other ranks come at the end, even if the launch fails
    std::atomic<bool>& there;
    ~Arrival() { there = true; }
  };
  cudaStream_t comm;
  cudaStreamCreateWithPriority(&comm, cudaStreamNonBlocking, -5);
  std::atomic<bool> there = false;
  simt::enqueue_polled(
      comm, "collective", [&] { return there.load(); }, with_others);
  const std::string failure = simt::failure_of([&] {
    const Arrival arrival{there};
    launch<loaded_late_kernel<kNumber>>(Cuda{nullptr}, 1, 1, 0);
  });
  cudaStreamDestroy(comm);
  return failure;
}

TEST(Fault, KernelLoadedWhileRanksWaitForEachOther) {
  EXPECT_THAT(failure_beside_a_collective<0>(true),
              AllOf(HasSubstr("kernel loaded while a collective waits for other ranks"),
                    HasSubstr("loaded_late_kernel<0>")));
  EXPECT_EQ(failure_beside_a_collective<0>(true), "");  // the kernel is loaded now
  EXPECT_EQ(failure_beside_a_collective<1>(false), "");
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(loaded_late_kernel<2>));
  EXPECT_EQ(failure_beside_a_collective<2>(true), "");
}

TEST(Fault, CudaCallFromAStream) {
  EXPECT_THAT(
      simt::failure_of([] { simt::enqueue(nullptr, "bad work", [] { cudaDeviceSynchronize(); }); }),
      HasSubstr("CUDA call from work on a stream in bad work"));
}

TEST(Fault, OperandOfALibraryOutsideItsAllocation) {
  const DeviceVector<float> x(8);
  EXPECT_THAT(simt::failure_of([&] {
                simt::enqueue(nullptr, "gemm", [&] { simt::check_range(x.data(), 33, "A"); });
              }),
              HasSubstr("out of bounds, A in gemm: 33 bytes"));
}

TEST(Fault, UncheckedErrorBeforeALaunch) {
  cudaSetDevice(1000);
  EXPECT_THAT(failure_of_kernel<empty_kernel>(dim3(1)),
              HasSubstr("unchecked error: cudaSetDevice returned cudaErrorInvalidDevice"));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST(FaultDeathTest, EndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto unchecked = [] {
    cudaSetDevice(1000);
    std::exit(0);
  };
  EXPECT_EXIT(unchecked(), testing::ExitedWithCode(99), "simt: unchecked error: cudaSetDevice");
  const auto diverge = [] {
    launch<conditional_barrier_kernel>(Cuda{nullptr}, 1, 64, 0);
    cudaDeviceSynchronize();
  };
  EXPECT_EXIT(diverge(), testing::ExitedWithCode(99), "simt: divergent barrier in kernel");
}

}  // namespace
}  // namespace tandem

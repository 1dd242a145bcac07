// The emulated GPU on correct programs; test_simt_faults.cpp plants faults that it must report.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <thread>

#include "src/device/global.h"
#include "src/device/ptx.cuh"
#include "src/kernels/block.cuh"
#include "tests/simt/device_vector.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"

namespace tandem {
namespace {

using simt::DeviceVector;

// The tests choose their own settings, so those of the environment are ignored.
class DefaultSettings : public testing::Environment {
  void SetUp() override {
    simt::set_thread_schedule("forward");
    simt::set_stream_schedule("in-order");
    simt::set_poison(0xff);
  }
};
const auto* const kDefaults = testing::AddGlobalTestEnvironment(new DefaultSettings);

// --- Grids, blocks, shared memory. ---

__global__ void indices_kernel(Global<int> out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int64_t i = int64_t{block} * blockDim.x * blockDim.y * blockDim.z + thread;
  out.store(i, static_cast<int>(i));
}

TEST(Kernel, RunsEveryThreadOfAGridOnce) {
  for (const char* schedule : {"forward", "backward", "shuffled:1"}) {
    simt::set_thread_schedule(schedule);
    const int n = 3 * 2 * 4 * 5 * 3 * 2;
    DeviceVector<int> out(n);
    launch<indices_kernel>(Cuda{nullptr}, dim3(3, 2, 4), dim3(5, 3, 2), 0, out.data());
    std::vector<int> expected(n);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(out.values(), expected) << schedule;
  }
  simt::set_thread_schedule("forward");
}

// out[b] = sum of row b, by shuffles, static shared memory and dynamic shared memory.
template <class T>
__global__ void row_sum_kernel(Global<const T> x, Global<T> out, int width) {
  T* row = dynamic_shared<T>();
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    row[i] = x.load(int64_t{blockIdx.x} * width + i);
  }
  __syncthreads();
  T sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    sum += row[width - 1 - i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    out.store(blockIdx.x, sum);
  }
}

std::vector<float> row_sums(int rows, int width) {
  std::vector<float> x(rows * width);
  std::iota(x.begin(), x.end(), 1.0f);
  DeviceVector<float> in(x), out(rows);
  launch<row_sum_kernel<float>>(Cuda{nullptr}, rows, 96, width * sizeof(float), in.data(),
                                out.data(), width);
  return out.values();
}

TEST(Kernel, SharesMemoryWithinABlock) {
  const std::vector<float> sums = row_sums(3, 100);
  EXPECT_EQ(sums, (std::vector<float>{5050, 15050, 25050}));
  EXPECT_EQ(simt::disagreement([] { return simt::bytes_of(row_sums(5, 77)); }), "");
}

struct LargeTile {
  float values[40 * 1024 / sizeof(float)];
};

__global__ void large_tile_kernel(Global<float> out) {
  LargeTile& tile = shared<LargeTile>();
  const unsigned i = threadIdx.x;
  EXPECT_TRUE(std::isnan(tile.values[i]));  // poisoned anew for every block
  tile.values[i] = static_cast<float>(i);
  __syncthreads();
  dynamic_shared<float>()[25000 + i] = tile.values[blockDim.x - 1 - i];
  out.store(int64_t{blockIdx.x} * blockDim.x + i, dynamic_shared<float>()[25000 + i]);
}

TEST(Kernel, MayUseAllSharedMemoryOfSm80) {
  DeviceVector<float> out(64);
  launch<large_tile_kernel>(Cuda{nullptr}, 2, 32, 123 * 1024, out.data());
  EXPECT_EQ(out.values()[0], 31);
  EXPECT_EQ(out.values()[63], 0);
}

// --- Warps. ---

struct Double {
  double value;
};

__global__ void warp_kernel(Global<int> out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t i = threadIdx.x * 8;
  out.store(i, __shfl_sync(kAllLanes, lane, 5));
  out.store(i + 1, __shfl_xor_sync(kAllLanes, lane, 3, 8));
  out.store(i + 2, __shfl_up_sync(kAllLanes, lane, 2, 16));
  out.store(i + 3, static_cast<int>(__shfl_down_sync(kAllLanes, Double{0.5 + lane}, 1).value));
  out.store(i + 4, static_cast<int>(__ballot_sync(kAllLanes, lane % 4 == 1)));
  out.store(i + 5, __any_sync(kAllLanes, lane == 9) + 2 * __all_sync(kAllLanes, lane < 31));
  if (lane < 16) {  // an exchange within half a warp
    out.store(i + 6, __shfl_xor_sync(0x0000ffffu, lane, 1));
  } else {
    out.store(i + 6, static_cast<int>(__activemask() >> 16));
  }
  __syncwarp();
  out.store(i + 7, __syncthreads_count(lane == 0) + 100 * __syncthreads_or(threadIdx.x == 40) +
                       1000 * __syncthreads_and(threadIdx.x < 64));
}

TEST(Kernel, ExchangesValuesWithinAWarp) {
  DeviceVector<int> out(64 * 8);
  launch<warp_kernel>(Cuda{nullptr}, 1, 64, 0, out.data());
  const std::vector<int> got = out.values();
  for (int thread = 0; thread < 64; ++thread) {
    const int lane = thread % 32;
    const std::vector<int> expected = {
        5,          lane ^ 3, lane % 16 < 2 ? lane : lane - 2, lane == 31 ? 31 : lane + 1,
        0x22222222, 1,        lane < 16 ? lane ^ 1 : 0xffff,   1102};
    const auto first = got.begin() + thread * 8;
    EXPECT_EQ(std::vector<int>(first, first + 8), expected) << "thread " << thread;
  }
}

// Half of the warp begins its own exchange before the other half has read the result of the first
// one.
__global__ void half_ahead_kernel(Global<int> out) {
  const int lane = static_cast<int>(threadIdx.x);
  int value = __shfl_xor_sync(kAllLanes, lane, 16);
  if (lane < 16) {
    value += __shfl_xor_sync(0x0000ffffu, 1000, 1);
  }
  out.store(lane, value);
}

TEST(Kernel, KeepsExchangesOfHalfAWarpApart) {
  DeviceVector<int> out(32);
  launch<half_ahead_kernel>(Cuda{nullptr}, 1, 32, 0, out.data());
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out.values()[lane], (lane ^ 16) + (lane < 16 ? 1000 : 0));
  }
}

// --- Global memory. ---

__global__ void add_one_kernel(Global<float> x, int64_t n) {
  const int64_t i = 4 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  if (i + 4 <= n) {
    Pack<float> pack = x.load16(i);
    for (int k = 0; k < 4; ++k) {
      pack[k] += 1.0f;
    }
    x.store16(i, pack);
  }
}

TEST(Global, CountsSectorsOfWarps) {
  DeviceVector<float> x(std::vector<float>(1024, 2.0f));
  simt::counters() = {};
  launch<add_one_kernel>(Cuda{nullptr}, 2, 128, 0, x.data(), int64_t{1024});
  EXPECT_EQ(x.values(), std::vector<float>(1024, 3.0f));
  EXPECT_EQ(simt::counters().sectors_read, 1024 * 4 / 32);
  EXPECT_EQ(simt::counters().sectors_written, 1024 * 4 / 32);
  EXPECT_EQ(simt::counters().launches, 1);
  EXPECT_EQ(simt::counters().host_syncs, 1);
}

__global__ void histogram_kernel(Global<const int> x, Global<int> counts) {
  struct Counts {
    int of[4];
  };
  Counts& local = shared<Counts>();
  if (threadIdx.x < 4) {
    local.of[threadIdx.x] = 0;
  }
  __syncthreads();
  atomicAdd(&local.of[x.load(int64_t{blockIdx.x} * blockDim.x + threadIdx.x)], 1);
  __syncthreads();
  if (threadIdx.x < 4) {
    counts.atomic_add(threadIdx.x, local.of[threadIdx.x]);
  }
}

TEST(Global, AddsIntegersAtomically) {
  std::vector<int> x(256);
  for (int i = 0; i < 256; ++i) {
    x[i] = i % 3;
  }
  DeviceVector<int> in(x), counts(std::vector<int>(4, 0));
  launch<histogram_kernel>(Cuda{nullptr}, 4, 64, 0, in.data(), counts.data());
  EXPECT_EQ(counts.values(), (std::vector<int>{86, 85, 85, 0}));
}

TEST(Global, IsAPlainPointerOutsideKernels) {
  std::vector<float> x(8, 1.0f);
  Global<float> pointer = x.data();
  pointer.store(3, 5.0f);
  EXPECT_EQ((pointer + 3).load(0), 5.0f);
  EXPECT_EQ(Global<const float>(pointer).load(2), 1.0f);
}

TEST(Ptx, Exp2FlushesSubnormals) {
  EXPECT_NEAR(ptx::exp2(3.0f), 8.0f, 2 * 8 * 0x1p-23f);  // 2 ulp
  EXPECT_EQ(ptx::exp2(0.0f), 1.0f);
  EXPECT_EQ(ptx::exp2(-INFINITY), 0.0f);
  EXPECT_EQ(ptx::exp2(-130.0f), 0.0f);
  EXPECT_TRUE(std::isnan(ptx::exp2(NAN)));
}

// --- Streams. ---

// A pinned number, which host functions on streams write.
class Streams : public testing::Test {
 protected:
  void SetUp() override {
    cudaStreamCreateWithPriority(&compute_, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&comm_, cudaStreamNonBlocking, -5);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  }
  void TearDown() override {
    cudaStreamDestroy(compute_);
    cudaStreamDestroy(comm_);
    cudaEventDestroy(event_);
    simt::set_stream_schedule("in-order");
  }
  void append(cudaStream_t stream, int value) {
    simt::enqueue(stream, "append", [=, this] { order_.push_back(value); });
  }

  cudaStream_t compute_, comm_;
  cudaEvent_t event_;
  std::vector<int> order_;
};

TEST_F(Streams, RunNothingBeforeTheHostAsks) {
  append(compute_, 1);
  EXPECT_TRUE(order_.empty());
  EXPECT_EQ(cudaStreamSynchronize(compute_), cudaSuccess);
  EXPECT_EQ(order_, std::vector<int>{1});
}

TEST_F(Streams, FollowTheSchedule) {
  const auto run = [&](const char* schedule) {
    simt::set_stream_schedule(schedule);
    order_.clear();
    for (int i = 0; i < 3; ++i) {
      append(compute_, 10 + i);
      append(comm_, 20 + i);
    }
    cudaDeviceSynchronize();
    return order_;
  };
  EXPECT_EQ(run("in-order"), (std::vector<int>{10, 20, 11, 21, 12, 22}));
  EXPECT_EQ(run("compute-late"), (std::vector<int>{20, 21, 22, 10, 11, 12}));
  EXPECT_EQ(run("comm-late"), (std::vector<int>{10, 11, 12, 20, 21, 22}));
  EXPECT_NE(run("shuffled:1"), run("shuffled:2"));
}

TEST_F(Streams, WaitForEventsInEverySchedule) {
  for (const char* schedule : {"in-order", "compute-late", "comm-late", "shuffled:1"}) {
    simt::set_stream_schedule(schedule);
    order_.clear();
    append(compute_, 1);
    cudaEventRecord(event_, compute_);
    cudaStreamWaitEvent(comm_, event_);
    append(comm_, 2);
    cudaEventRecord(event_, comm_);
    cudaStreamWaitEvent(compute_, event_);
    append(compute_, 3);
    EXPECT_EQ(cudaStreamSynchronize(compute_), cudaSuccess);
    EXPECT_EQ(order_, (std::vector<int>{1, 2, 3})) << schedule;
  }
}

TEST_F(Streams, GoOnPastWorkThatIsPolled) {
  int polls = 0;
  simt::enqueue_polled(comm_, "collective", [&] { return ++polls == 3; });
  append(comm_, 2);
  append(compute_, 1);
  cudaStreamSynchronize(comm_);
  EXPECT_EQ(polls, 3);
  EXPECT_EQ(order_, (std::vector<int>{1, 2}));
}

TEST_F(Streams, ProgressWhileTheHostIsElsewhere) {
  std::atomic<bool> ran = false;
  simt::enqueue(comm_, "collective", [&] { ran = true; });
  while (!ran) {
    std::this_thread::yield();
  }
  EXPECT_EQ(cudaStreamQuery(comm_), cudaSuccess);
}

TEST_F(Streams, CopyPinnedMemoryWhenTheyGetThere) {
  int* pinned;
  cudaMallocHost(&pinned, sizeof(int));
  int pageable = 1;
  DeviceVector<int> a(1), b(1);
  *pinned = 1;
  cudaMemcpyAsync(a.data(), pinned, sizeof(int), cudaMemcpyHostToDevice, compute_);
  cudaMemcpyAsync(b.data(), &pageable, sizeof(int), cudaMemcpyDefault, compute_);
  *pinned = pageable = 2;
  cudaStreamSynchronize(compute_);
  EXPECT_EQ(a.values()[0], 2);
  EXPECT_EQ(b.values()[0], 1);
  cudaFreeHost(pinned);
}

TEST_F(Streams, OrderMemoryOfTheirOwn) {
  float* x;
  cudaMallocAsync(&x, 64, compute_);
  cudaMemsetAsync(x, 0, 64, compute_);
  launch<add_one_kernel>(Cuda{compute_}, 1, 4, 0, x, int64_t{16});
  std::vector<float> values(16);
  cudaMemcpyAsync(values.data(), x, 64, cudaMemcpyDeviceToHost, compute_);  // waits: pageable
  EXPECT_EQ(values, std::vector<float>(16, 1.0f));
  cudaFreeAsync(x, compute_);
}

TEST(Device, RunsOutOfMemory) {
  size_t available, total;
  cudaMemGetInfo(&available, &total);
  void* data;
  EXPECT_EQ(cudaMalloc(&data, available + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST(CoverageDeathTest, NamesTheKernelsThatRan) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const std::string file = "simt_coverage.txt";  // in the folder of the build
  std::remove(file.c_str());
  const auto run = [&] {
    simt::settings().coverage = file;
    row_sums(1, 7);
    std::exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
  std::stringstream names;
  names << std::ifstream(file).rdbuf();
  EXPECT_EQ(names.str(), "row_sum_kernel\n");
}

TEST(Device, LooksLikeSm80) {
  cudaDeviceProp properties;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(properties.major, 8);
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 8);
  EXPECT_EQ(cudaSetDevice(8), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  simt::settings().devices = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  simt::settings().devices = 8;
  EXPECT_STREQ(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
}

}  // namespace
}  // namespace tandem

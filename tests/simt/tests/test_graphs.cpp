// Captured streams and graphs: what CUDA promises of them, and planted faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/device/global.h"
#include "src/kernels/launch.cuh"
#include "tests/simt/device_vector.h"
#include "tests/simt/simt.h"

namespace tandem {
namespace {

using simt::DeviceVector;
using testing::HasSubstr;

// y = y * factor + x
__global__ void axpy_kernel(Global<float> y, Global<const float> x, float factor) {
  y.store(threadIdx.x, y.load(threadIdx.x) * factor + x.load(threadIdx.x));
}

struct Streams {
  Streams() {
    cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, 0);
    cudaStreamCreateWithPriority(&comm, cudaStreamNonBlocking, -5);
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  }
  ~Streams() {
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(compute);
    cudaStreamDestroy(comm);
  }
  void axpy(cudaStream_t stream, const DeviceVector<float>& y, const DeviceVector<float>& x,
            float factor) const {
    launch<axpy_kernel>(Cuda{stream}, 1, 8, 0, y.data(), x.data(), factor);
  }
  void wait(cudaStream_t later, cudaEvent_t event, cudaStream_t earlier) const {
    cudaEventRecord(event, earlier);
    cudaStreamWaitEvent(later, event);
  }

  cudaStream_t compute = nullptr, comm = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
};

struct Captured {
  cudaError_t error = cudaSuccess;
  cudaGraphExec_t graph = nullptr;

  Captured(const Streams& streams, const std::function<void()>& run) {
    cudaStreamBeginCapture(streams.compute, cudaStreamCaptureModeThreadLocal);
    run();
    cudaGraph_t graph_only = nullptr;
    error = cudaStreamEndCapture(streams.compute, &graph_only);
    if (error == cudaSuccess) {
      cudaGraphInstantiate(&graph, graph_only);
      cudaGraphDestroy(graph_only);
    } else {
      EXPECT_EQ(cudaGetLastError(), error);
    }
  }
  ~Captured() {
    if (graph != nullptr) {
      cudaGraphExecDestroy(graph);
    }
  }
};

const std::vector<float> kOnes(8, 1.0f);

TEST(Graph, RunsNothingUntilItIsLaunchedAndThenAllOfIt) {
  const Streams streams;
  const DeviceVector<float> y(kOnes), x(kOnes);
  float factor = 2;
  const Captured captured(streams, [&] { streams.axpy(streams.compute, y, x, factor); });
  factor = 100;  // arguments are kept by value
  EXPECT_EQ(y.values()[0], 1);
  simt::counters() = {};
  for (int i = 0; i < 3; ++i) {
    cudaGraphLaunch(captured.graph, streams.compute);
  }
  EXPECT_EQ(simt::counters().launches, 0);
  EXPECT_EQ(simt::counters().enqueued, 0);
  EXPECT_EQ(simt::counters().graph_launches, 3);
  cudaDeviceSynchronize();
  EXPECT_EQ(y.values(), std::vector<float>(8, 15));  // ((1 * 2 + 1) * 2 + 1) * 2 + 1
}

// y = 3 y + z on one stream, where z = 2 z + x on another comes before it, or not.
simt::Bytes across_streams(bool forks, bool joins) {
  const Streams streams;
  const DeviceVector<float> y(kOnes), z(kOnes), x(kOnes);
  const Captured captured(streams, [&] {
    streams.axpy(streams.compute, x, x, 5);
    streams.wait(streams.comm, streams.fork, streams.compute);
    if (!forks) {  // before the fork's work
      streams.axpy(streams.compute, x, x, 7);
    }
    streams.axpy(streams.comm, z, x, 2);
    if (joins) {
      streams.wait(streams.compute, streams.join, streams.comm);
    }
    streams.axpy(streams.compute, y, z, 3);
    streams.wait(streams.compute, streams.join, streams.comm);
  });
  for (int i = 0; i < 2; ++i) {
    cudaGraphLaunch(captured.graph, streams.compute);
  }
  cudaDeviceSynchronize();
  return simt::bytes_of(y.values());
}

TEST(Graph, AnEdgeThatIsMissingIsSeenByASchedule) {
  EXPECT_EQ(simt::disagreement([] { return across_streams(true, true); }), "");
  EXPECT_EQ(simt::disagreement([] { return across_streams(true, false); }), "streams=comm-late");
  EXPECT_EQ(simt::disagreement([] { return across_streams(false, true); }), "streams=compute-late");
}

TEST(Graph, StreamsMustJoinAgain) {
  const Streams streams;
  const DeviceVector<float> y(kOnes), x(kOnes);
  const Captured captured(streams, [&] {
    streams.wait(streams.comm, streams.fork, streams.compute);
    streams.axpy(streams.comm, y, x, 2);
  });
  EXPECT_EQ(captured.error, cudaErrorStreamCaptureUnjoined);
  const Captured early(streams, [&] {
    streams.wait(streams.comm, streams.fork, streams.compute);
    streams.wait(streams.compute, streams.join, streams.comm);
    streams.axpy(streams.comm, y, x, 2);
  });
  EXPECT_EQ(early.error, cudaErrorStreamCaptureUnjoined);
}

TEST(Graph, WorkFromBeforeTheCaptureIsNotWaitedFor) {
  const Streams streams;
  cudaEventRecord(streams.join, streams.comm);
  const Captured captured(streams, [&] {
    EXPECT_EQ(cudaStreamWaitEvent(streams.compute, streams.join), cudaErrorStreamCaptureIsolation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureIsolation);
  });
  EXPECT_EQ(captured.error, cudaErrorStreamCaptureInvalidated);
}

TEST(Graph, EventsOfACaptureAreNeverReached) {
  const Streams streams;
  const Captured captured(streams, [&] { cudaEventRecord(streams.join, streams.compute); });
  EXPECT_EQ(captured.error, cudaSuccess);
  for (const auto call : {cudaEventQuery, cudaEventSynchronize}) {
    EXPECT_EQ(call(streams.join), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaGetLastError(), cudaErrorCapturedEvent);
  }
  EXPECT_EQ(cudaStreamWaitEvent(streams.comm, streams.join), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaGetLastError(), cudaErrorCapturedEvent);
  cudaEventRecord(streams.join, streams.compute);  // outside again
  EXPECT_EQ(cudaEventSynchronize(streams.join), cudaSuccess);
}

TEST(Graph, CallsThatACaptureForbidsEndIt) {
  const Streams streams;
  void* memory = nullptr;
  cudaMalloc(&memory, 64);
  void* pointer = nullptr;
  float host = 0;
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaMalloc(&pointer, 64); },
      [&] { return cudaFree(memory); },
      [&] { return cudaMallocAsync(&pointer, 64, streams.compute); },
      [&] { return cudaFreeAsync(memory, streams.compute); },
      [&] { return cudaMallocHost(&pointer, 64); },
      [&] { return cudaFreeHost(memory); },
      [&] { return cudaMemcpy(&host, memory, 4, cudaMemcpyDeviceToHost); },
      [&] { return cudaStreamSynchronize(streams.compute); },
      [&] { return cudaStreamQuery(streams.comm); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventQuery(streams.join); },
      [&] { return cudaEventSynchronize(streams.join); },
      [&] { return cudaGraphLaunch(nullptr, streams.compute); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    const Captured captured(streams, [&] {
      EXPECT_EQ(calls[i](), cudaErrorStreamCaptureUnsupported) << i;
      EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported) << i;
    });
    EXPECT_EQ(captured.error, cudaErrorStreamCaptureInvalidated) << i;
  }
  cudaFree(memory);
}

TEST(Graph, HostMemoryMustBePageLockedAndStillThere) {
  const Streams streams;
  const DeviceVector<float> x(kOnes);
  const float host = 3;
  const Captured captured(streams, [&] {
    EXPECT_THAT(simt::failure_of([&] {
                  cudaMemcpyAsync(x.data(), &host, 4, cudaMemcpyHostToDevice, streams.compute);
                }),
                HasSubstr("copy of pageable memory in a graph"));
  });
}

TEST(Graph, MemoryMustOutliveIt) {
  const Streams streams;
  const DeviceVector<float> y(kOnes);
  auto x = std::make_unique<DeviceVector<float>>(kOnes);
  const Captured captured(streams, [&] { streams.axpy(streams.compute, y, *x, 2); });
  x.reset();
  EXPECT_THAT(simt::failure_of([&] { cudaGraphLaunch(captured.graph, streams.compute); }),
              HasSubstr("axpy_kernel"));
  void* host = nullptr;
  cudaMallocHost(&host, 4);
  const Captured copy(streams, [&] {
    cudaMemcpyAsync(y.data(), host, 4, cudaMemcpyHostToDevice, streams.compute);
  });
  cudaFreeHost(host);
  EXPECT_THAT(simt::failure_of([&] { cudaGraphLaunch(copy.graph, streams.compute); }),
              HasSubstr("page-locked memory that was freed"));
}

}  // namespace
}  // namespace tandem

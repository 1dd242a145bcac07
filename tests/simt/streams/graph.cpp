#include "tests/simt/streams/graph.h"

#include <cuda_profiler_api.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "tests/simt/runtime.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"

namespace simt {

struct Capture {
  std::thread::id thread;
  std::vector<CUstream_st*> streams = {};  // of each branch; the first one began it
  std::vector<Branch> branches = {};
  std::vector<size_t> order = {};  // the branch of each task, in the order of the host's calls
  bool ended_early = false;
};

namespace {

thread_local std::shared_ptr<Capture> capture_of_thread;

void add(const std::shared_ptr<Capture>& capture, CUstream_st* stream) {
  stream->capture = capture;
  stream->branch = capture->branches.size();
  capture->streams.push_back(stream);
  capture->branches.push_back({stream->priority});
}

void note(const std::string& line) {
  if (!settings().graphs.empty()) {
    std::ofstream(settings().graphs, std::ios::app) << line + "\n";
  }
}

// Notes what the host asked of the runtime since the launch before.
void note_launch() {
  static Counters before;
  const Counters& now = counters();
  note(std::to_string(now.enqueued - before.enqueued) + " " +
       std::to_string(now.device_allocations - before.device_allocations) + " " +
       std::to_string(now.host_syncs - before.host_syncs));
  before = now;
}

// What comes before one task or the other.
void merge(std::vector<size_t>& seen, const std::vector<size_t>& other) {
  seen.resize(std::max(seen.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) {
    seen[i] = std::max(seen[i], other[i]);
  }
}

std::vector<size_t> seen_after(const Branch& branch, size_t number) {
  std::vector<size_t> seen = branch.seen;
  seen.resize(std::max(seen.size(), number + 1));
  seen[number] = branch.tasks.size();
  return seen;
}

// Whether all that the branches do comes before the end of the first one.
bool all_join(const Capture& capture) {
  const std::vector<size_t> seen = seen_after(capture.branches[0], 0);
  for (size_t i = 0; i < capture.branches.size(); ++i) {
    const std::vector<Task>& tasks = capture.branches[i].tasks;
    size_t last = tasks.size();  // records and waits alone are no work
    while (last > 0 && tasks[last - 1].mark) {
      --last;
    }
    if (last > (i < seen.size() ? seen[i] : 0)) {
      return false;
    }
  }
  return true;
}

void enqueue_graph(RuntimeLock& lock, const CUgraphExec_st& graph, CUstream_st* stream) {
  std::map<const Mark*, std::shared_ptr<Mark>> marks;  // of this launch, by those of the capture
  const auto record = [&](CUstream_st* on) {
    auto mark = std::make_shared<Mark>();
    push(lock, on, {Task::kRecord, "graph", nullptr, mark});
    return mark;
  };
  const std::shared_ptr<Mark> begin = record(stream);
  for (CUstream_st* on : graph.streams) {
    push(lock, on, {Task::kWait, "graph", nullptr, begin});
  }
  std::vector<size_t> next(graph.branches.size(), 0);
  for (const size_t branch : graph.order) {
    Task task = graph.branches[branch].tasks[next[branch]++];
    if (task.mark) {
      std::shared_ptr<Mark>& mark = marks[task.mark.get()];
      mark = mark ? mark : std::make_shared<Mark>();
      task.mark = mark;
    }
    push(lock, graph.streams[branch], std::move(task));
  }
  for (CUstream_st* on : graph.streams) {
    push(lock, stream, {Task::kWait, "graph", nullptr, record(on)});
  }
}

}  // namespace

cudaError_t refuse_in_capture(const char* call) {
  if (!capture_of_thread) {
    return cudaSuccess;
  }
  capture_of_thread->ended_early = true;
  return result(cudaErrorStreamCaptureUnsupported, call);
}

bool keep_in_capture(CUstream_st* stream, Task& task) {
  if (stream == nullptr || !stream->capture) {
    return false;
  }
  Capture& capture = *stream->capture;
  if (capture.thread != std::this_thread::get_id()) {
    fail("work on a stream that another thread captures", task.name);
  }
  Branch& branch = capture.branches[stream->branch];
  if (task.kind == Task::kRecord) {
    task.mark->capture = stream->capture;
    task.mark->seen = seen_after(branch, stream->branch);
  } else if (task.kind == Task::kWait) {
    merge(branch.seen, task.mark->seen);
  }
  branch.tasks.push_back(std::move(task));
  capture.order.push_back(stream->branch);
  return true;
}

cudaError_t join_capture(CUstream_st* stream, const Mark& mark) {
  const std::shared_ptr<Capture>& other = mark.capture;
  const std::shared_ptr<Capture> own = stream == nullptr ? nullptr : stream->capture;
  if (own == other) {
    return cudaSuccess;
  }
  if (own) {
    own->ended_early = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (other != capture_of_thread || stream == nullptr) {
    return cudaErrorCapturedEvent;
  }
  add(other, stream);
  return cudaSuccess;
}

}  // namespace simt

using simt::RuntimeLock;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  RuntimeLock lock;
  if (stream == nullptr) {
    return simt::result(cudaErrorStreamCaptureUnsupported);
  }
  if (stream->capture || simt::capture_of_thread) {
    return simt::result(cudaErrorIllegalState);
  }
  simt::capture_of_thread =
      std::make_shared<simt::Capture>(simt::Capture{.thread = std::this_thread::get_id()});
  simt::add(simt::capture_of_thread, stream);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  RuntimeLock lock;
  *graph = nullptr;
  const std::shared_ptr<simt::Capture> capture = simt::capture_of_thread;
  if (!capture) {
    return simt::result(cudaErrorIllegalState);
  }
  if (stream != capture->streams[0]) {
    return simt::result(cudaErrorStreamCaptureUnmatched);
  }
  for (CUstream_st* captured : capture->streams) {
    captured->capture = nullptr;
  }
  simt::capture_of_thread = nullptr;
  if (capture->ended_early) {
    return simt::result(cudaErrorStreamCaptureInvalidated);
  }
  if (!simt::all_join(*capture)) {
    return simt::result(cudaErrorStreamCaptureUnjoined);
  }
  *graph = new CUgraph_st{std::move(capture->branches), std::move(capture->order)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  RuntimeLock lock;
  *status = stream == nullptr || !stream->capture ? cudaStreamCaptureStatusNone
            : stream->capture->ended_early        ? cudaStreamCaptureStatusInvalidated
                                                  : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  RuntimeLock lock;
  *executable = new CUgraphExec_st{*graph};
  for (const simt::Branch& branch : graph->branches) {
    (*executable)->streams.push_back(simt::create_stream(cudaStreamNonBlocking, branch.priority));
  }
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;  // a graph inside a graph is not emulated
  }
  ++simt::counters().graph_launches;
  simt::note_launch();
  const int64_t before = simt::counters().enqueued;
  simt::enqueue_graph(lock, *executable, stream);
  simt::counters().enqueued = before;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  RuntimeLock lock;
  for (CUstream_st* stream : executable->streams) {
    destroy_stream(lock, stream);
  }
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() {
  simt::note("profiler starts");
  return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
  simt::note("profiler stops");
  return cudaSuccess;
}

// Capture of streams, and graphs of what was captured.
//
// A graph has a branch for each captured stream: its tasks in their order. Records and waits are
// the edges between branches. At each launch a branch is a stream of its own, so every schedule of
// streams is one of the graph, too.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <vector>

#include "tests/simt/streams/stream.h"

namespace simt {

struct Branch {
  int priority;
  std::vector<Task> tasks = {};
  std::vector<size_t> seen = {};  // of each branch, so many tasks come before the next one here
};

// A call that must not be made while this thread captures: it ends the capture and returns an
// error. cudaSuccess if the thread does not capture.
cudaError_t refuse_in_capture(const char* call = __builtin_FUNCTION());
// Whether the stream is captured, and has kept the task.
bool keep_in_capture(CUstream_st* stream, Task& task);
// Call it before a stream waits for a mark. A mark of a capture draws the stream into it; a stream
// that is captured must not wait for others.
cudaError_t join_capture(CUstream_st* stream, const Mark& mark);

}  // namespace simt

struct CUgraph_st {
  std::vector<simt::Branch> branches;
  std::vector<size_t> order;  // the branch of each task, in the order of the host's calls
};

struct CUgraphExec_st : CUgraph_st {
  std::vector<CUstream_st*> streams = {};  // of each branch
};

// Work of streams that is kept, and then started again and again by one call (CUDA graphs).
#pragma once

#include <functional>

#include "src/device/cuda.h"
#include "src/device/stream.h"

namespace tandem {

class Graph {
 public:
  // Calls run(), and keeps what it asks of `stream`, a CUDA stream, and of streams that wait for
  // its events. Nothing of that runs before launch(). `stream` must wait for the others before
  // run() ends. Addresses and arguments are kept as they are, so memory that the work uses must
  // outlive the graph. Error(kInternal) if run() calls what a graph cannot hold: it waits for the
  // GPU, asks whether an event is reached, or allocates memory.
  Graph(Stream& stream, const std::function<void()>& run);
  // Enqueues all of the work on the stream.
  void launch(Stream& stream) const;

 private:
  cuda::GraphHandle handle_;
};

}  // namespace tandem

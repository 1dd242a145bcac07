#include "src/device/graph.h"

#include "src/device/dispatch.h"

namespace tandem {

Graph::Graph(Stream& stream, const std::function<void()>& run) {
  if constexpr (kHasCuda) {
    cuda::begin_capture(stream.handle());
    try {
      run();
    } catch (...) {
      cuda::drop_capture(stream.handle());
      throw;
    }
    handle_ = cuda::end_capture(stream.handle());
  } else {
    fail(ExitCode::kInternal, "Graph: this build has no CUDA");
  }
}

void Graph::launch(Stream& stream) const {
  if constexpr (kHasCuda) {
    cuda::launch(handle_.get(), stream.handle());
  }
}

}  // namespace tandem

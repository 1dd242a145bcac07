#include "src/device/graph.h"

#include "src/device/dispatch.h"

namespace tandem {

Graph::Graph(Stream& stream, const std::function<void()>& run) {
  if constexpr (kHasCuda) {
    handle_ = cuda::capture(stream.handle(), run);
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

// This file stands in for cudnn_attention.cpp where CMake did not find cuDNN and cudnn-frontend.
#include "layers/attention/cudnn_attention.h"

namespace tandem::cudnn_attention {

bool in_build() { return false; }

std::string why_missing() {
  return "this build has no cuDNN; build with its headers and cudnn-frontend";
}

std::string version() { fail(ExitCode::kConfig, why_missing()); }

int64_t workspace_bytes(const Problem&, Pass) { fail(ExitCode::kConfig, why_missing()); }

void forward(CUstream_st*, const Problem&, const void*, void*, float*, void*) {
  fail(ExitCode::kConfig, why_missing());
}

void backward(CUstream_st*, const Problem&, const void*, const void*, const void*, const float*,
              void*, void*) {
  fail(ExitCode::kConfig, why_missing());
}

void require_engine(const Problem&, Pass, const Gpu&, int64_t) {
  fail(ExitCode::kConfig, why_missing());
}

}  // namespace tandem::cudnn_attention

// For tests of what the emulated libraries refuse.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/simt/simt.h"

namespace tandem::testing {

inline void expect_caught(const std::string& what, const std::function<void()>& run) {
  const std::string message = simt::failure_of(run);
  EXPECT_NE(message.find(what), std::string::npos) << message;
}

inline float* device_floats(int64_t n) {
  float* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, static_cast<size_t>(n) * sizeof(float)), cudaSuccess);
  return data;
}

}  // namespace tandem::testing

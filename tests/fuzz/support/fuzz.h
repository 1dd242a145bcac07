// What the fuzzers share. A fuzzer is a function LLVMFuzzerTestOneInput, which is called with many
// inputs. Whatever ends the program is a finding.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "src/core/error.h"
#include "tests/support/temporary_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tandem::fuzz {

// Ends the program unless `ok`: this input breaks a promise.
inline void check(bool ok, const char* promise) {
  if (!ok) {
    std::fprintf(stderr, "fuzz: broken promise: %s\n", promise);
    std::abort();
  }
}

// Calls `body`. False when it throws an Error of this code, which is what users get for bad input.
// Any other exception ends the program.
template <class F>
bool accepts(ExitCode code, F&& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    if (error.code() != code) {
      std::fprintf(stderr, "fuzz: an error of another kind: %s\n", error.what());
      std::abort();
    }
    return false;
  }
}

inline std::string text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The folder of this process for inputs that are read from files.
inline const testing::TemporaryFolder& folder() {
  static const testing::TemporaryFolder instance;
  return instance;
}

}  // namespace tandem::fuzz

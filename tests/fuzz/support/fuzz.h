// What the fuzzers share. A fuzzer is a function LLVMFuzzerTestOneInput, which is called with many
// inputs. Whatever ends the program is a finding.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "src/core/error.h"

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

// A folder of this process for inputs that are read from files.
class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "tandem-fuzz-XXXXXX").string()) {
    check(::mkdtemp(path_.data()) != nullptr, "there is a folder for temporary files");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file, or writes it anew, and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::string path_;
};

inline const Folder& folder() {
  static const Folder instance;
  return instance;
}

}  // namespace tandem::fuzz

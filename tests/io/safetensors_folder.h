// A folder of safetensors files for a test, and what is wrong with them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/io/safetensors/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace tandem {

using Entries = std::vector<SafetensorsEntry>;

// The eight bytes of a length, the header, and zeros.
inline std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data_bytes, '\0');
}

inline std::string tensor(const std::string& name, int64_t begin, int64_t end) {
  return str("\"", name, R"(": {"dtype": "F32", "shape": [)", (end - begin) / 4,
             R"(], "data_offsets": [)", begin, ", ", end, "]}");
}

class SafetensorsFolder : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string put(const std::string& name, const std::string& bytes) const {
    return folder_.write(name, bytes);
  }

  const testing::TemporaryFolder folder_;
};

// The message that ends reading; the code is checked, and that it is one line without control
// characters.
template <class F>
std::string message_of(F&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    const std::string message = error.what();
    EXPECT_TRUE(std::ranges::none_of(message, [](char c) { return c >= 0 && c < ' '; })) << message;
    EXPECT_LT(message.size(), 600U);
    return message;
  }
  return "no error";
}

inline std::string message_of_file(const std::string& path) {
  return message_of([&] { SafetensorsReader{path}; });
}

inline std::vector<float> all_of(const SafetensorsReader& reader, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(reader.find(name)->elements()));
  reader.read(name, 0, values);
  return values;
}

}  // namespace tandem

// The JSON in safetensors files and their index, checked: the bytes may be anybody's. Private to
// this folder, its tests and the fuzzer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/safetensors/safetensors.h"

namespace tandem {

inline constexpr int64_t kLargestSafetensorsHeader = 100'000'000;  // bytes; the format's own limit

// Bits of an element; 0 for a type that the format does not have.
int64_t bits_of_safetensors_type(std::string_view dtype);

// A name of a stranger, fit for a message: control characters visible, at most 100 bytes.
std::string shown_name(const std::string& name);

struct SafetensorsPlace {
  SafetensorsEntry entry{};
  int64_t begin = 0;  // bytes [begin, end) of the data, which follow the header
  int64_t end = 0;
};

// The tensors of a header, sorted by name. The data have `data_bytes`. Error kData that begins with
// `path` and names the tensor, unless the header describes each byte of the data exactly once.
std::vector<SafetensorsPlace> parse_safetensors_header(std::string_view header, int64_t data_bytes,
                                                       const std::string& path);

struct SafetensorsMapping {
  std::string tensor{};
  std::string shard{};  // a file's name, without a folder
};

// The weight_map of an index, sorted by tensor. Error kData that begins with `path`.
std::vector<SafetensorsMapping> parse_safetensors_index(std::string_view json,
                                                        const std::string& path);

}  // namespace tandem

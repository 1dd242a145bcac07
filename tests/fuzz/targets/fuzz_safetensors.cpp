// Safetensors and their index: src/io/safetensors/header.cpp src/io/safetensors/reader.cpp
#include <cstring>
#include <vector>

#include "src/io/safetensors/safetensors.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

namespace {

std::string with_length(const std::string& header) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header;
}

std::vector<float> values_of(const SafetensorsReader& reader, const SafetensorsEntry& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  reader.read(tensor.name, 0, values);
  return values;
}

// What is written as F32 reads back with the same bits.
void check_round_trip(const SafetensorsReader& reader) {
  std::vector<SafetensorsEntry> written;
  for (const SafetensorsEntry& tensor : reader.tensors()) {
    if (tensor.dtype == "F32" && tensor.name != "__metadata__") {
      written.push_back(tensor);
    }
  }
  const std::string folder = fuzz::folder().path() + "/copy";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  SafetensorsWriter writer(folder, written, 64);
  for (const SafetensorsEntry& tensor : written) {
    writer.write(values_of(reader, tensor));
  }
  writer.commit();
  const SafetensorsReader copy(folder);
  fuzz::check(copy.tensors() == written, "a copy has the same tensors");
  for (const SafetensorsEntry& tensor : written) {
    const std::vector<float> now = values_of(copy, tensor), then = values_of(reader, tensor);
    fuzz::check(std::memcmp(now.data(), then.data(), now.size() * sizeof(float)) == 0,
                "a copy has the same values");
  }
}

void read(const std::string& path, bool copies) {
  fuzz::accepts(ExitCode::kData, [&] {
    try {
      const SafetensorsReader reader(path);
      const std::string* before = nullptr;
      for (const SafetensorsEntry& tensor : reader.tensors()) {
        fuzz::check(before == nullptr || *before < tensor.name, "names are sorted and unique");
        before = &tensor.name;
        fuzz::check(reader.find(tensor.name) == &tensor, "each tensor is found");
        if (tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16") {
          values_of(reader, tensor);
        }
      }
      if (copies) {
        check_round_trip(reader);
      }
    } catch (const Error& error) {
      for (const char* c = error.what(); *c != '\0'; ++c) {
        fuzz::check(*c < 0 || *c >= ' ', "a message is one line");
      }
      throw;
    }
  });
}

}  // namespace

// After an I, an index of two shards; after an H, a header that has its length, and zeros as data,
// whose number stands in the next two bytes; otherwise a whole file.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input = fuzz::text_of(data, size);
  if (input.starts_with('I')) {
    const std::string one = R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
    const std::string two = R"({"b": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
                                "c": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}})";
    fuzz::folder().write("one", with_length(one) + "data");
    fuzz::folder().write("two", with_length(two) + "data");
    read(fuzz::folder().write("model.safetensors.index.json", input.substr(1)), false);
  } else if (input.starts_with('H') && size >= 3) {
    const size_t count = data[1] + 256U * data[2];
    read(fuzz::folder().write("input", with_length(input.substr(3)) + std::string(count, '\0')),
         size % 8 == 0);
  } else {
    read(fuzz::folder().write("input", input), false);
  }
  return 0;
}

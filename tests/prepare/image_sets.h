// Image datasets as the tests of `tandem prepare images` make and read them.
#pragma once

#include <string>
#include <vector>

#include "src/io/hdf5/hdf5.h"
#include "src/prepare/prepare.h"
#include "tests/data/data_files.h"

namespace tandem::testing {

using Strings = std::vector<std::string>;

inline PrepareImagesOptions options_of(const TemporaryFolder& folder, const std::string& input,
                                       int64_t max_bad = 0) {
  return {.input = input, .output = folder / "out/data.h5", .max_bad = max_bad};
}

inline PrepareReport prepare(const TemporaryFolder& folder, const std::string& input,
                             int64_t max_bad = 0) {
  return prepare_images(options_of(folder, input, max_bad));
}

inline std::vector<uint8_t> pixels_of(const TemporaryFolder& folder, const std::string& split) {
  return H5Reader(folder / "out/data.h5").read_all<uint8_t>("/" + split + "/images");
}

inline std::vector<int32_t> labels_of(const TemporaryFolder& folder, const std::string& split) {
  return H5Reader(folder / "out/data.h5").read_all<int32_t>("/" + split + "/labels");
}

struct NamedFile {
  std::string name, bytes;
};

inline std::string tar_of(const std::vector<NamedFile>& files) {
  std::string tar = tar_entry("./", "", '5');
  for (const NamedFile& file : files) {
    tar += tar_entry("./" + file.name, file.bytes);
  }
  return tar + tar_end();
}

}  // namespace tandem::testing

// A test fixture that saves checkpoints of small tensors in a temporary folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/checkpoint/checkpoint_reader.h"
#include "src/io/file.h"
#include "tests/support/harness.h"
#include "tests/support/temporary_folder.h"

namespace tandem::testing {

namespace fs = std::filesystem;

// The message of the Error(kData) that `body` throws.
template <class F>
std::string data_error(F&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "no error";
}

inline void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(checkpoints_); }

  // Saves a checkpoint of one rank.
  std::string save(int64_t step, std::span<const Slab> slabs, Manifest manifest = {}) {
    const std::string partial = begin_checkpoint(checkpoints_, step);
    manifest.step = step;
    return commit_checkpoint(partial, manifest,
                             {write_rank_file(partial + "/" + rank_file_name(0), slabs)});
  }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(checkpoints_)) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  const TemporaryFolder folder_;
  const std::string& root_ = folder_.path();
  const std::string checkpoints_ = folder_ / "checkpoints";
};

inline Tensor random_values(int64_t n, uint64_t seed) {
  return random_tensor({n}, DType::kF32, seed);
}

// A small model and its optimizer's state: odd sizes, one scalar and one empty tensor.
inline std::vector<Slab> model_slabs() {
  return {{"param/head.weight", Shape{17, 59}, 0, random_values(17 * 59, 1)},
          {"param/head.bias", Shape{17}, 0, random_values(17, 2)},
          {"param/scale", Shape(), 0, random_values(1, 3)},
          {"param/nothing", Shape{0, 5}, 0, random_values(0, 4)},
          {"optim/m/head.weight", Shape{17, 59}, 0, random_values(17 * 59, 5)},
          {"optim/v/head.weight", Shape{17, 59}, 0, random_values(17 * 59, 6)},
          {"stat/norm.running_mean", Shape{3}, 0, random_values(3, 7)}};
}

inline std::vector<Slab> one_slab(uint64_t seed = 1) {
  return {{"param/w", Shape{10}, 0, random_values(10, seed)}};
}

inline std::vector<double> read_all(const TensorSource& reader, const Slab& slab) {
  const Tensor out =
      Tensor::empty(test_memory(), {slab.slice.elements()}, DType::kF32, MemoryClass::kParameters);
  reader.read({slab.name, slab.slice, 0, out});
  return values_of(out);
}

}  // namespace tandem::testing

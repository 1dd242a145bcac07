// Damage of one byte or one word in any place of an HDF5 file: either it is found, in one line, or
// what is read is what was written. Nothing crashes, hangs, or takes much memory.
#include <sys/resource.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "src/data/dataset.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/checkpoint/checkpoint_index.h"
#include "src/io/file.h"
#include "src/prepare/prepare.h"
#include "tests/data/data_files.h"
#include "tests/support/foreign_dataset.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// Everything that training and `inspect` take from a dataset.
std::string read_dataset(const std::string& path) {
  verify_content(inspect_dataset(path), true);
  const auto dataset = open_dataset(path);
  const DatasetInfo& info = dataset->info();
  std::string text = str(info.content_hash, info.train_count, info.val_count, info.tokenizer,
                         info.vocab_size, info.height, vocabulary_hash(path));
  for (const auto* figures : {&info.mean, &info.std}) {
    for (const double figure : *figures) {
      text += str(" ", figure);
    }
  }
  for (const MicroBatch& batch : {dataset->training_batch({.seed = 1, .context = 2}, 0, 3),
                                  dataset->validation_batch(2, 0, 2)}) {
    for (const int32_t token : batch.tokens) {
      text += str(" ", token);
    }
    for (const int32_t target : batch.targets) {
      text += str(" ", target);
    }
    for (const uint8_t pixel : batch.pixels) {
      text += str(" ", +pixel);
    }
  }
  return text;
}

// Changes each byte of a file in four ways, and sets all bits of each word of eight bytes; one
// change at a time. Without TANDEM_DAMAGE=all, only some of the changes are made.
void for_each_damage(const std::string& good,
                     const std::function<void(const std::string&)>& visit) {
  const char* wanted = std::getenv("TANDEM_DAMAGE");
  const int64_t stride = wanted != nullptr && std::string(wanted) == "all" ? 1 : 17;
  int64_t count = 0;
  const auto change = [&](size_t begin, const std::string& bytes) {
    if (count++ % stride == 0 && good.compare(begin, bytes.size(), bytes) != 0) {
      visit(std::string(good).replace(begin, bytes.size(), bytes));
    }
  };
  for (size_t at = 0; at < good.size(); ++at) {
    const auto byte = static_cast<unsigned char>(good[at]);
    for (const int value : {0x00, 0xff, byte + 1, byte ^ 0x10}) {
      change(at, std::string(1, static_cast<char>(value)));
    }
    if (at % 8 == 0) {
      change(at, std::string(std::min<size_t>(8, good.size() - at), '\xff'));
    }
  }
}

// What became of the damaged files.
struct Outcome {
  int64_t refused = 0, read = 0;
};

// What `read` returns for a damaged file that it does not refuse must be what it was before.
Outcome damage(const std::string& path, const std::function<std::string()>& read) {
  const std::string expected = read();
  Outcome outcome;
  for_each_damage(read_bytes(path), [&](const std::string& bad) {
    FileWriter(path, FileWriter::Start::kEmpty).write(bad);
    try {
      EXPECT_EQ(read(), expected);
      ++outcome.read;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      ++outcome.refused;
    }
  });
  EXPECT_GT(outcome.refused, 100);
  return outcome;
}

// Changes of a file with a seal that may pass: those of the mark before the seal's hash, and of the
// number that says where the mark is.
constexpr int64_t kPassing = 5 * (12 + 8);

class DamagedHdf5 : public ::testing::Test {
 protected:
  ~DamagedHdf5() override {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    EXPECT_LT(usage.ru_maxrss, 512 * 1024);  // KiB
#endif
  }
  Outcome damage_dataset() {
    return damage(path_, [&] { return read_dataset(path_); });
  }
  void remove_seal() {
    const std::string bytes = read_bytes(path_);
    folder_.write("a.h5", bytes.substr(0, bytes.rfind("tandem seal ")));
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "a.h5";
};

TEST_F(DamagedHdf5, ForeignDatasets) {
  for (const Hdf5Form form : {Hdf5Form::kEarliest, Hdf5Form::kLatest}) {
    write_foreign_text(path_, form);
    damage_dataset();
    write_foreign_images(path_, form);
    damage_dataset();
  }
}

TEST_F(DamagedHdf5, PreparedText) {
  PrepareTextOptions options;
  options.input = {folder_.write("a.txt", "abracadabra, said the magician.\n")};
  options.output = path_;
  prepare_text(options);
  EXPECT_LT(damage_dataset().read, kPassing);
  remove_seal();
  damage_dataset();
}

TEST_F(DamagedHdf5, PreparedImages) {
  for (const char* name : {"set/cat/a.png", "set/cat/b.png", "set/old dog/c.png"}) {
    folder_.write(name, png_of(test_image(1, 2, 2, name[8])));
  }
  prepare_images({.input = folder_ / "set", .output = path_, .val_fraction = 0.4});
  EXPECT_LT(damage_dataset().read, kPassing);
  remove_seal();
  damage_dataset();
}

// The hashes of pieces find damage of their values.
TEST_F(DamagedHdf5, RankFiles) {
  const Slice top(Shape{4, 3}, Shape{0, 0}, Shape{2, 3});
  const std::vector<Slab> slabs = {{"param/w", top, 1, random_tensor({4}, DType::kF32, 1)},
                                   {"param/scale", Shape(), 0, random_tensor({1}, DType::kF32, 2)},
                                   {"optim/m/w", Shape{12}, 5, random_tensor({7}, DType::kF32, 3)}};
  const FileEntry entry = write_rank_file(path_, slabs);
  int64_t values = 0;
  for (const Range& piece : entry.pieces) {
    values += piece.count();
  }
  const Outcome outcome = damage(path_, [&] { return CheckpointIndex{pieces_in(path_)}.text(); });
  EXPECT_LT(outcome.read, kPassing + 5 * values);
}

}  // namespace
}  // namespace tandem::testing

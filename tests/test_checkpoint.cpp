#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "src/core/error.h"
#include "src/io/checkpoint.h"
#include "src/io/file.h"
#include "tests/harness.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;

// Files may not grow beyond `bytes` while one of these lives: the write fails as on a full disk.
class DiskLimit {
 public:
  explicit DiskLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~DiskLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

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

void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "tandem-checkpoint-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    checkpoints_ = root_ + "/checkpoints";
  }
  void TearDown() override { fs::remove_all(root_); }

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

  std::string root_, checkpoints_;
};

Tensor random_values(int64_t n, uint64_t seed) { return random_tensor({n}, DType::kF32, seed); }

// A small model and its optimizer's state. Sizes are odd, one tensor is a scalar and one is empty.
std::vector<Slab> model_slabs() {
  return {{"param/head.weight", {17, 59}, 0, random_values(17 * 59, 1)},
          {"param/head.bias", {17}, 0, random_values(17, 2)},
          {"param/scale", Shape(), 0, random_values(1, 3)},
          {"param/nothing", {0, 5}, 0, random_values(0, 4)},
          {"optim/m/head.weight", {17, 59}, 0, random_values(17 * 59, 5)},
          {"optim/v/head.weight", {17, 59}, 0, random_values(17 * 59, 6)},
          {"stat/norm.running_mean", {3}, 0, random_values(3, 7)}};
}

std::vector<Slab> one_slab(uint64_t seed = 1) {
  return {{"param/w", {10}, 0, random_values(10, seed)}};
}

std::vector<double> read_all(const CheckpointReader& reader, const Slab& slab) {
  const Tensor out =
      Tensor::empty(test_memory(), {slab.shape.elements()}, DType::kF32, MemoryClass::kParameters);
  reader.read(slab.name, slab.shape, 0, out);
  return values_of(out);
}

TEST_F(Checkpoint, Names) {
  EXPECT_EQ(step_name(100), "step-00000100");
  EXPECT_EQ(step_name(1'234'567'890), "step-1234567890");
  EXPECT_EQ(rank_file_name(0), "rank-0000.h5");
  EXPECT_EQ(rank_file_name(12345), "rank-12345.h5");
}

TEST_F(Checkpoint, GivesBackEveryBit) {
  const std::vector<Slab> slabs = model_slabs();
  const CheckpointReader reader(save(100, slabs), Verify::kHashes);
  for (const Slab& slab : slabs) {
    EXPECT_EQ(read_all(reader, slab), values_of(slab.data)) << slab.name;
    EXPECT_TRUE(reader.contains(slab.name));
  }
  const std::vector<CheckpointReader::Entry> tensors = reader.tensors();
  ASSERT_EQ(tensors.size(), slabs.size());
  EXPECT_EQ(tensors[0].name, "optim/m/head.weight");
  EXPECT_EQ(tensors[0].shape, (Shape{17, 59}));
  EXPECT_EQ(tensors[0].elements, 17 * 59);
  EXPECT_FALSE(reader.contains("param/other"));
}

// What other HDF5 tools find in a file.
TEST_F(Checkpoint, LayoutOfAFile) {
  const std::vector<Slab> slabs = {{"optim/m/a.b", {4, 5}, 6, random_values(9, 1)}};
  const H5Reader file(save(1, slabs) + "/rank-0000.h5");
  const H5Dataset dataset = file.dataset("/optim/m/a.b");
  EXPECT_EQ(dataset.type, H5Type::kF32);
  EXPECT_EQ(dataset.shape, std::vector<int64_t>{9});
  EXPECT_EQ(file.int_attribute("/optim/m/a.b", "shape"), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(file.int_attribute("/optim/m/a.b", "offset"), std::vector<int64_t>{6});
  EXPECT_EQ(file.int_attribute("/optim/m/a.b", "count"), std::vector<int64_t>{9});
}

// All tensors one after another, cut into `ranks` parts of equal size as ZeRO does: boundaries fall
// inside tensors, and some ranks have several tensors.
std::vector<std::vector<Slab>> cut(const std::vector<Slab>& slabs, int64_t ranks) {
  int64_t total = 0;
  for (const Slab& slab : slabs) {
    total += slab.data.elements();
  }
  const int64_t part = (total + ranks - 1) / ranks;
  std::vector<std::vector<Slab>> parts(static_cast<size_t>(ranks));
  int64_t start = 0;
  for (const Slab& slab : slabs) {
    const int64_t end = start + slab.data.elements();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t first = std::max(start, rank * part);
      const int64_t last = std::min(end, (rank + 1) * part);
      if (first < last) {
        parts[rank].push_back(
            {slab.name, slab.shape, first - start, slab.data.slice(first - start, last - first)});
      }
    }
    start = end;
  }
  return parts;
}

TEST_F(Checkpoint, ReadsAtAnyNumberOfRanks) {
  std::vector<Slab> slabs = model_slabs();
  std::erase_if(slabs, [](const Slab& slab) { return slab.data.elements() == 0; });
  for (const int writers : {1, 2, 3, 4, 7}) {
    const std::string partial = begin_checkpoint(checkpoints_, writers);
    std::vector<FileEntry> entries;
    for (const std::vector<Slab>& part : cut(slabs, writers)) {
      const int rank = static_cast<int>(entries.size());
      // As one line of text, the way ranks send them.
      entries.push_back(
          FileEntry::from_text(write_rank_file(partial + "/" + rank_file_name(rank), part).text()));
    }
    Manifest manifest;
    manifest.world_size = writers;
    const CheckpointReader reader(commit_checkpoint(partial, manifest, entries), Verify::kHashes);
    for (const int readers : {1, 2, 3, 5}) {
      for (const std::vector<Slab>& part : cut(slabs, readers)) {
        for (const Slab& slab : part) {
          const Tensor out = Tensor::zeros(test_memory(), {slab.data.elements()}, DType::kF32,
                                           MemoryClass::kParameters);
          reader.read(slab.name, slab.shape, slab.offset, out);
          ASSERT_EQ(values_of(out), values_of(slab.data))
              << slab.name << ", " << writers << " to " << readers << " ranks";
        }
      }
    }
  }
}

TEST_F(Checkpoint, SeveralPiecesInOneFile) {
  const Tensor all = random_values(10, 1);
  const std::vector<Slab> slabs = {{"param/w", {10}, 7, all.slice(7, 3)},
                                   {"param/w", {10}, 0, all.slice(0, 4)},
                                   {"param/w", {10}, 4, all.slice(4, 3)}};
  const CheckpointReader reader(save(1, slabs));
  EXPECT_EQ(reader.tensors().size(), 1U);
  EXPECT_EQ(read_all(reader, {"param/w", {10}, 0, {}}), values_of(all));
}

TEST_F(Checkpoint, ReadNamesWhatDoesNotFit) {
  const CheckpointReader reader(save(1, model_slabs()));
  const Tensor out = Tensor::empty(test_memory(), {1}, DType::kF32, MemoryClass::kParameters);
  expect_mentions(data_error([&] {
                    reader.read("param/head.weight", {59, 17}, 0, out);
                  }),
                  {"param/head.weight", "[17, 59]", "[59, 17]"});
  expect_mentions(data_error([&] { reader.read("param/tail.weight", {3}, 0, out); }),
                  {"param/tail.weight", "[3]", "step-00000001"});
}

TEST_F(Checkpoint, MissingAndDoubleElementsAreFound) {
  const Tensor all = random_values(10, 1);
  const std::vector<Slab> gap = {{"param/w", {10}, 0, all.slice(0, 4)},
                                 {"param/w", {10}, 5, all.slice(5, 5)}};
  const CheckpointReader reader(save(1, gap));
  EXPECT_EQ(reader.tensors()[0].elements, 9);
  const Tensor out = Tensor::empty(test_memory(), {10}, DType::kF32, MemoryClass::kParameters);
  expect_mentions(data_error([&] { reader.read("param/w", {10}, 0, out); }),
                  {"element 4 of param/w [10]"});
  reader.read("param/w", {10}, 5, out.slice(0, 5));
  EXPECT_EQ(values_of(out.slice(0, 5)), values_of(all.slice(5, 5)));

  const std::vector<Slab> twice = {{"param/w", {10}, 0, all.slice(0, 6)},
                                   {"param/w", {10}, 5, all.slice(5, 5)}};
  const std::string path = save(2, twice);
  expect_mentions(data_error([&] { CheckpointReader again(path); }), {"element 5 of param/w"});
}

TEST_F(Checkpoint, WriterRefusesNamesOutsideTheLayout) {
  for (const std::string name : {"w", "param/", "param/a/b", "optim/m", "weights/w", "param/a@1"}) {
    const std::vector<Slab> slabs = {{name, {1}, 0, random_values(1, 1)}};
    EXPECT_THROW(write_rank_file(root_ + "/x.h5", slabs), Error) << name;
  }
  const std::vector<Slab> outside = {{"param/w", {4}, 2, random_values(3, 1)}};
  EXPECT_THROW(write_rank_file(root_ + "/x.h5", outside), Error);
}

TEST_F(Checkpoint, ManifestErrorsSayWhatIsWrong) {
  const std::string path = save(1, one_slab());
  const std::string manifest_path = path + "/manifest.json";
  const std::string text = read_file(manifest_path);
  const auto error_with = [&](const std::string& content) {
    FileWriter(manifest_path, FileWriter::Start::kEmpty).write(content);
    return data_error([&] { read_manifest(path); });
  };
  expect_mentions(error_with(""), {"manifest.json", "damaged"});
  expect_mentions(error_with(text.substr(0, text.size() / 2)), {"manifest.json", "damaged"});
  expect_mentions(error_with("[1, 2]"), {"manifest.json", "damaged"});
  expect_mentions(error_with(R"({"format": "else"})"), {"not the manifest of a checkpoint"});
  std::string other = text;
  other.replace(other.find("\"format_version\": 1"), 19, "\"format_version\": 2");
  expect_mentions(error_with(other), {"version 2", "version 1"});
  other = text;
  other.replace(other.find("\"step\": 1"), 9, "\"step\": 2");
  expect_mentions(error_with(other), {"damaged", "hash"});
  fs::remove(manifest_path);
  expect_mentions(data_error([&] { read_manifest(path); }), {path, "no manifest.json"});
  expect_mentions(data_error([&] { read_manifest(root_ + "/nowhere"); }),
                  {"nowhere", "no such checkpoint"});
}

TEST_F(Checkpoint, FileErrorsNameTheFile) {
  const std::string path = save(1, one_slab());
  const std::string file = path + "/rank-0000.h5";
  const std::string content = read_file(file);

  // The last byte belongs to the elements or to HDF5; the hash covers both.
  std::string flipped = content;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  FileWriter(file, FileWriter::Start::kEmpty).write(flipped);
  read_manifest(path, Verify::kLengths);
  expect_mentions(data_error([&] { read_manifest(path, Verify::kHashes); }), {file, "damaged"});

  FileWriter(file, FileWriter::Start::kEmpty).write(content.substr(1));
  expect_mentions(data_error([&] { CheckpointReader reader(path); }),
                  {file, std::to_string(content.size())});
  fs::remove(file);
  expect_mentions(data_error([&] { CheckpointReader reader(path); }), {file, "missing"});
}

TEST_F(Checkpoint, IsInvisibleUntilItIsCommitted) {
  const std::string partial = begin_checkpoint(checkpoints_, 5);
  write_rank_file(partial + "/rank-0000.h5", one_slab());
  EXPECT_TRUE(list_checkpoints(checkpoints_).empty());
  EXPECT_EQ(find_latest(checkpoints_).path, "");
  abandon_checkpoint(partial);
  EXPECT_TRUE(names().empty());

  begin_checkpoint(checkpoints_, 6);  // a job that died here
  save(7, one_slab());
  EXPECT_EQ(names(), std::vector<std::string>{"step-00000007"});
}

TEST_F(Checkpoint, SavingAStepAgainReplacesIt) {
  save(5, one_slab(1));
  const std::vector<Slab> slabs = one_slab(2);
  const CheckpointReader reader(save(5, slabs), Verify::kHashes);
  EXPECT_EQ(read_all(reader, slabs[0]), values_of(slabs[0].data));
  EXPECT_EQ(names(), std::vector<std::string>{"step-00000005"});
}

TEST_F(Checkpoint, CommitWantsEveryFile) {
  const std::string partial = begin_checkpoint(checkpoints_, 5);
  const FileEntry entry = write_rank_file(partial + "/rank-0000.h5", one_slab());
  Manifest manifest;
  manifest.world_size = 2;
  EXPECT_THROW(commit_checkpoint(partial, manifest, {entry}), Error);
  const FileEntry elsewhere{"rank-0001.h5", 5, std::string(32, '0')};
  expect_mentions(data_error([&] {
                    commit_checkpoint(partial, manifest, {entry, elsewhere});
                  }),
                  {"rank-0001.h5", "share"});
  EXPECT_EQ(names(), std::vector<std::string>{"step-00000005.partial"});
}

TEST_F(Checkpoint, LatestWalksBackToAWholeOne) {
  EXPECT_EQ(find_latest(checkpoints_).path, "");
  const std::string first = save(100, one_slab());
  const std::string second = save(200, one_slab());
  const std::string third = save(1'000'000'000, one_slab());  // sorted as a number, not as text
  fs::create_directory(checkpoints_ + "/step-backup");
  EXPECT_EQ(find_latest(checkpoints_).path, third);
  fs::remove(third + "/rank-0000.h5");
  fs::resize_file(second + "/manifest.json", 20);
  const LatestCheckpoint latest = find_latest(checkpoints_);
  EXPECT_EQ(latest.path, first);
  ASSERT_EQ(latest.skipped.size(), 2U);
  expect_mentions(latest.skipped[0], {third, "missing"});
  expect_mentions(latest.skipped[1], {second, "damaged"});
}

TEST_F(Checkpoint, KeepsTheNewestAndTheBest) {
  const std::vector<Slab> good = one_slab(3);
  keep_as_best(checkpoints_, save(1, one_slab(1)));
  keep_as_best(checkpoints_, save(2, good));
  for (const int64_t step : {3, 4, 5}) {
    save(step, one_slab(static_cast<uint64_t>(step)));
  }
  keep_newest(checkpoints_, 0, 5);
  EXPECT_EQ(names().size(), 6U);
  keep_newest(checkpoints_, 2, 4);  // a later one is of another course of the run
  EXPECT_EQ(names(),
            (std::vector<std::string>{"best", "step-00000003", "step-00000004", "step-00000005"}));
  keep_newest(checkpoints_, 1, 5);
  EXPECT_EQ(names(), (std::vector<std::string>{"best", "step-00000005"}));
  const CheckpointReader best(checkpoints_ + "/best", Verify::kHashes);
  EXPECT_EQ(best.manifest().step, 2);
  EXPECT_EQ(read_all(best, good[0]), values_of(good[0].data));
}

TEST_F(Checkpoint, GoingOnFromAnOlderOneSetsTheLaterAside) {
  const std::string second = save(2, one_slab());
  save(3, one_slab());
  save(4, one_slab());
  discard_after(checkpoints_, 2);
  EXPECT_EQ(find_latest(checkpoints_).path, second);
  EXPECT_EQ(names(), (std::vector<std::string>{"discarded-step-00000003", "discarded-step-00000004",
                                               "step-00000002"}));
  save(4, one_slab());
  discard_after(checkpoints_, 2);
  EXPECT_EQ(names().size(), 3U);
}

TEST_F(Checkpoint, FullDiskLeavesTheOldOnes) {
  const std::vector<Slab> slabs = one_slab(1);
  const std::string old = save(5, slabs);
  const std::string partial = begin_checkpoint(checkpoints_, 5);
  const std::string file = partial + "/rank-0000.h5";
  {
    const DiskLimit limit(100'000);
    const std::vector<Slab> large = {{"param/w", {1'000'000}, 0, random_values(1'000'000, 1)}};
    expect_mentions(data_error([&] { write_rank_file(file, large); }), {file, "space"});
  }
  EXPECT_TRUE(fs::is_empty(partial));
  const FileEntry entry = write_rank_file(file, one_slab(2));
  {
    const DiskLimit limit(100);  // less than a manifest
    expect_mentions(data_error([&] { commit_checkpoint(partial, {}, {entry}); }),
                    {"manifest.json", "disk full"});
  }
  abandon_checkpoint(partial);
  EXPECT_EQ(names(), std::vector<std::string>{"step-00000005"});
  EXPECT_EQ(read_all(CheckpointReader(old, Verify::kHashes), slabs[0]), values_of(slabs[0].data));
}

// A file where a directory should be stops even a superuser.
TEST_F(Checkpoint, UnwritablePlaceIsNamed) {
  FileWriter(checkpoints_, FileWriter::Start::kEmpty).write("a file");
  expect_mentions(data_error([&] { begin_checkpoint(checkpoints_, 1); }), {checkpoints_});
  expect_mentions(data_error([&] { list_checkpoints(checkpoints_); }), {checkpoints_});
  expect_mentions(data_error([&] { write_rank_file(checkpoints_ + "/rank-0000.h5", one_slab()); }),
                  {checkpoints_ + "/rank-0000.h5"});
}

}  // namespace
}  // namespace tandem::testing

// What a power failure would leave of a checkpoint. A rename may publish only what is already on
// the disk, and is durable once its folder is synced. So these tests record the order of system
// calls. tests/train/test_crash_states.cpp builds what the disk may hold after each.
#include <filesystem>
#include <numeric>

#include "src/core/error.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/file.h"
#include "src/io/file_lock.h"
#include "src/io/hdf5/hdf5.h"
#include "src/io/safetensors/safetensors.h"
#include "src/report/writers/metrics_log.h"
#include "tests/support/file_calls.h"
#include "tests/support/harness.h"
#include "tests/support/temporary_folder.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;
using Calls = std::vector<std::string>;

class Durability : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(root_ + "/c");
    record_file_calls(root_);
  }
  void TearDown() override {
    record_file_calls("");
    refuse_folder_renames(false);
    refuse_links(false);
    limit_calls(SIZE_MAX);
  }

  // What was written, synced and renamed since the last call, with paths relative to the root.
  // Consecutive writes to a file are one.
  Calls taken() const {
    const std::map<FileCall::Kind, std::string> verbs = {{FileCall::Kind::kWrite, "write"},
                                                         {FileCall::Kind::kSync, "sync"},
                                                         {FileCall::Kind::kRename, "rename"},
                                                         {FileCall::Kind::kExchange, "exchange"}};
    Calls texts;
    for (const FileCall& call : take_file_calls()) {
      if (!verbs.contains(call.kind)) {
        continue;
      }
      std::string text = verbs.at(call.kind) + " " + call.path;
      for (size_t at = 0; (at = text.find(root_ + "/")) != std::string::npos;) {
        text.erase(at, root_.size() + 1);
      }
      if (texts.empty() || texts.back() != text || call.kind != FileCall::Kind::kWrite) {
        texts.push_back(text);
      }
    }
    return texts;
  }

  std::string save(int64_t step) {
    const std::string partial = begin_checkpoint(root_ + "/c", step);
    const Slab slab{"param/w", Shape{10}, 0, random_tensor({10}, DType::kF32, 1)};
    Manifest manifest;
    manifest.step = step;
    return commit_checkpoint(partial, manifest,
                             {write_rank_file(partial + "/rank-0000.h5", {&slab, 1})});
  }

  const TemporaryFolder folder_;
  const std::string root_ = fs::canonical(folder_.path());
};

TEST_F(Durability, ACheckpointIsOnTheDiskBeforeItGetsItsName) {
  save(1);
  EXPECT_EQ(taken(), (Calls{"write c/step-00000001.partial/rank-0000.h5.partial",
                            "sync c/step-00000001.partial/rank-0000.h5.partial",
                            "rename c/step-00000001.partial/rank-0000.h5.partial "
                            "c/step-00000001.partial/rank-0000.h5",
                            "sync c/step-00000001.partial",  //
                            "write c/step-00000001.partial/manifest.json.partial",
                            "sync c/step-00000001.partial/manifest.json.partial",
                            "rename c/step-00000001.partial/manifest.json.partial "
                            "c/step-00000001.partial/manifest.json",
                            "sync c/step-00000001.partial",
                            "rename c/step-00000001.partial c/step-00000001",  //
                            "sync c"}));
}

TEST_F(Durability, AReplacedCheckpointGoesWhenTheNewOneIsOnTheDisk) {
  save(1);
  taken();
  save(1);
  Calls calls = taken();
  ASSERT_GE(calls.size(), 3U);
  EXPECT_EQ(Calls(calls.end() - 3, calls.end()),
            (Calls{"sync c/step-00000001.partial",
                   "exchange c/step-00000001.partial c/step-00000001",  //
                   "sync c"}));
}

TEST_F(Durability, TheBestIsOnTheDiskBeforeItGetsItsName) {
  const std::string path = save(1);
  taken();
  keep_as_best(root_ + "/c", path);  // only hard links: no bytes are written
  EXPECT_EQ(taken(), (Calls{"sync c/best.partial", "rename c/best.partial c/best",  //
                            "sync c"}));
}

TEST_F(Durability, WithoutLinksTheBestIsACopyOnTheDisk) {
  const std::string path = save(1);
  taken();
  refuse_links(true);
  keep_as_best(root_ + "/c", path);
  const Calls calls = taken();
  for (const std::string name : {"manifest.json", "rank-0000.h5"}) {
    EXPECT_EQ(std::ranges::count(calls, "sync c/best.partial/" + name), 1);
    EXPECT_TRUE(read_file(root_ + "/c/best/" + name) == read_file(path + "/" + name));
  }
}

TEST_F(Durability, ShardsAreOnTheDiskBeforeTheyGetTheirNames) {
  SafetensorsWriter writer(root_ + "/c", {{"a", "F32", {30}}, {"b", "F32", {30}}}, 120);
  writer.write(std::vector<float>(60, 1.0f));
  writer.commit();
  const std::string one = "c/model-00001-of-00002.safetensors",
                    two = "c/model-00002-of-00002.safetensors",
                    index = "c/model.safetensors.index.json", end = ".partial";
  EXPECT_EQ(taken(), (Calls{"write " + one + end, "sync " + one + end,  //
                            "write " + two + end, "sync " + two + end,  //
                            "rename " + one + end + " " + one, "rename " + two + end + " " + two,
                            "write " + index + end, "sync " + index + end,
                            "rename " + index + end + " " + index, "sync c", "sync c"}));
}

TEST_F(Durability, DiscardedLinesAreOnTheDiskBeforeTheLogLosesThem) {
  FileWriter(root_ + "/m.jsonl", FileWriter::Start::kEmpty).write("{\"step\":1}\n{\"step\":2}\n");
  taken();
  truncate_after(root_ + "/m.jsonl", 1, true);
  EXPECT_EQ(taken(), (Calls{"write m.discarded.jsonl", "sync m.discarded.jsonl", "sync " + root_,
                            "write m.jsonl.partial", "sync m.jsonl.partial",
                            "rename m.jsonl.partial m.jsonl", "sync " + root_}));
}

TEST_F(Durability, ADatasetIsOnTheDiskBeforeItGetsItsName) {
  H5Writer file(root_ + "/d.h5");
  file.write_all<float>("/values", std::vector<float>(1000, 1.0f));
  file.commit();
  EXPECT_EQ(taken(), (Calls{"write d.h5.partial", "sync d.h5.partial", "rename d.h5.partial d.h5",
                            "sync " + root_}));
}

TEST_F(Durability, WithoutRenamesOfDirectoriesTheManifestComesLast) {
  refuse_folder_renames(true);
  const std::string path = save(1), from = "rename c/step-00000001.partial/",
                    to = " c/step-00000001/";
  const Calls calls = taken();
  const Calls synced = {"sync c/step-00000001", "sync c/step-00000001.partial"};
  ASSERT_GE(calls.size(), 8U);
  EXPECT_EQ(Calls(calls.end() - 8, calls.end()),
            (Calls{"sync c", from + "rank-0000.h5" + to + "rank-0000.h5", synced[0], synced[1],
                   from + "manifest.json" + to + "manifest.json", synced[0], synced[1], "sync c"}));
  for (int time = 0; time < 2; ++time) {
    keep_as_best(root_ + "/c", path);
    EXPECT_EQ(read_manifest(root_ + "/c/best").step, 1);
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_ + "/c")) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  EXPECT_EQ(names, (Calls{"best", "step-00000001"}));
}

TEST_F(Durability, AFileIsReplacedInOneStep) {
  replace_file(root_ + "/f", "text");
  EXPECT_EQ(taken(),
            (Calls{"write f.partial", "sync f.partial", "rename f.partial f", "sync " + root_}));
}

// Linux itself moves at most 0x7ffff000 bytes in a call.
TEST_F(Durability, ShortWritesAndReadsGoOn) {
  std::string text(5000, '\0'), again(5000, '\0');
  std::iota(text.begin(), text.end(), '\0');  // of period 256, which 999 is no multiple of
  limit_calls(999);
  FileWriter(root_ + "/f", FileWriter::Start::kEmpty).write(text);
  FileReader(root_ + "/f").read(0, 5000, again.data());
  EXPECT_TRUE(read_file(root_ + "/f") == text);
  EXPECT_TRUE(again == text);
}

TEST_F(Durability, ANewDirectoryIsOnTheDisk) {
  make_directories(root_ + "/a/b");
  EXPECT_EQ(taken(), (Calls{"sync " + root_, "sync a"}));
  make_directories(root_ + "/a/b");
  EXPECT_EQ(taken(), Calls());
}

TEST(FileLock, OfAnotherHostMayGoByItself) {
  const TemporaryFolder folder;
  const std::string path = folder / "lock";
  const FileLock held(path, "run a");
  const auto code = [&] {
    try {
      const FileLock second(path, "run a", AT_FDCWD, std::chrono::milliseconds(0));
      return ExitCode::kOk;
    } catch (const Error& error) {
      return error.code();
    }
  };
  EXPECT_EQ(code(), ExitCode::kConfig);
  FileWriter(path, FileWriter::Start::kEmpty).write("process 7 on elsewhere since 2026");
  EXPECT_EQ(code(), ExitCode::kTemporary);
}

}  // namespace
}  // namespace tandem::testing

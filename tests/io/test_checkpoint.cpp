#include <sys/resource.h>

#include <csignal>

#include "tests/io/checkpoint_folder.h"

namespace tandem::testing {
namespace {

// While this object lives, files cannot grow beyond `bytes`: writing fails as on a full disk.
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

TEST_F(Checkpoint, Names) {
  EXPECT_EQ(step_name(100), "step-00000100");
  EXPECT_EQ(step_name(1'234'567'890), "step-1234567890");
  EXPECT_EQ(rank_file_name(0), "rank-0000.h5");
  EXPECT_EQ(rank_file_name(12345), "rank-12345.h5");
}

TEST_F(Checkpoint, WriterRefusesNamesOutsideTheLayout) {
  for (const std::string name : {"w", "param/", "param/a/b", "optim/m", "weights/w", "param/a@1"}) {
    const std::vector<Slab> slabs = {{name, Shape{1}, 0, random_values(1, 1)}};
    EXPECT_THROW(write_rank_file(root_ + "/x.h5", slabs), Error) << name;
  }
  const std::vector<Slab> outside = {{"param/w", Shape{4}, 2, random_values(3, 1)}};
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
  // Those of large models have more than 16 MiB.
  FileWriter(manifest_path, FileWriter::Start::kEmpty).write(text + std::string(16 << 20, ' '));
  EXPECT_EQ(read_manifest(path), manifest_from_json(text, manifest_path));
  std::string other = text;
  other.replace(other.find("\"format_version\": 3"), 19, "\"format_version\": 4");
  expect_mentions(error_with(other), {"version 4", "reads versions 2 and 3"});
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

  begin_checkpoint(checkpoints_, 6);  // the job died here
  save(7, one_slab());
  EXPECT_EQ(names(), std::vector<std::string>{"step-00000007"});
}

TEST_F(Checkpoint, SavingAStepAgainReplacesIt) {
  save(5, one_slab(1));
  const std::vector<Slab> slabs = one_slab(2);
  const CheckpointReader reader(save(5, slabs));
  EXPECT_EQ(read_all(reader, slabs[0]), values_of(slabs[0].data));
  EXPECT_EQ(names(), std::vector<std::string>{"step-00000005"});
}

TEST_F(Checkpoint, CommitWantsEveryFile) {
  const std::string partial = begin_checkpoint(checkpoints_, 5);
  const FileEntry entry = write_rank_file(partial + "/rank-0000.h5", one_slab());
  Manifest manifest;
  manifest.world_size = 2;
  EXPECT_THROW(commit_checkpoint(partial, manifest, {entry}), Error);
  const FileEntry elsewhere{"rank-0001.h5", 5, {}, std::string(32, '0')};
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
  keep_newest(checkpoints_, 0, 0, 5);
  EXPECT_EQ(names().size(), 6U);
  keep_newest(checkpoints_, 2, 0, 4);  // checkpoints after step 4 are of an abandoned continuation
  EXPECT_EQ(names(),
            (std::vector<std::string>{"best", "step-00000003", "step-00000004", "step-00000005"}));
  keep_newest(checkpoints_, 1, 0, 5);
  EXPECT_EQ(names(), (std::vector<std::string>{"best", "step-00000005"}));
  const CheckpointReader best(checkpoints_ + "/best");
  EXPECT_EQ(best.manifest().step, 2);
  EXPECT_EQ(read_all(best, good[0]), values_of(good[0].data));
}

TEST_F(Checkpoint, KeepsMilestonesBesideTheNewest) {
  const std::vector<Slab> slabs = one_slab(1);
  for (int64_t step = 0; step <= 9; ++step) {
    save(step, slabs);
  }
  keep_newest(checkpoints_, 2, 3, 8);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000000", "step-00000003", "step-00000006",
                                               "step-00000007", "step-00000008", "step-00000009"}));
  keep_newest(checkpoints_, 1, 3, 9);  // the newest of those that are no milestones
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000000", "step-00000003", "step-00000006",
                                               "step-00000008", "step-00000009"}));
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

TEST_F(Checkpoint, GoingOnFromAnOlderOneSetsALaterBestAside) {
  const auto save_with = [&](int64_t step, std::optional<double> loss) {
    const std::string partial = begin_checkpoint(checkpoints_, step);
    Manifest manifest;
    manifest.step = step;
    manifest.validation_loss = loss;
    return commit_checkpoint(partial, manifest,
                             {write_rank_file(partial + "/rank-0000.h5", one_slab())});
  };
  save_with(1, 3.0);
  save_with(2, 4.0);
  save_with(3, std::nullopt);
  keep_as_best(checkpoints_, save_with(4, 2.0));
  discard_after(checkpoints_, 4);
  EXPECT_EQ(read_manifest(checkpoints_ + "/best").step, 4);
  discard_after(checkpoints_, 3);
  EXPECT_EQ(read_manifest(checkpoints_ + "/best").step, 1);
  EXPECT_EQ(read_manifest(checkpoints_ + "/discarded-best").step, 4);
}

TEST_F(Checkpoint, FullDiskLeavesTheOldOnes) {
  const std::vector<Slab> slabs = one_slab(1);
  const std::string old = save(5, slabs);
  const std::string partial = begin_checkpoint(checkpoints_, 5);
  const std::string file = partial + "/rank-0000.h5";
  {
    const DiskLimit limit(100'000);
    const std::vector<Slab> large = {{"param/w", Shape{1'000'000}, 0, random_values(1'000'000, 1)}};
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
  EXPECT_EQ(read_all(CheckpointReader(old), slabs[0]), values_of(slabs[0].data));
}

// Even a superuser cannot write when a file has the place of a directory.
TEST_F(Checkpoint, UnwritablePlaceIsNamed) {
  fs::remove(checkpoints_);
  FileWriter(checkpoints_, FileWriter::Start::kEmpty).write("a file");
  expect_mentions(data_error([&] { begin_checkpoint(checkpoints_, 1); }), {checkpoints_});
  expect_mentions(data_error([&] { list_checkpoints(checkpoints_); }), {checkpoints_});
  expect_mentions(data_error([&] { write_rank_file(checkpoints_ + "/rank-0000.h5", one_slab()); }),
                  {checkpoints_ + "/rank-0000.h5"});
}

}  // namespace
}  // namespace tandem::testing

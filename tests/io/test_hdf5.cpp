#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <thread>

#include "src/io/content_hash.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;

std::vector<int64_t> counting(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), int64_t{0});
  return values;
}

// A file of one dataset of `count` 64-bit numbers.
std::string write_counting(const TemporaryFolder& folder, int64_t count) {
  const std::string path = folder / "counting.h5";
  H5Writer file(path);
  file.write_all<int64_t>("/group/numbers", counting(count));
  file.commit();
  return path;
}

template <class T>
void round_trip(const std::string& path) {
  const std::vector<T> values = {T(0), T(1), T(2), T(200)};
  H5Writer writer(path);
  writer.create_dataset("/param/block.0.attn.qkv.weight", h5_type_of<T>, {2, 2});
  // In two pieces, the second first.
  writer.write<T>("/param/block.0.attn.qkv.weight", 3, std::span(values).subspan(3));
  writer.write<T>("/param/block.0.attn.qkv.weight", 0, std::span(values).first(3));
  writer.commit();

  const H5Reader reader(path);
  const H5Dataset dataset = reader.dataset("/param/block.0.attn.qkv.weight");
  EXPECT_EQ(dataset.type, h5_type_of<T>);
  EXPECT_EQ(dataset.shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(reader.read_all<T>("/param/block.0.attn.qkv.weight"), values);
  std::vector<T> middle(2);
  reader.read(dataset, 1, std::span<T>(middle));
  EXPECT_EQ(middle, (std::vector<T>{T(1), T(2)}));
}

TEST(Hdf5, EveryTypeComesBackAsWritten) {
  const TemporaryFolder folder;
  round_trip<uint8_t>(folder / "a.h5");
  round_trip<uint16_t>(folder / "a.h5");
  round_trip<uint32_t>(folder / "a.h5");
  round_trip<int32_t>(folder / "a.h5");
  round_trip<int64_t>(folder / "a.h5");
  round_trip<float>(folder / "a.h5");
  round_trip<double>(folder / "a.h5");
}

TEST(Hdf5, AttributesComeBackAsWritten) {
  const TemporaryFolder folder;
  const std::string long_text(60000, 'x');
  {
    H5Writer file(folder / "a.h5");
    file.create_group("/deep/group");
    file.write_all<float>("/deep/empty", {});
    file.set_attribute("/", "text", std::string("caf\303\251"));
    file.set_attribute("/", "long", long_text);
    file.set_attribute("/", "nothing", std::string());
    file.set_attribute("/deep/group", "shape", std::vector<int64_t>{-1, 1LL << 40});
    file.set_attribute("/deep/group", "none", std::vector<int64_t>{});
    file.set_attribute("/deep/empty", "mean", std::vector<double>{0.1, -2.5});
    file.commit();
  }
  const H5Reader file(folder / "a.h5");
  EXPECT_EQ(file.string_attribute("/", "text"), "caf\303\251");
  EXPECT_EQ(file.string_attribute("/", "long"), long_text);
  EXPECT_EQ(file.string_attribute("/", "nothing"), "");
  EXPECT_EQ(file.int_attribute("/deep/group", "shape"), (std::vector<int64_t>{-1, 1LL << 40}));
  EXPECT_EQ(file.int_attribute("/deep/group", "none"), std::vector<int64_t>{});
  EXPECT_EQ(file.double_attribute("/deep/empty", "mean"), (std::vector<double>{0.1, -2.5}));
  EXPECT_EQ(file.dataset("/deep/empty").count, 0);
  EXPECT_EQ(file.children("/deep"), (std::vector<std::string>{"empty", "group"}));
  EXPECT_TRUE(file.exists("/deep/group"));
  EXPECT_TRUE(file.exists("/"));
  EXPECT_FALSE(file.exists("/deep/other/group"));
  EXPECT_TRUE(file.has_attribute("/", "text"));
  EXPECT_FALSE(file.has_attribute("/", "shape"));
  EXPECT_FALSE(file.has_attribute("/absent", "shape"));
  expect_error(ExitCode::kData, {"a.h5: / has no integer attribute text"},
               [&] { file.int_attribute("/", "text"); });
  expect_error(ExitCode::kData, {"a.h5: / has no text attribute other"},
               [&] { file.string_attribute("/", "other"); });
  H5Writer too_long(folder / "a.h5");
  expect_error(ExitCode::kData, {"a.h5: cannot write: attribute long of /", "too large"},
               [&] { too_long.set_attribute("/", "long", std::string(70000, 'x')); });
}

TEST(Hdf5, TheBytesLieAtTheOffset) {
  const TemporaryFolder folder;
  const std::string path = write_counting(folder, 5000);
  const H5Dataset dataset = H5Reader(path).dataset("/group/numbers");
  const std::string bytes = read_bytes(path);
  const std::vector<int64_t> expected = counting(5000);
  EXPECT_EQ(bytes.substr(static_cast<size_t>(dataset.offset), 5000 * 8),
            std::string(reinterpret_cast<const char*>(expected.data()), 5000 * 8));
}

TEST(Hdf5, DamageIsNamed) {
  const TemporaryFolder folder;
  const std::string path = write_counting(folder, 5000);
  expect_error(ExitCode::kData, {"absent.h5: cannot open: No such file"},
               [&] { H5Reader(folder / "absent.h5"); });
  expect_error(ExitCode::kData, {"text.h5: not an HDF5 file"},
               [&] { H5Reader(folder.write("text.h5", "just some text\n")); });
  expect_error(ExitCode::kData, {"empty.h5: empty file"},
               [&] { H5Reader(folder.write("empty.h5", "")); });
  expect_error(ExitCode::kData, {"not a file"}, [&] { H5Reader(folder.path()); });
  const std::string bytes = read_bytes(path);
  for (const size_t cut : {size_t{600}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string cut_path = folder.write("cut.h5", bytes.substr(0, cut));
    expect_error(ExitCode::kData, {"cut.h5: ", "cut short"},
                 [&] { H5Reader(cut_path).read_all<int64_t>("/group/numbers"); });
  }
  // A header that places the numbers beyond the end of the file. Their offset and size are stored
  // one after the other.
  const int64_t place[2] = {H5Reader(path).dataset("/group/numbers").offset, 5000 * 8};
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(place), 16));
  ASSERT_NE(at, std::string::npos);
  std::string moved = bytes.substr(0, bytes.rfind("tandem seal "));
  moved[at + 2] = 1;  // 64 KiB further
  const std::string moved_path = folder.write("moved.h5", moved);
  expect_error(ExitCode::kData, {"moved.h5: cut short: /group/numbers begins at byte "},
               [&] { H5Reader(moved_path).dataset("/group/numbers"); });
  const H5Reader file(path);
  expect_error(ExitCode::kData, {"counting.h5: there is no dataset /group/other"},
               [&] { file.dataset("/group/other"); });
  expect_error(ExitCode::kData, {"counting.h5: /group/numbers holds i64", "f32"},
               [&] { file.read_all<float>("/group/numbers"); });
  std::vector<int64_t> values(2);
  expect_error(ExitCode::kInternal, {"elements 4999 to 5001 of 5000"},
               [&] { file.read(file.dataset("/group/numbers"), 4999, std::span(values)); });
}

TEST(Hdf5, AFileCutWhileOpenIsNoticed) {
  const TemporaryFolder folder;
  const std::string path = write_counting(folder, 5000);
  const H5Reader file(path);
  const H5Dataset dataset = file.dataset("/group/numbers");
  fs::resize_file(path, 8000);
  std::vector<int64_t> values(5000);
  expect_error(ExitCode::kData, {"counting.h5: cannot read byte 8000"},
               [&] { file.read(dataset, 0, std::span(values)); });
}

// What is hashed is read in chunks of 2^20 bytes.
TEST(Hdf5, BytesOutsideRangesAreHashedInChunks) {
  const TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 3 << 20; ++i) {
    bytes += static_cast<char>(i % 251);
  }
  const FileReader file(folder.write("a", bytes));
  EXPECT_EQ(hash_outside(file, {}, file.bytes()), hash_of(bytes));
  EXPECT_EQ(hash_outside(file, {{1 << 21, 3 << 20}, {0, 5}, {2, 9}}, file.bytes()),
            hash_of(bytes.substr(9, (1 << 21) - 9)));
}

TEST(Hdf5, NothingAppearsWithoutCommit) {
  const TemporaryFolder folder;
  write_counting(folder, 10);
  {
    H5Writer file(folder / "counting.h5");
    file.write_all<int64_t>("/group/numbers", counting(20));
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"counting.h5"});
  EXPECT_EQ(H5Reader(folder / "counting.h5").dataset("/group/numbers").count, 10);
  H5Writer file(folder / "counting.h5");
  file.create_dataset("/x", H5Type::kU8, {4});
  expect_error(ExitCode::kInternal, {"/x: 0 of 4 elements were written"}, [&] { file.commit(); });
}

// Another process may hold a lock, and some network file systems refuse locks.
TEST(Hdf5, LocksAreNotAskedFor) {
  const TemporaryFolder folder;
  const std::string path = write_counting(folder, 5);
  std::vector<int> locked;
  for (const std::string& file : {path, path + ".partial"}) {
    locked.push_back(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    ASSERT_EQ(::flock(locked.back(), LOCK_EX | LOCK_NB), 0) << file;
  }
  EXPECT_EQ(H5Reader(path).read_all<int64_t>("/group/numbers"), counting(5));
  EXPECT_EQ(H5Reader(write_counting(folder, 7)).read_all<int64_t>("/group/numbers"), counting(7));
  for (const int file : locked) {
    ::close(file);
  }
}

TEST(Hdf5, AFolderThatIsMissingIsNamed) {
  expect_error(ExitCode::kData, {"/nowhere/at/all/a.h5: cannot write here: No such file"},
               [] { H5Writer("/nowhere/at/all/a.h5"); });
}

TEST(Hdf5, AFullDiskLeavesNothing) {
  const TemporaryFolder folder;
  const auto body = [&] {
    H5Writer file(folder / "big.h5");
    file.write_all<int64_t>("/numbers", counting(1 << 17));
    file.commit();
    return 0;
  };
  // The disk is full in the middle of the numbers, or so early that not even the library's first
  // bytes fit.
  for (const int64_t limit : {int64_t{1} << 19, int64_t{100}}) {
    const std::string output = run_with_file_limit(limit, body);
    EXPECT_NE(output.find("big.h5: "), std::string::npos) << output;
    EXPECT_TRUE(output.ends_with("exit 3")) << output;
    EXPECT_EQ(folder.names(), std::vector<std::string>{}) << "limit " << limit;
  }
  // Afterwards the same process can go on.
  const auto recover = [&] {
    expect_error(ExitCode::kData, {"no space left"}, body);
    const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &unlimited);
    for (int i = 0; i < 3; ++i) {
      body();
    }
    return H5Reader(folder / "big.h5").read_all<int64_t>("/numbers") == counting(1 << 17) &&
                   !::testing::Test::HasFailure()
               ? 0
               : 1;
  };
  for (const int64_t limit : {int64_t{1} << 19, int64_t{100}}) {
    EXPECT_EQ(run_with_file_limit(limit, recover), "exit 0");
  }
  const std::string output = run_with_file_limit(1 << 19, body);
  EXPECT_NE(output.find("no space left"), std::string::npos) << output;
  EXPECT_NE(output.find("1048576 bytes: free some space"), std::string::npos) << output;
  EXPECT_EQ(run_with_file_limit(1 << 22, body), "exit 0");
}

// On a small file system, if the test may mount one: from no room at all to a few bytes too little.
TEST(Hdf5, ASmallFileSystemFillsUp) {
  const TemporaryFolder folder;
  const std::string mounted = folder / "small";
  fs::create_directory(mounted);
  if (::mount("tmpfs", mounted.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "no permission to mount a file system";
  }
  int failures = 0;
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto open_before = open_files();
  for (int64_t count = 1; count <= 10000; count += 499) {
    try {
      H5Writer file(mounted + "/a.h5");
      file.write_all<int64_t>("/numbers", counting(count));
      file.write_all<int64_t>("/more", counting(16));
      file.commit();
      EXPECT_EQ(H5Reader(mounted + "/a.h5").read_all<int64_t>("/numbers"), counting(count));
      fs::remove(mounted + "/a.h5");
    } catch (const Error& error) {
      ++failures;
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string(error.what()).find("no space left"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(fs::is_empty(mounted)) << count;
  }
  EXPECT_EQ(open_files(), open_before);
  EXPECT_GT(failures, 0);
  EXPECT_LT(failures, 21);
  ::umount(mounted.c_str());
}

TEST(Hdf5, ThreadsMayReadAndWriteAtOnce) {
  const TemporaryFolder folder;
  const std::string path = write_counting(folder, 1000);
  const std::vector<int64_t> expected = counting(1000);
  std::atomic<int> good = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 20; ++round) {
        const std::string own = folder.path() + str("/own-", thread, ".h5");
        H5Writer writer(own);
        writer.write_all<int64_t>("/numbers", expected);
        writer.set_attribute("/numbers", "round", std::vector<int64_t>{round});
        writer.commit();
        good += H5Reader(path).read_all<int64_t>("/group/numbers") == expected &&
                        H5Reader(own).read_all<int64_t>("/numbers") == expected
                    ? 1
                    : 0;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(good, 80);
}

}  // namespace
}  // namespace tandem::testing

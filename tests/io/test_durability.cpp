// What a power failure would leave of a checkpoint. A rename may publish only what is already on
// the disk, and is durable once its folder is synced. So these tests record the order of system
// calls: the functions below replace those of the C library in this program.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <type_traits>

#include "src/core/error.h"
#include "src/io/checkpoint.h"
#include "src/io/file.h"
#include "src/io/hdf5.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;

// The calls on files below `root`, as "write FILE", "sync FILE" and "rename FROM TO". Consecutive
// writes to a file are recorded as one.
struct Recorder {
  std::string root;  // empty: nothing is recorded
  std::vector<std::string> calls;

  void note(const std::string& call) {
    const bool repeated = !calls.empty() && calls.back() == call && call.starts_with("write ");
    if (!root.empty() && !repeated && call.find(root) != std::string::npos) {
      calls.push_back(call);
    }
  }
  void note(const std::string& what, int descriptor) {
    if (!root.empty()) {
      std::error_code gone;
      note(what + " " + fs::read_symlink(str("/proc/self/fd/", descriptor), gone).string());
    }
  }
  // Returns what was recorded, with paths relative to the root, and clears it.
  std::vector<std::string> take() {
    std::vector<std::string> taken = std::move(calls);
    calls.clear();
    for (std::string& call : taken) {
      for (size_t at = 0; (at = call.find(root + "/")) != std::string::npos;) {
        call.erase(at, root.size() + 1);
      }
    }
    return taken;
  }
};

Recorder& recorder() {
  static Recorder recorder;
  return recorder;
}

// Calls the function of the C library that `own` replaces.
template <class Function, class... Args>
auto call_next(const char* name, Function* own, Args... args) {
  static_assert(std::is_invocable_v<Function, Args...>);
  static_cast<void>(own);
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name))(args...);
}

}  // namespace
}  // namespace tandem::testing

using tandem::testing::call_next;
using tandem::testing::recorder;

extern "C" {

ssize_t write(int file, const void* bytes, size_t count) {
  recorder().note("write", file);
  return call_next("write", &write, file, bytes, count);
}

ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) {
  recorder().note("write", file);
  return call_next("pwrite", &pwrite, file, bytes, count, at);
}

ssize_t pwrite64(int file, const void* bytes, size_t count, off64_t at) {
  recorder().note("write", file);
  return call_next("pwrite64", &pwrite64, file, bytes, count, at);
}

int fsync(int file) {
  recorder().note("sync", file);
  return call_next("fsync", &fsync, file);
}

int rename(const char* from, const char* to) noexcept {
  recorder().note(tandem::str("rename ", from, " ", to));
  return call_next("rename", &rename, from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) noexcept {
  recorder().note(tandem::str("exchange ", from, " ", to));
  return call_next("renameat2", &renameat2, from_folder, from, to_folder, to, flags);
}

}  // extern "C"

namespace tandem::testing {
namespace {

using Calls = std::vector<std::string>;

class Durability : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "tandem-durability-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    recorder().root = fs::canonical(folder);
  }
  void TearDown() override {
    fs::remove_all(recorder().root);
    recorder() = {};
  }

  std::string save(int64_t step) {
    const std::string partial = begin_checkpoint(recorder().root + "/c", step);
    const Slab slab{"param/w", Shape{10}, 0, random_tensor({10}, DType::kF32, 1)};
    Manifest manifest;
    manifest.step = step;
    return commit_checkpoint(partial, manifest,
                             {write_rank_file(partial + "/rank-0000.h5", {&slab, 1})});
  }
};

TEST_F(Durability, ACheckpointIsOnTheDiskBeforeItGetsItsName) {
  save(1);
  EXPECT_EQ(recorder().take(), (Calls{"write c/step-00000001.partial/rank-0000.h5.partial",
                                      "sync c/step-00000001.partial/rank-0000.h5.partial",
                                      "rename c/step-00000001.partial/rank-0000.h5.partial "
                                      "c/step-00000001.partial/rank-0000.h5",
                                      "sync c/step-00000001.partial",  //
                                      "write c/step-00000001.partial/manifest.json",
                                      "sync c/step-00000001.partial/manifest.json",  //
                                      "sync c/step-00000001.partial",
                                      "rename c/step-00000001.partial c/step-00000001",  //
                                      "sync c"}));
}

TEST_F(Durability, AReplacedCheckpointGoesWhenTheNewOneIsOnTheDisk) {
  save(1);
  recorder().take();
  save(1);
  Calls calls = recorder().take();
  ASSERT_GE(calls.size(), 3U);
  EXPECT_EQ(Calls(calls.end() - 3, calls.end()),
            (Calls{"sync c/step-00000001.partial",
                   "exchange c/step-00000001.partial c/step-00000001",  //
                   "sync c"}));
}

TEST_F(Durability, TheBestIsOnTheDiskBeforeItGetsItsName) {
  const std::string path = save(1);
  recorder().take();
  keep_as_best(recorder().root + "/c", path);  // only hard links: no bytes are written
  EXPECT_EQ(recorder().take(), (Calls{"sync c/best.partial", "rename c/best.partial c/best",  //
                                      "sync c"}));
}

TEST_F(Durability, ADatasetIsOnTheDiskBeforeItGetsItsName) {
  H5Writer file(recorder().root + "/d.h5");
  file.write_all<float>("/values", std::vector<float>(1000, 1.0f));
  file.commit();
  EXPECT_EQ(recorder().take(), (Calls{"write d.h5.partial", "sync d.h5.partial",
                                      "rename d.h5.partial d.h5", "sync " + recorder().root}));
}

}  // namespace
}  // namespace tandem::testing

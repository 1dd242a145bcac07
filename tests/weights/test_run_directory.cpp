#include <filesystem>
#include <thread>

#include "src/weights/run_directory.h"
#include "tests/support/harness.h"
#include "tests/support/temporary_folder.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;

// The lock leaves with its folder, and is not what was renamed. Other threads rename the folder
// while this one looks again and again, so that every pair of its calls is come between.
TEST(RunDirectory, AFolderThatIsRenamedAtAnyTimeIsCalledSo) {
  const TemporaryFolder root;
  const std::string before = root / "before", after = root / "after";
  for (int round = 0; round < 300; ++round) {
    RunDirectory run(before);
    run.lock();
    std::jthread user([&] { fs::rename(before, after); });
    std::string said;
    while (said.empty()) {
      said = message_of([&] { run.require_in_place(); });
    }
    EXPECT_TRUE(said.starts_with(before + ": the folder of the run was renamed")) << said;
    user.join();
    fs::remove_all(after);
  }
}

}  // namespace
}  // namespace tandem::testing

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "src/stop/stop_file.h"

namespace tandem {
namespace {

class StopFileTest : public testing::Test {
 protected:
  StopFileTest() { std::filesystem::remove(path_); }
  ~StopFileTest() override { std::filesystem::remove(path_); }

  const std::string path_ = "tandem-stop-file-test";
  double now_s_ = 100;
};

TEST_F(StopFileTest, IsLookedForAtOnceAndThenOnceASecond) {
  StopFile file(path_, [this] { return now_s_; });
  EXPECT_FALSE(file.requested(0));
  std::ofstream(path_) << "stop";
  now_s_ = 100.9;
  EXPECT_FALSE(file.requested(1));
  now_s_ = 101;
  EXPECT_TRUE(file.requested(2));
  std::filesystem::remove(path_);
  now_s_ = 103;
  EXPECT_TRUE(file.requested(3));  // it was seen
}

TEST_F(StopFileTest, IsNamedOnceAndStays) {
  std::ofstream(path_) << "stop";
  StopFile file(path_, [this] { return now_s_; });
  testing::internal::CaptureStderr();
  EXPECT_TRUE(file.requested(7));
  now_s_ = 200;
  EXPECT_TRUE(file.requested(8));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tandem: run.stop_file = " + path_ +
                " is there: saving after step 7, then stopping; remove the file before the run "
                "goes on\n");
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(StopFileTest, WithoutAPathThereIsNone) { EXPECT_FALSE(StopFile("").requested(1)); }

}  // namespace
}  // namespace tandem

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/io/file.h"
#include "src/report/writers/exports.h"
#include "tests/support/temporary_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class ExportFiles : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;
};

std::string line_of(int number) {
  return emf_line(number, {{"Run", "book"}}, {{"Step", "Count", static_cast<double>(number)}});
}

TEST(Exports, TextForPrometheus) {
  const Labels labels = {{"run", "a\"b\\c\nd"}, {"rank", "3"}};
  EXPECT_EQ(prometheus_text({{"gpu_power_watts", 400.5}, {"gpu_xids_total", 2}}, labels),
            "# TYPE tandem_gpu_power_watts gauge\n"
            "tandem_gpu_power_watts{run=\"a\\\"b\\\\c\\nd\",rank=\"3\"} 400.5\n"
            "# TYPE tandem_gpu_xids_total counter\n"
            "tandem_gpu_xids_total{run=\"a\\\"b\\\\c\\nd\",rank=\"3\"} 2.0\n");
  const double infinite = std::numeric_limits<double>::infinity();
  const std::string text =
      prometheus_text({{"a", std::nan("")}, {"b", infinite}, {"c", -infinite}}, {{"run", "x"}});
  for (const char* line :
       {"tandem_a{run=\"x\"} NaN\n", "tandem_b{run=\"x\"} +Inf\n", "tandem_c{run=\"x\"} -Inf\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(Exports, LineForCloudWatch) {
  EXPECT_EQ(emf_line(1790000000.25, {{"Run", "book"}, {"Host", "n\"1"}},
                     {{"GpuUse", "Percent", 93.5}, {"GpuPower", "None", std::nan("")}}),
            "{\"_aws\":{\"Timestamp\":1790000000250,\"CloudWatchMetrics\":[{\"Namespace\":"
            "\"Tandem\",\"Dimensions\":[[\"Run\",\"Host\"]],\"Metrics\":[{\"Name\":\"GpuUse\","
            "\"Unit\":\"Percent\"}]}]},\"Run\":\"book\",\"Host\":\"n\\\"1\",\"GpuUse\":93.5}\n");
  EXPECT_NE(emf_line(1, {{"Run", "b\xc3\xbc"}}, {{"Loss", "None", 1}}).find("\"Run\":\"b??\""),
            std::string::npos);
  EXPECT_EQ(emf_line(1, {{"Run", "book"}}, {{"Loss", "None", std::nan("")}}), "");
}

TEST_F(ExportFiles, FileIsReplacedAndRemoved) {
  const std::string folder = folder_.path() + "/new/folder", path = folder + "/book_0.prom";
  {
    Exports exports(folder, "book_0.prom", "");
    exports.replace_file("a 1\n");
    exports.replace_file("b 2\n");
    EXPECT_EQ(read_file(path), "b 2\n");
    exports.append_line(line_of(1));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(ExportFiles, NothingIsWrittenUnlessWanted) {
  Exports exports("", "x", "");
  exports.replace_file("a 1\n");
  exports.append_line(line_of(1));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(ExportFiles, LinesAreAppended) {
  const std::string path = folder_ / "emf";
  Exports first("", "", path), second("", "", path);
  first.append_line(line_of(1));
  second.append_line("");
  second.append_line(line_of(2));
  EXPECT_EQ(read_file(path), line_of(1) + line_of(2));
}

TEST_F(ExportFiles, WhatCannotBeWrittenIsCounted) {
  ::testing::internal::CaptureStderr();
  {
    Exports exports("/proc/none", "x", "/dev/full");
    exports.append_line(line_of(1));
    exports.replace_file("a 1\n");
    exports.append_line(line_of(2));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("not exported: /proc/none: No such file or directory; training goes on\n"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("not exported: 4 records in all\n"), std::string::npos) << said;
}

// The pipe holds what it can. Lines that it takes are whole, and those after it was read, too.
TEST_F(ExportFiles, APipeThatNobodyReadsHoldsUpNothing) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  Exports exports("", "", path);
  ::testing::internal::CaptureStderr();
  exports.append_line(line_of(0));  // it has no reader
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  std::string expected, text;
  constexpr int kLines = 2000;  // of over 100 bytes, into 64 KiB
  for (int i = 1; i <= kLines; ++i) {
    exports.append_line(line_of(i));
  }
  std::vector<char> buffer(1 << 20);
  const auto take = [&] {
    for (ssize_t count; (count = ::read(reader, buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<size_t>(count));
    }
  };
  take();
  exports.append_line(line_of(kLines + 1));
  take();
  ::close(reader);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("not exported: " + path),
            std::string::npos);
  std::istringstream lines(text);
  int count = 0, last = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const int number = nlohmann::json::parse(line)["Step"].get<int>();
    EXPECT_EQ(number, line == line_of(kLines + 1).substr(0, line.size()) ? kLines + 1 : last + 1);
    last = number;
  }
  EXPECT_GT(count, 100);
  EXPECT_LT(count, kLines);
  EXPECT_EQ(last, kLines + 1);
}

// A file may take half of a line: the next one begins on a line of its own.
TEST_F(ExportFiles, AfterHalfALineANewOneBegins) {
  const std::string path = folder_ / "emf";
  Exports exports("", "", path);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  ::testing::internal::CaptureStderr();
  exports.append_line(line_of(1));
  exports.append_line(line_of(2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  exports.append_line(line_of(3));
  exports.append_line(line_of(4));
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(read_file(path), line_of(1).substr(0, 10) + "\n" + line_of(3) + line_of(4));
}

}  // namespace
}  // namespace tandem

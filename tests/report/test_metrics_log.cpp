#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/core/error.h"
#include "src/report/writers/metrics_log.h"
#include "tests/support/temporary_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class MetricsLogTest : public ::testing::Test {
 protected:
  void put(const std::string& text) { FileWriter(path_, FileWriter::Start::kEmpty).write(text); }

  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_ / "metrics.jsonl";
  const std::string discarded_ = folder_ / "metrics.discarded.jsonl";
};

std::string line_of(const std::vector<Metric>& metrics) { return to_json_line(metrics); }

TEST_F(MetricsLogTest, OneObjectALineSeenAtOnce) {
  MetricsLog log(path_);
  log.append({{"step", 1}, {"loss", 2.5}, {"tokens_per_s", 1e6}});
  EXPECT_EQ(read_file(path_), "{\"step\":1,\"loss\":2.5,\"tokens_per_s\":1000000.0}\n");
  log.append({{"step", 2}, {"val_loss", 0.1}});
  EXPECT_EQ(read_file(path_),
            "{\"step\":1,\"loss\":2.5,\"tokens_per_s\":1000000.0}\n"
            "{\"step\":2,\"val_loss\":0.1}\n");
}

TEST_F(MetricsLogTest, GoesOnAtTheEnd) {
  MetricsLog(path_).append({{"step", 1}});
  MetricsLog(path_).append({{"step", 2}});
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(MetricsLogTest, ALogThatIsRemovedBeginsAgain) {
  MetricsLog log(path_);
  log.append({{"step", 1}});
  fs::remove(path_);
  log.append({{"step", 2}});
  log.append({{"step", 3}});
  EXPECT_EQ(read_file(path_), "{\"step\":2}\n{\"step\":3}\n");
}

TEST_F(MetricsLogTest, NumbersAreExact) {
  for (const double value : {1.0 / 3, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, -0.0, 1e22}) {
    const std::string line = line_of({{"x", value}});
    const std::string number = line.substr(5, line.size() - 6);
    EXPECT_EQ(std::strtod(number.c_str(), nullptr), value) << line;
  }
  EXPECT_EQ(line_of({{"x", int64_t{9'007'199'254'740'993}}}), "{\"x\":9007199254740993}");
}

TEST_F(MetricsLogTest, NotFiniteIsNull) {
  EXPECT_EQ(line_of({{"a", std::numeric_limits<double>::quiet_NaN()},
                     {"b", -std::numeric_limits<double>::infinity()}}),
            "{\"a\":null,\"b\":null}");
}

TEST_F(MetricsLogTest, ObjectsStandWithinObjects) {
  const std::vector<Metric> memory = {{"parameters", 64}, {"rate", 0.5}};
  EXPECT_EQ(line_of({{"step", 1}, {"memory", memory}, {"wire", std::vector<Metric>{}}}),
            "{\"step\":1,\"memory\":{\"parameters\":64,\"rate\":0.5},\"wire\":{}}");
}

TEST_F(MetricsLogTest, KeysAreEscaped) { EXPECT_EQ(line_of({{"a\"b", 1}}), "{\"a\\\"b\":1}"); }

// Evaluation lines stand between training lines; those of the resumed step stay.
TEST_F(MetricsLogTest, ResumeMovesLaterLines) {
  put("{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"val_loss\":2.1}\n"
      "{\"step\":3,\"loss\":1.0}\n{\"step\":4,\"loss\":null}\n");
  truncate_after(path_, 2, true);
  EXPECT_EQ(read_file(path_),
            "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"val_loss\":2.1}\n");
  EXPECT_EQ(read_file(discarded_), "{\"step\":3,\"loss\":1.0}\n{\"step\":4,\"loss\":null}\n");
  // Later resumes add to what was discarded.
  MetricsLog(path_).append({{"step", 3}});
  truncate_after(path_, 1, true);
  EXPECT_EQ(read_file(path_), "{\"step\":1,\"loss\":3}\n");
  EXPECT_EQ(read_file(discarded_),
            "{\"step\":3,\"loss\":1.0}\n{\"step\":4,\"loss\":null}\n"
            "{\"step\":2,\"loss\":2}\n{\"step\":2,\"val_loss\":2.1}\n{\"step\":3}\n");
}

// The checkpoint of step 2 was written before the validation, and does not know its loss.
TEST_F(MetricsLogTest, ResumeMovesAValidationThatTheCheckpointDoesNotKnow) {
  put("{\"step\":1,\"val_loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"val_loss\":2.1}\n");
  truncate_after(path_, 2, false);
  EXPECT_EQ(read_file(path_), "{\"step\":1,\"val_loss\":3}\n{\"step\":2,\"loss\":2}\n");
  EXPECT_EQ(read_file(discarded_), "{\"step\":2,\"val_loss\":2.1}\n");
}

TEST_F(MetricsLogTest, BrokenLinesAreDropped) {
  put("{\"step\":1}\n\n[3]\n{\"loss\":1}\n{\"step\":2}\n{\"step\":3,\"lo");
  truncate_after(path_, 5, true);
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_FALSE(fs::exists(discarded_));
}

// A last line without a newline may have been cut, even if it looks complete, like 12 cut from 123.
TEST_F(MetricsLogTest, ALineWithoutItsEndIsBroken) {
  put("{\"step\":1}\n{\"step\":2}");
  truncate_after(path_, 5, true);
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n");
}

TEST_F(MetricsLogTest, NothingToDoChangesNothing) {
  truncate_after(path_, 5, true);
  EXPECT_FALSE(fs::exists(path_));
  put("{\"step\":1}\n");
  truncate_after(path_, 5, true);
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n");
  EXPECT_FALSE(fs::exists(discarded_));
}

TEST_F(MetricsLogTest, ALogIsNeverTooLongButALineIs) {
  constexpr size_t kMost = 16 << 20;
  const std::string begin = "{\"step\":1,\"padding\":\"", end = "\"}";
  const std::string longest = begin + std::string(kMost - begin.size() - end.size(), 'x') + end;
  put(longest + "\n{\"step\":2}\n");
  std::vector<int64_t> steps;
  const auto read = [&] {
    read_metrics(path_, [&](const auto& line) { steps.push_back(line.at("step")); });
  };
  read();
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2}));
  truncate_after(path_, 1, true);
  EXPECT_TRUE(read_file(path_, file_limit(17)) == longest + "\n");
  put("{\"step\":1}\n" + longest + " \n");
  try {
    read();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl:2: has over 16777216 bytes"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(MetricsLogTest, UnwritablePlaceIsNamed) {
  const std::string path = folder_.path() + "/missing/metrics.jsonl";
  try {
    const MetricsLog log(path);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
  }
}

TEST_F(MetricsLogTest, AFullDiskLeavesWholeLines) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  MetricsLog log(path_);
  log.append({{"step", 1}});
  const rlimit limit{20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  try {
    log.append({{"step", 2}});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find("disk full"), std::string::npos) << error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n");
  log.append({{"step", 3}});
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n{\"step\":3}\n");
}

}  // namespace
}  // namespace tandem

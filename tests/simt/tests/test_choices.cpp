// Choices of a job on the emulated GPU, on 1 to 4 ranks (tests/support/mpi_main.cpp): who measures,
// what is kept, and a library with which a step does not fit in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/device/ranks/agreement.h"
#include "src/machine/choices.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

class JobChoices : public ::testing::Test {
 protected:
  JobChoices() : machine_({.device = Device::kCuda}, {.backend = Backend::kNccl}, test_world()) {}
  void TearDown() override { use_choices(nullptr); }

  // A choice for a library, which a rank measures in `calls_`.
  OpenChoices open(const std::string& name, bool by_library = true) {
    return {.libraries = {{name, [this, by_library](const Stream&, const Warn&) {
                             ++calls_;
                             return LibraryChoice{by_library, 2, 1};
                           }}}};
  }
  Chosen choose(const OpenChoices& open, const std::string& kept = "", int misfits = 0) {
    return tandem::choose(machine_, open, kept, "choices.json", [this, misfits] {
      if (++fits_ <= misfits) {
        throw AgreedError(ExitCode::kOutOfMemory, "a step needs 9 GiB");
      }
    });
  }
  static bool is_by_library(const std::string& name) {
    return choices_in_use()->libraries.at(name).by_library;
  }
  int calls_of_job() {
    const double calls[] = {static_cast<double>(calls_)};
    return static_cast<int>(machine_.mesh()->job().sum(calls)[0]);
  }

  Machine machine_;
  int calls_ = 0, fits_ = 0;
};

TEST_F(JobChoices, TheFirstRankThatHasOneMeasuresForAll) {
  OpenChoices mine = open("all");
  const bool is_last = test_world().rank() == test_world().size() - 1;
  if (is_last) {
    mine.libraries.merge(open("last").libraries);
  }
  const Chosen chosen = choose(mine);
  EXPECT_EQ(chosen.measured, 2);
  EXPECT_EQ(calls_, (test_world().rank() == 0) + is_last);
  EXPECT_TRUE(is_by_library("all") && is_by_library("last"));
  EXPECT_EQ(fits_, 1);
  // With what was kept, nothing is measured again.
  use_choices(nullptr);
  const Chosen again = choose(mine, chosen.text);
  EXPECT_EQ(again.measured, 0);
  EXPECT_EQ(again.text, chosen.text);
  EXPECT_TRUE(is_by_library("all") && is_by_library("last"));
  EXPECT_EQ(calls_of_job(), 2);
}

TEST_F(JobChoices, OwnKernelsNeedNoCheck) {
  choose(open("all", false));
  EXPECT_FALSE(is_by_library("all"));
  EXPECT_EQ(fits_, 0);
}

TEST_F(JobChoices, ALibraryThatDoesNotFitIsLeftOutAndSaid) {
  ::testing::internal::CaptureStderr();
  const Chosen chosen = choose(open("all"), "", 1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, test_world().rank() > 0 ? ""
                                          : "tandem: warning: Tandem's attention is used, not "
                                            "cuDNN's: a step needs 9 GiB\n");
  EXPECT_FALSE(is_by_library("all"));
  EXPECT_EQ(fits_, 2);
  use_choices(nullptr);
  choose(open("all"), chosen.text);
  EXPECT_FALSE(is_by_library("all"));
  EXPECT_EQ(calls_of_job(), 1);
}

// A run keeps its bits: where a kept choice does not fit, it is an error.
TEST_F(JobChoices, AKeptLibraryThatDoesNotFitIsAnError) {
  const Chosen chosen = choose(open("all"));
  OpenChoices more = open("more", false);
  more.libraries.merge(open("all").libraries);
  fits_ = 0;
  try {
    choose(more, chosen.text, 1);
    ADD_FAILURE() << "accepted";
  } catch (const AgreedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a step needs 9 GiB"));
  }
}

}  // namespace
}  // namespace tandem::testing

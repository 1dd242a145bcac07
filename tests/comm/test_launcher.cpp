// How a process knows that a launcher has started it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/transport/launcher.h"

namespace tandem::testing {
namespace {

TEST(Launcher, IsKnownByAnyOfItsVariables) {
  constexpr const char* kStarted[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK",    "PMI_FD", "PMIX_RANK",
                                      "MPI_LOCALNRANKS",      "SLURM_PROCID"};
  constexpr const char* kCounts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
  for (const char* name : kStarted) {
    unsetenv(name);  // the tests' own launcher
  }
  for (const char* name : kCounts) {
    unsetenv(name);
  }
  EXPECT_FALSE(started_by_launcher());
  EXPECT_EQ(launched_processes(), 1);
  for (const char* name : kStarted) {
    ASSERT_EQ(setenv(name, "0", 1), 0);
    EXPECT_TRUE(started_by_launcher()) << name;
    unsetenv(name);
  }
  for (const char* name : kCounts) {
    ASSERT_EQ(setenv(name, "3", 1), 0);
    EXPECT_EQ(launched_processes(), 3) << name;
    unsetenv(name);
  }
}

}  // namespace
}  // namespace tandem::testing

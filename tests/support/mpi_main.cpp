// GoogleTest's main for programs whose every test runs on all ranks at once.
//
// A failure on any rank fails the job. It is printed with its rank; passing tests are printed by
// rank 0 only. After each test the ranks meet. A rank that left a test early (a fatal failure, an
// exception) has left the others inside a collective, so it ends the job. The world's deadline ends
// a job that hangs for another reason. TANDEM_REQUIRE_RANKS=N fails a run that does not have N
// ranks, for example because the launcher is missing.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "comm/debugger.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr double kDeadline_s = 30;
World* the_world = nullptr;

class RankListener final : public ::testing::EmptyTestEventListener {
 public:
  explicit RankListener(World& world) : world_(world) {}

  int64_t failures() const { return failures_; }

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed() && world_.size() > 1) {
      std::fprintf(stderr, "[rank %d] %s:%d: %s\n", world_.rank(),
                   result.file_name() ? result.file_name() : "?", result.line_number(),
                   result.message());
    }
  }

  void OnTestEnd(const ::testing::TestInfo& info) override {
    if (info.result()->HasFatalFailure() && world_.size() > 1) {
      std::fprintf(stderr, "[rank %d] %s.%s broke off: ending the job\n", world_.rank(),
                   info.test_suite_name(), info.name());
      world_.abort(ExitCode::kInternal);
    }
    const double failed = info.result()->Failed();
    try {
      failures_ += world_.control().sum({&failed, 1})[0] > 0;
    } catch (const Error& error) {
      std::fprintf(stderr, "[rank %d] after %s.%s: %s\n", world_.rank(), info.test_suite_name(),
                   info.name(), error.what());
      world_.abort(ExitCode::kInternal);
    }
  }

 private:
  World& world_;
  int64_t failures_ = 0;
};

int run(World& world) {
  if (const char* wanted = std::getenv("TANDEM_REQUIRE_RANKS");
      wanted && std::atoi(wanted) != world.size()) {
    std::fprintf(stderr, "%s ranks are required, there are %d\n", wanted, world.size());
    return 1;
  }
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() > 0) {
    delete listeners.Release(listeners.default_result_printer());
  }
  auto* listener = new RankListener(world);
  listeners.Append(listener);  // which owns it now
  const int own = RUN_ALL_TESTS();
  if (world.rank() == 0 && own == 0 && listener->failures() > 0) {
    std::fprintf(stderr, "%ld tests failed on other ranks\n", listener->failures());
  }
  return own != 0 || listener->failures() > 0;
}

}  // namespace

World& test_world() { return *the_world; }

}  // namespace tandem::testing

int main(int argc, char** argv) {
  tandem::World world;
  world.set_timeout_s(tandem::testing::kDeadline_s);
  tandem::hold_for_debugger(world);
  tandem::testing::the_world = &world;
  ::testing::InitGoogleTest(&argc, argv);
  const int status = tandem::testing::run(world);
  world.finish();
  return status;
}

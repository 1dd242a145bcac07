#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "src/core/error.h"
#include "src/io/file.h"
#include "src/report/trace/chrome_trace.h"
#include "src/report/trace/trace_account.h"
#include "tests/support/temporary_folder.h"

namespace tandem::testing {
namespace {

// One step from 0 to 1000 us: it computes, waits from `begin` to `end`, and computes again.
Trace trace_of(int rank, int64_t begin, int64_t end) {
  Trace trace{
      .rank = rank, .ranks = 2, .host = "node", .first = {.at = 0}, .last = {.at = 1'000'000}};
  PhaseSeconds parts{};
  parts[0] = static_cast<double>(1000 - (end - begin)) * 1e-6;
  parts[1] = static_cast<double>(end - begin) * 1e-6;
  trace.steps.push_back({.number = 7, .span = {0, 1'000'000}, .parts = parts});
  trace.pieces = {{{0, begin * 1000}, Phase::kCompute, "block 0 backward"},
                  {{begin * 1000, end * 1000}, Phase::kCommunication, "block 0 backward"},
                  {{end * 1000, 1'000'000}, Phase::kCompute, ""}};
  return trace;
}

void add(Trace& trace, int64_t number, int64_t begin, int64_t end,
         const std::string& kind = "all_reduce") {
  trace.collectives.push_back({.span = {begin * 1000, end * 1000},
                               .group = 0xFFFFFFFFFFFFFFFF,
                               .number = number,
                               .bytes = 8,
                               .kind = kind,
                               .purpose = "bucket 1",
                               .ranks = "this run"});
}

double us(double seconds) { return std::round(seconds * 1e12) * 1e-6; }

TEST(TraceAccount, WaitingEndsWhenTheLastRankComes) {
  Trace early = trace_of(0, 300, 900), late = trace_of(1, 800, 900);
  add(early, 1, 200, 900);
  add(late, 1, 700, 900);
  const TraceAccount account = account_of({early, late});
  ASSERT_EQ(account.steps.size(), 1u);
  EXPECT_EQ(account.steps[0].number, 7);
  const TraceAccount::Rank &waits = account.steps[0].ranks[0], &comes = account.steps[0].ranks[1];
  EXPECT_EQ(us(waits.waiting()), 400);
  EXPECT_EQ(us(waits.transfer()), 200);
  EXPECT_EQ(waits.waits_most_for(), 1);
  EXPECT_EQ(us(comes.waiting()), 0);
  EXPECT_EQ(us(comes.transfer()), 100);
  EXPECT_EQ(comes.waits_most_for(), -1);
  EXPECT_EQ(us(waits.together_s), 700);
  EXPECT_EQ(us(waits.hidden_s), 100);
  EXPECT_EQ(us(comes.hidden_s), 100);
}

// While the first is under way, the second is not what a rank waits for.
TEST(TraceAccount, TheOldestCollectiveIsWaitedFor) {
  Trace one = trace_of(0, 100, 900), other = trace_of(1, 850, 900);
  add(one, 1, 100, 600);
  add(one, 2, 110, 900, "sum");
  add(other, 1, 150, 600);
  add(other, 2, 800, 900, "sum");
  const TraceAccount account = account_of({one, other});
  EXPECT_EQ(us(account.steps[0].ranks[0].waiting()), 50 + 200);
  EXPECT_EQ(us(account.steps[0].ranks[0].transfer()), 450 + 100);
  EXPECT_EQ(us(account.steps[0].ranks[0].together_s), 500);  // a control message moves no tensor
}

// The clock of rank 1 is 5 s ahead of rank 0's, and gains 100 us in the trace.
TEST(TraceAccount, ClocksAreAligned) {
  Trace early = trace_of(0, 300, 900), late = trace_of(1, 800, 900);
  add(early, 1, 200, 900);
  add(late, 1, 700, 900);
  const auto shift = [](TraceSpan& span) {
    for (int64_t* time : {&span.begin, &span.end}) {
      *time = 5'000'000'000 + *time + *time / 10;
    }
  };
  shift(late.steps[0].span);
  for (Trace::Piece& piece : late.pieces) {
    shift(piece.span);
  }
  shift(late.collectives[0].span);
  late.first = {.at = 5'000'000'000, .offset = -5'000'000'000, .bound = 3000};
  late.last = {.at = 5'001'100'000, .offset = -5'000'100'000, .bound = 7000};
  EXPECT_EQ(late.by_rank_0(late.collectives[0].span.begin), 700'000);
  const TraceAccount account = account_of({early, late});
  EXPECT_EQ(us(account.steps[0].ranks[0].waiting()), 400);
  EXPECT_EQ(us(account.clocks_agree_s), 7);
}

TEST(TraceAccount, RanksWithOtherStepsAreRefused) {
  Trace other = trace_of(1, 800, 900);
  other.steps.clear();
  EXPECT_THROW(account_of({trace_of(0, 300, 900), other}), Error);
}

TEST(ChromeTrace, AFileHoldsAllOfATrace) {
  Trace trace = trace_of(0, 300, 900);
  trace.ranks = 1;
  trace.host = "a \"node\"";
  add(trace, 3, 200, 901);
  trace.pieces[0].span.begin = 1;
  trace.host_work.push_back({{5, 7}, "loader", "loader"});
  trace.memory.push_back({400, int64_t{1} << 40});
  trace.first = {.at = 123'456'789'012'345, .offset = -77, .bound = 3};
  const TemporaryFolder root;
  const std::string& folder = root.path();
  write_trace(trace_path(folder, 0), rank_trace_text(trace));
  const Trace read = read_traces(folder).at(0);
  EXPECT_EQ(rank_trace_text(read), rank_trace_text(trace));
  EXPECT_EQ(read.pieces[0].span.begin, 1);
  EXPECT_EQ(read.pieces[0].span.end, 300'000);
  EXPECT_EQ(read.collectives[0].group, 0xFFFFFFFFFFFFFFFF);
  EXPECT_EQ(read.first.at, trace.first.at);
  EXPECT_EQ(read.first.offset, -77);
  EXPECT_EQ(read.memory[0].bytes, int64_t{1} << 40);
  EXPECT_EQ(read.steps[0].parts, trace.steps[0].parts);
  const auto write_with_spaces = [&](size_t spaces) {
    write_trace(trace_path(folder, 0), rank_trace_text(trace) + std::string(spaces, ' '));
  };
  write_with_spaces(16 << 20);
  EXPECT_EQ(rank_trace_text(read_trace(trace_path(folder, 0))), rank_trace_text(trace));
  write_with_spaces(256 << 20);
  EXPECT_THROW(read_trace(trace_path(folder, 0)), Error);
}

}  // namespace
}  // namespace tandem::testing

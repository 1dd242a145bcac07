// The flight log's record, in its file and in memory that outlives the process, and what is read
// from it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "src/device/profiler_range.h"
#include "src/trace/flight_verdict.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

using Life = FlightRank::Life;

constexpr int64_t kSecond = 1'000'000'000, kNow = 1000 * kSecond;

template <size_t N>
void set(char (&place)[N], const char* text) {
  std::strncpy(place, text, N - 1);
}

// A collective of the group of all ranks that began `age_s` seconds ago.
FlightCollective collective(int64_t number, int64_t age_s, bool ended = false,
                            const char* kind = "all_reduce", int64_t bytes = 25'000'000) {
  FlightCollective c{};
  c.group = 7;
  c.number = number;
  c.bytes = bytes;
  c.step = 412;
  c.enqueued = kNow - age_s * kSecond;
  c.ended = ended ? c.enqueued + 1 : 0;
  set(c.kind, kind);
  set(c.purpose, "bucket 3");
  set(c.ranks, "this run");
  return c;
}

FlightRank rank(int number, const std::vector<FlightCollective>& collectives,
                Life life = Life::kRuns) {
  FlightRank rank{};
  std::memcpy(rank.record.magic, FlightRecord::kMagic, sizeof rank.record.magic);
  rank.life = life;
  rank.record.rank = number;
  rank.record.process = 100 + number;
  rank.record.exit_code = kFlightRuns;
  rank.record.beat = kNow - number * kSecond;
  set(rank.record.host, "node1");
  set(rank.record.part, "data");
  rank.record.part_since = kNow - 75 * kSecond;
  uint64_t count = 0;
  for (const FlightCollective& c : collectives) {
    FlightCollective& place = rank.record.last[++count % FlightRecord::kCollectives];
    place = c;
    place.number_before = place.number_after = count;
  }
  return rank;
}

TEST(FlightVerdict, NothingIsWrongWhereAllEnded) {
  EXPECT_EQ(flight_verdict({}, kNow), "");
  EXPECT_EQ(
      flight_verdict({rank(0, {collective(1, 9, true)}), rank(1, {collective(1, 9, true)})}, kNow),
      "");
}

TEST(FlightVerdict, ARankThatHasNotComeIsNamedWithWhatItDoes) {
  const std::vector<FlightCollective> waits = {collective(1233, 70, true), collective(1234, 60),
                                               collective(1235, 59)};
  std::vector<FlightRank> ranks = {rank(0, waits), rank(1, waits), rank(2, waits),
                                   rank(3, {collective(1233, 70, true)}), rank(4, waits)};
  const std::string start =
      "rank 3 on node1 did not join all_reduce 1234 of this run (bucket 3, 25 MB) of step 412, in "
      "which ranks 0-2, 4 wait for 60 s: it is in ";
  EXPECT_EQ(flight_verdict(ranks, kNow), start + "data for 75 s");
  set(ranks[3].record.range, "block 7 backward");
  ranks[3].record.range_since = kNow - 5 * kSecond;
  EXPECT_EQ(flight_verdict(ranks, kNow), start + "block 7 backward for 5 s");
}

// Of several that are open, the one that waits longest counts. Groups that a rank is not in do not
// miss it.
TEST(FlightVerdict, OtherGroupsAreNotWaitedFor) {
  FlightCollective other = collective(1, 80);
  other.group = 8;
  other.begun = other.enqueued;
  set(other.ranks, "ranks 0, 1");
  EXPECT_EQ(flight_verdict({rank(0, {other, collective(5, 60)}), rank(1, {other}),
                            rank(2, {collective(4, 90, true)})},
                           kNow),
            "all ranks came to all_reduce 1 of ranks 0, 1 (bucket 3, 25 MB) of step 412, in which "
            "ranks 0, 1 wait for 80 s: look at the link between them");
}

// A host that waits for a control message has not looked whether its collectives on the GPU ended.
TEST(FlightVerdict, WhatNobodySawBeginIsNotTheCauseWhereARankIsMissing) {
  FlightCollective votes = collective(9, 60, false, "sum", 32);
  votes.group = 8;
  FlightCollective earlier = votes;
  earlier.number = 8;
  earlier.ended = earlier.enqueued;
  const FlightCollective on_gpu = collective(4, 90);
  std::vector<FlightRank> ranks = {rank(0, {earlier, on_gpu, votes}), rank(1, {earlier, on_gpu})};
  EXPECT_TRUE(flight_verdict(ranks, kNow).starts_with("rank 1 on node1 did not join sum 9"));
  for (FlightRank& one : ranks) {  // by the record, it runs
    one.record.last[2].begun = one.record.last[2].enqueued;
  }
  EXPECT_TRUE(flight_verdict(ranks, kNow).starts_with("all ranks came to all_reduce 4"));
  EXPECT_TRUE(flight_verdict({rank(0, {on_gpu}), rank(1, {on_gpu})}, kNow)
                  .starts_with("all ranks came to all_reduce 4"));
}

// Ranks learn of it by a message to which all came, and which one may not have left yet.
TEST(FlightVerdict, WhereCallsDifferOneThatOthersLackIsNamed) {
  FlightCollective votes = collective(9, 60, true, "sum", 32);
  votes.group = 8;
  std::vector<FlightRank> ranks = {rank(0, {votes}), rank(1, {votes, collective(4, 50)}),
                                   rank(2, {votes, collective(3, 70, true)})};
  FlightCollective& late = ranks[0].record.last[1];
  late.begun = late.enqueued;
  late.ended = 0;
  EXPECT_TRUE(flight_verdict(ranks, kNow).starts_with("all ranks came to sum 9"));
  EXPECT_TRUE(flight_verdict(ranks, kNow, true).starts_with("rank 2 on node1 did not join "));
}

TEST(FlightVerdict, ACallOfAnotherKindOrSizeIsNamed) {
  for (const FlightCollective& odd :
       {collective(4, 50, false, "all_gather"), collective(4, 50, false, "all_reduce", 8)}) {
    const std::string verdict =
        str("rank 1 on node1 calls ", odd.text(),
            ", where rank 0 calls all_reduce 4 of this run (bucket 3, 25 MB) of step 412");
    EXPECT_EQ(flight_verdict({rank(0, {collective(4, 60)}), rank(1, {odd})}, kNow), verdict);
    // The first difference counts, and it does where both collectives ended.
    FlightCollective ended = odd;
    ended.ended = ended.enqueued + 1;
    EXPECT_EQ(
        flight_verdict({rank(0, {collective(4, 60, true), collective(5, 40, true)}),
                        rank(1, {ended, collective(5, 40, true, "all_to_all"), collective(6, 40)})},
                       kNow),
        verdict);
  }
}

// A rank that only receives a text knows no length.
TEST(FlightVerdict, SizesOfTextsMayDiffer) {
  const auto text = [](int64_t bytes) {
    return collective(4, 50, false, "broadcast of text", bytes);
  };
  EXPECT_TRUE(flight_verdict({rank(0, {text(90)}), rank(1, {text(0)})}, kNow)
                  .starts_with("all ranks came to broadcast of text 4"));
}

// Before what waits: who is lost. Of several, the one that has not run for longest; one that ended
// because it waited in vain is not the cause.
TEST(FlightVerdict, ALostProcessComesFirst) {
  const std::vector<FlightCollective> waits = {collective(1, 60)};
  EXPECT_EQ(flight_verdict({rank(0, waits), rank(1, {}, Life::kStopped)}, kNow),
            "rank 1 on node1 (process 101) is stopped, in data for 75 s");
  EXPECT_EQ(flight_verdict({rank(0, waits, Life::kGone), rank(2, {}, Life::kGone)}, kNow),
            "rank 2 on node1 (process 102) is gone, in data for 73 s");
  std::vector<FlightRank> ranks = {rank(0, waits, Life::kSilent), rank(1, waits, Life::kGone),
                                   rank(2, waits, Life::kGone), rank(3, waits, Life::kGone)};
  ranks[3].record.exit_code = static_cast<int64_t>(ExitCode::kTemporary);
  ranks[2].record.exit_code = static_cast<int64_t>(ExitCode::kOk);
  ranks[1].record.exit_code = static_cast<int64_t>(ExitCode::kOutOfMemory);
  EXPECT_EQ(flight_verdict(ranks, kNow),
            "rank 1 on node1 (process 101) ended with code 71, in data for 74 s");
  ranks[1].record.exit_code = static_cast<int64_t>(ExitCode::kTemporary);
  EXPECT_EQ(flight_verdict(ranks, kNow),
            "rank 0 on node1 (process 100) is silent, or its host, in data for 75 s");
}

// A launcher wakes it to end it: then it may end by itself, or be killed after others.
TEST(FlightVerdict, ARankThatStoodStillIsTheCause) {
  std::vector<FlightRank> ranks = {rank(0, {}, Life::kGone), rank(1, {}, Life::kGone)};
  FlightRecord& stood = ranks[1].record;
  const auto verdict = [&](int64_t code, int64_t has_run_for) {
    stood.exit_code = code;
    stood.beat = ranks[0].record.beat + kSecond;
    stood.stood_to = stood.beat - has_run_for * kSecond;
    stood.stood_from = stood.stood_to - 4 * kSecond;
    return flight_verdict(ranks, kNow);
  };
  const auto kWaited = static_cast<int64_t>(ExitCode::kTemporary);
  EXPECT_EQ(verdict(kWaited, 9),
            "rank 1 on node1 (process 101) stood still, then ended, in data for 76 s");
  EXPECT_EQ(verdict(kFlightRuns, 1), "rank 1 on node1 (process 101) is gone, in data for 76 s");
  EXPECT_EQ(verdict(kWaited, 10), "rank 0 on node1 (process 100) is gone, in data for 75 s");
}

// It has joined the others meanwhile.
TEST(FlightVerdict, ARankThatWasWokenIsTheCause) {
  const std::vector<FlightCollective> waits = {collective(1, 60)};
  std::vector<FlightRank> ranks = {rank(0, waits), rank(1, waits)};
  const auto verdict = [&](int64_t stood_for, int64_t has_run_for) {
    FlightRecord& woken = ranks[1].record;
    woken.stood_to = woken.beat - has_run_for * kSecond;
    woken.stood_from = woken.stood_to - stood_for * kSecond;
    return flight_verdict(ranks, kNow);
  };
  EXPECT_EQ(verdict(30, 1), "rank 1 on node1 (process 101) stood still for 30 s, in data for 75 s");
  EXPECT_TRUE(verdict(29, 1).starts_with("all ranks came to"));
  EXPECT_TRUE(verdict(30, 36).starts_with("all ranks came to"));
}

// Ranks end alike after an error that they agreed on, or when they were asked to stop.
TEST(FlightVerdict, RanksThatEndedAlikeAreNotLost) {
  std::vector<FlightRank> ranks = {rank(0, {}, Life::kGone), rank(1, {}, Life::kGone)};
  ranks[0].record.exit_code = ranks[1].record.exit_code =
      static_cast<int64_t>(ExitCode::kNumerical);
  EXPECT_EQ(flight_verdict(ranks, kNow), "");
  ranks[1].record.exit_code = kFlightRuns;
  EXPECT_NE(flight_verdict(ranks, kNow), "");
}

// A record holds the last 1024 collectives, and shows no half of one.
TEST(FlightRank, CollectivesAreTheLastWholeOnes) {
  std::vector<FlightCollective> many;
  for (int64_t number = 1; number <= 1500; ++number) {
    many.push_back(collective(number, 1, true));
  }
  FlightRank one = rank(0, many);
  std::vector<FlightCollective> last = one.collectives();
  ASSERT_EQ(last.size(), FlightRecord::kCollectives);
  EXPECT_EQ(last.front().number, 1500 - 1023);
  EXPECT_EQ(last.back().number, 1500);
  ++one.record.last[1500 % FlightRecord::kCollectives].number_before;
  last = one.collectives(2);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last.back().number, 1499);
}

// In a process of its own: keeps a record of rank 1 in the folder, whose last collective waits.
pid_t start_process(const std::string& folder, const std::function<void(FlightLog&)>& end) {
  int there[2] = {};
  EXPECT_EQ(pipe(there), 0);
  const pid_t process = fork();
  if (process == 0) {
    FlightLog log;
    log.keep_in(folder, getppid(), 1, 2, "node1");
    log.set_step(3);
    const uint64_t group = log.open_group("this run");
    const uint64_t first = log.enqueue(group, "this run", 1, "barrier", 1);
    log.begin(first);
    log.end(first);
    const ProfilerRange range("bucket 5");
    log.enqueue(group, "this run", 2, "all_gather", 64);
    EXPECT_EQ(write(there[1], "x", 1), 1);
    end(log);
    _exit(0);
  }
  char byte = 0;
  EXPECT_EQ(read(there[0], &byte, 1), 1);
  return process;
}

FlightRank read_one(const std::string& folder) {
  const std::vector<FlightRank> ranks = read_flight(folder, false);
  EXPECT_EQ(ranks.size(), 1u);
  const FlightRank& rank = ranks.at(0);
  EXPECT_EQ(rank.record.rank, 1);
  EXPECT_EQ(rank.record.step, 3);
  EXPECT_STREQ(rank.record.range, "bucket 5");
  const std::vector<FlightCollective> all = rank.collectives();
  EXPECT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].ended >= all[0].begun && all[0].begun >= all[0].enqueued &&
              all[0].enqueued > 0);
  EXPECT_EQ(all[1].text(), "all_gather 2 of this run (bucket 5, 64 bytes) of step 3");
  EXPECT_EQ(all[1].ended, 0);
  return rank;
}

TEST(FlightLog, OutlivesItsProcess) {
  const TemporaryFolder root;
  const std::string folder = root.path() + "/flight", shared = shared_flight_path(getpid(), 1);
  const pid_t process = start_process(folder, [](FlightLog&) { pause(); });
  kill(process, SIGSTOP);
  waitpid(process, nullptr, WUNTRACED);
  EXPECT_EQ(read_one(folder).state(), "is stopped");
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  EXPECT_EQ(read_one(folder).state(), "is gone");
  EXPECT_TRUE(std::filesystem::exists(shared));
  {  // as if it had died long ago
    std::fstream file(shared, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(offsetof(FlightRecord, beat)).write("\1\0\0\0\0\0\0\0", 8);
  }
  // The next one removes what it left, and its own at the end.
  const pid_t next = start_process(folder, [](FlightLog& log) { log.close(ExitCode::kStopped); });
  waitpid(next, nullptr, 0);
  EXPECT_FALSE(std::filesystem::exists(shared));
  EXPECT_EQ(read_one(folder).state(), "ended with code 85");
}

// A process that has just been woken reads its own record before its thread has run again.
TEST(FlightLog, AProcessThatDidNotBeatStoodStill) {
  const TemporaryFolder root;
  const std::string shared = shared_flight_path(getpid(), 1);
  const int64_t now = flight_now();
  FlightRank woken = rank(1, {collective(1, 60)});
  woken.record.start = woken.record.process = getpid();
  woken.record.beat = now - 40 * kSecond;
  set(woken.record.home, flight_home().c_str());
  const std::string bytes(reinterpret_cast<const char*>(&woken.record), sizeof woken.record);
  root.write("rank-0001", bytes);
  // The file is written less often than the process beats.
  EXPECT_EQ(read_flight(root.path(), false).at(0).record.stood_to, 0);
  std::ofstream(shared, std::ios::binary) << bytes;
  const FlightRecord record = read_flight(root.path(), false).at(0).record;
  EXPECT_EQ(record.stood_from, now - 40 * kSecond);
  EXPECT_GE(record.stood_to, now);
  std::filesystem::remove(shared);
}

TEST(FlightLog, RanksOfAnOlderStartAreLeftOut) {
  const TemporaryFolder root;
  for (const int number : {0, 1}) {
    FlightRecord record = rank(number, {}).record;
    record.start = 5 - number;
    root.write(str("rank-000", number), {reinterpret_cast<const char*>(&record), sizeof record});
  }
  EXPECT_EQ(read_flight(root.path(), false).size(), 1U);
}

TEST(FlightLog, WhatIsNoRecordIsRefused) {
  const TemporaryFolder root;
  root.write("rank-0000", "TANDEMF1");
  EXPECT_THROW(read_flight(root.path(), false), Error);
  std::string zeros(sizeof(FlightRecord), '\0');
  root.write("rank-0000", zeros);
  EXPECT_THROW(read_flight(root.path(), false), Error);
  std::filesystem::remove(root.path() + "/rank-0000");
  std::filesystem::create_directory(root.path() + "/rank-0001");
  EXPECT_THROW(read_flight(root.path(), false), Error);
}

// Both places may hold what strangers put there.
TEST(FlightLog, PipesAreNeverWaitedFor) {
  const TemporaryFolder root;
  const std::string file = flight_path(root.path(), 1);
  const std::string shared = str("/dev/shm/tandem-flight-pipe-", getpid());
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  ASSERT_EQ(mkfifo(shared.c_str(), 0600), 0);
  EXPECT_THROW(read_flight(root.path(), false), Error);
  const int reader = open(file.c_str(), O_RDONLY | O_NONBLOCK);  // a writer could open it now
  ::testing::internal::CaptureStderr();
  const pid_t process =
      start_process(root.path(), [](FlightLog& log) { log.close(ExitCode::kOk); });
  int status = -1;
  waitpid(process, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(
      ::testing::internal::GetCapturedStderr().starts_with("tandem: not recorded: " + file));
  char byte = 0;
  EXPECT_EQ(read(reader, &byte, 1), 0);
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(shared));
  close(open(shared.c_str(), O_RDWR));  // wakes a program that does wait
  std::filesystem::remove(shared);
}

// Numbers and texts of a damaged record may be anything. Two ranks wait for a third.
TEST(FlightLog, DamagedRecordsGiveSomeVerdict) {
  const TemporaryFolder root;
  std::mt19937 random(1);
  const auto pick = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random);
  };
  for (int round = 0; round < 100; ++round) {
    for (int number = 0; number < 3; ++number) {
      FlightRank one = rank(number, {collective(1, 9, true), collective(2, 5)});
      char* bytes = reinterpret_cast<char*>(&one.record);
      for (int flips = round; flips > 0; --flips) {
        const size_t head = offsetof(FlightRecord, last) + 3 * sizeof(FlightCollective);
        bytes[8 + pick(head - 8)] ^= static_cast<char>(1 + pick(255));
      }
      root.write(str("rank-000", number), {bytes, sizeof one.record});
    }
    const std::vector<FlightRank> ranks = read_flight(root.path(), false);
    const std::string verdict = flight_verdict(ranks, kNow);
    EXPECT_TRUE(round > 0 || verdict.starts_with("all ranks came to all_reduce 2")) << verdict;
    for (const FlightRank& one : ranks) {
      EXPECT_LE(one.collectives().size(), FlightRecord::kCollectives);
      EXPECT_NE(one.state() + one.place(kNow), "");
    }
  }
}

}  // namespace
}  // namespace tandem::testing

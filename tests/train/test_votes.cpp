// What ranks agree on before a step, above all whether they called the same collectives. Runs on
// every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "src/train/votes.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

using Calls = std::vector<std::pair<const char*, int64_t>>;  // kinds and bytes

const Calls kUsual = {
    {"reduce_scatter", 1024}, {"sum", 32}, {"all_gather", 1024}, {"all_gather", 64}};

// The hash is that of a log of its own, which knows nothing of this job's collectives.
uint32_t hash_of(const Calls& calls) {
  static auto& log = *new FlightLog;
  for (const auto& [kind, bytes] : calls) {
    log.enqueue(1, "this run", 1, kind, bytes);
  }
  return log.take_calls();
}

Mesh mesh_of(const MeshShape& shape) {
  Control& job = test_world().control();
  return Mesh(job, test_world().collectives(), test_memory(),
              std::vector<int>(static_cast<size_t>(job.size()), 0), Sharing::kWorld, shape);
}

// All ranks call the usual, but one; all of them must come to the same verdict.
bool is_alike(const Mesh& mesh, int odd, const Calls& calls) {
  const bool is_odd = mesh.job().rank() == odd;
  const bool alike = decide({.targets = 1, .calls = hash_of(is_odd ? calls : kUsual)}, mesh).alike;
  const double own = alike ? 1 : 0;
  const double all = mesh.job().sum({&own, 1})[0];
  EXPECT_TRUE(all == 0 || all == mesh.job().size());
  return alike;
}

TEST(Votes, EqualCallsAreAlike) {
  const Mesh mesh = mesh_of({});
  EXPECT_TRUE(is_alike(mesh, -1, {}));
  EXPECT_TRUE(decide({.targets = 1, .calls = hash_of({})}, mesh).alike);
  // Texts and numbers of control messages may differ.
  EXPECT_TRUE(is_alike(mesh, 0,
                       {{"broadcast of text", 7},
                        {"reduce_scatter", 1024},
                        {"all_gather", 1024},
                        {"all_gather", 64}}));
}

TEST(Votes, ADifferenceIsSeenByAllRanks) {
  const Mesh mesh = mesh_of({});
  const bool alone = mesh.job().size() == 1;
  for (const int odd : {0, mesh.job().size() - 1}) {
    for (const Calls& calls :
         {Calls{{"all_reduce", 1024}, {"all_gather", 1024}, {"all_gather", 64}},      // kind
          Calls{{"reduce_scatter", 1024}, {"all_gather", 1024}, {"all_gather", 68}},  // bytes
          Calls{{"all_gather", 1024}, {"reduce_scatter", 1024}, {"all_gather", 64}},  // order
          Calls{{"reduce_scatter", 1024}, {"all_gather", 1024}},                      // one less
          Calls{}}) {
      EXPECT_EQ(is_alike(mesh, odd, calls), alone);
    }
  }
}

// Stages hold other blocks, so only the ranks of one are compared. All ranks hear of it.
TEST(Votes, EachStageIsComparedApart) {
  if (test_world().size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for (const MeshShape& shape : {MeshShape{.pipeline = 2, .data = 2}, MeshShape{.islands = 2},
                                 MeshShape{.pipeline = 2, .data = 1, .tensor = 2}}) {
    const Mesh mesh = mesh_of(shape);
    EXPECT_EQ(mesh.stages(), 2);
    EXPECT_EQ(mesh.stage_number(), mesh.job().rank() / 2);
    const auto alike = [&](const std::array<uint32_t, 4>& calls) {
      return decide({.targets = 1, .calls = calls[mesh.job().rank()]}, mesh).alike;
    };
    EXPECT_TRUE(alike({5, 5, 9, 9}));
    EXPECT_FALSE(alike({5, 9, 9, 9}));
    EXPECT_FALSE(alike({5, 5, 9, 5}));
    EXPECT_FALSE(alike({5, 9, 5, 9}));
  }
  EXPECT_FALSE(decide({.targets = 1, .calls = test_world().rank() < 2 ? 5U : 9U},
                      mesh_of({.data = 2, .tensor = 2}))
                   .alike);
}

// The number of targets of a data group is not taken for one of the hashes, nor they for it.
TEST(Votes, TargetsAreCountedApart) {
  const Mesh mesh = mesh_of({});
  const Decision none = decide({.targets = 0, .calls = 5}, mesh);
  EXPECT_TRUE(none.alike && none.empty);
  const Decision some = decide({.targets = 3, .calls = 0}, mesh);
  EXPECT_TRUE(some.alike && !some.empty);
  EXPECT_EQ(some.targets, 3 * mesh.job().size());
}

// Sums of f64 are exact up to the largest stage. Their products are not: rounded, those of 6000
// ranks would often hide one rank that differs by 1.
TEST(Votes, OneOfManyRanksIsSeen) {
  constexpr uint32_t kLargest = (1U << FlightLog::kCallsBits) - 1;
  EXPECT_EQ(kMostRanksAlike, 8192);
  for (const int ranks : {6000, kMostRanksAlike}) {
    for (const uint32_t usual : {0U, 1U, kLargest - 3, kLargest - 2, kLargest - 1, kLargest}) {
      for (const uint32_t odd : {0U, 1U, 2U, kLargest - 3, kLargest - 2, kLargest - 1, kLargest}) {
        double sum = 0, squares = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const double h = rank == ranks - 1 ? odd : usual;
          sum += h;
          squares += h * h;
        }
        EXPECT_EQ(are_alike(ranks, sum, squares), odd == usual) << usual << ", " << odd;
      }
    }
  }
}

// Neighbouring sizes and all kinds have hashes of their own; the order counts.
TEST(FlightLog, HashesOfCallsDiffer) {
  std::map<uint32_t, int> seen;
  int pairs = 0, hashes = 0;
  for (const char* kind : {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"}) {
    for (int64_t bytes = 0; bytes < 4 * 128; bytes += 4) {
      const uint32_t hash = hash_of({{kind, bytes}});
      EXPECT_LT(hash, 1U << FlightLog::kCallsBits);
      pairs += seen[hash]++;
      ++hashes;
    }
  }
  EXPECT_EQ(hashes, 512);
  EXPECT_LE(pairs, 2);  // 512 * 511 / 2^21: 0.1 are expected
}

}  // namespace
}  // namespace tandem::testing

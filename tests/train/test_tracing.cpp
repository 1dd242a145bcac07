#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "src/train/tracing.h"

namespace tandem {
namespace {

// Rank r is busy for r * 29 modulo `ranks` seconds; two ranks share a host.
std::set<int> shown_of(int ranks) {
  std::vector<double> seconds;
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank) {
    seconds.push_back(rank * 29 % ranks);
    hosts.push_back(std::to_string(rank / 2));
  }
  return shown_ranks(seconds, hosts);
}

TEST(Tracing, ATraceShowsUpTo64RanksWhole) {
  for (const int ranks : {1, 2, 64}) {
    std::vector<int> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(shown_of(ranks), std::set<int>(all.begin(), all.end()));
  }
}

// Modulo 65, 29 * 28 is 32 and 29 * 56 is 64.
TEST(Tracing, OfMoreItShowsTheFirstHostAndThreeOfThePaces) {
  EXPECT_EQ(shown_of(65), (std::set<int>{0, 1, 28, 56}));
}

}  // namespace
}  // namespace tandem

// Flight records: src/trace/flight_verdict.cpp src/trace/flight_log.cpp
#include <string>

#include "src/trace/flight_verdict.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

// The beginnings of two records, as long as the input allows; zeros follow.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input = fuzz::text_of(data, size);
  for (int rank = 0; rank < 2; ++rank) {
    std::string record = input.substr(rank * (size / 2), size / 2);
    record.resize(sizeof(FlightRecord));
    fuzz::folder().write(flight_path("", rank), record);
  }
  fuzz::accepts(ExitCode::kData, [&] {
    const std::vector<FlightRank> ranks = read_flight(fuzz::folder().path(), false);
    for (const int64_t now : {int64_t{0}, flight_now()}) {
      flight_verdict(ranks, now);
      for (const FlightRank& rank : ranks) {
        rank.state(), rank.place(now);
        for (const FlightCollective& collective : rank.collectives()) {
          collective.text(), collective.time(now);
        }
      }
    }
  });
  return 0;
}

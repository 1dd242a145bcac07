#include "src/commands/inspect_flight.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/report/console.h"
#include "src/trace/flight_verdict.h"

namespace tandem {

namespace {

constexpr size_t kShownCollectives = 20;  // of each rank

using Json = nlohmann::ordered_json;

Json json_of(const FlightRank& rank, int64_t now) {
  const FlightRecord& record = rank.record;
  Json json = {{"rank", record.rank},         {"host", visible(record.host)},
               {"process", record.process},   {"state", rank.state()},
               {"step", record.step},         {"place", visible(rank.place(now))},
               {"collectives", Json::array()}};
  for (const FlightCollective& c : rank.collectives(kShownCollectives)) {
    json["collectives"].push_back({{"kind", visible(c.kind)},
                                   {"number", c.number},
                                   {"ranks", visible(c.ranks)},
                                   {"purpose", visible(c.purpose)},
                                   {"bytes", c.bytes},
                                   {"step", c.step},
                                   {"enqueued_ns", c.enqueued},
                                   {"begun_ns", c.begun},
                                   {"ended_ns", c.ended}});
  }
  return json;
}

void print(const FlightRank& rank, int64_t now) {
  const FlightRecord& record = rank.record;
  show("rank %d on %s (process %ld) %s, step %ld, %s\n", record.rank, visible(record.host).c_str(),
       record.process, rank.state().c_str(), record.step, visible(rank.place(now)).c_str());
  for (const FlightCollective& collective : rank.collectives(kShownCollectives)) {
    show("  %s %s\n", visible(collective.text()).c_str(), collective.time(now).c_str());
  }
}

}  // namespace

void inspect_flight(const std::string& folder, bool as_json) {
  const int64_t now = flight_now();
  const auto ranks =
      std::filesystem::exists(folder) ? read_flight(folder, true) : std::vector<FlightRank>();
  if (ranks.empty()) {
    fail_data(folder, ": this run has no flight records");
  }
  const std::string verdict = visible(flight_verdict(ranks, now));
  if (as_json) {
    const Json all = mapped(ranks, [=](const FlightRank& rank) { return json_of(rank, now); });
    show("%s\n", Json{{"verdict", verdict}, {"ranks", all}}.dump().c_str());
    return;
  }
  for (const FlightRank& rank : ranks) {
    print(rank, now);
  }
  show("%s\n", verdict.empty() ? "no rank waits for another" : verdict.c_str());
}

}  // namespace tandem

#include "src/report/trace/trace_account.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/mapped.h"
#include "src/trace/flight_log.h"

namespace tandem {

namespace {

using Key = std::pair<uint64_t, int64_t>;  // group and number of a collective

// The rank that began a collective last, and when, by the clock of rank 0.
struct Last {
  int rank = -1;
  int64_t at = 0;
};

TraceSpan intersection(TraceSpan a, TraceSpan b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

double seconds(TraceSpan span) { return static_cast<double>(span.length()) * 1e-9; }

// What one rank did in one step, by the clock of rank 0.
class OneStep {
 public:
  OneStep(const Trace& trace, TraceSpan step) {
    const auto inside = [&](TraceSpan span) {
      return intersection({trace.by_rank_0(span.begin), trace.by_rank_0(span.end)},
                          {trace.by_rank_0(step.begin), trace.by_rank_0(step.end)});
    };
    for (const Trace::Piece& piece : trace.pieces) {
      if (const TraceSpan span = inside(piece.span); span.length() > 0) {
        pieces_.push_back({span, piece.phase, {}});
      }
    }
    for (const Trace::Collective& one : trace.collectives) {
      if (const TraceSpan span = inside(one.span); span.length() > 0) {
        collectives_.push_back(one);
        collectives_.back().span = span;
      }
    }
    std::ranges::stable_sort(collectives_, {}, [](const auto& one) { return one.span.begin; });
  }

  // A rank that is the last itself has begun the collective before it waits.
  std::map<int, double> waiting(const std::map<Key, Last>& last) const {
    std::map<int, double> waiting;
    for (const Trace::Piece& piece : pieces_) {
      if (piece.phase != Phase::kCommunication) {
        continue;
      }
      int64_t at = piece.span.begin;
      for (const Trace::Collective& one : collectives_) {
        const TraceSpan waited = intersection(one.span, {at, piece.span.end});
        if (waited.length() == 0) {
          continue;
        }
        at = waited.end;
        const Last& came = last.at({one.group, one.number});
        const TraceSpan before = intersection(waited, {waited.begin, came.at});
        if (before.length() > 0) {
          waiting[came.rank] += seconds(before);
        }
      }
    }
    return waiting;
  }

  // The time in which any tensor collective is under way, and the compute stream computes, or does
  // anything.
  double together(bool only_hidden) const {
    double sum = 0;
    int64_t at = INT64_MIN;
    for (const Trace::Collective& one : collectives_) {
      const TraceSpan rest = intersection(one.span, {at, INT64_MAX});
      if (!moves_tensors(one.kind) || rest.length() == 0) {
        continue;
      }
      at = rest.end;
      sum += only_hidden ? 0 : seconds(rest);
      for (const Trace::Piece& piece : pieces_) {
        const bool computes = piece.phase == Phase::kCompute || piece.phase == Phase::kOptimizer;
        sum += only_hidden && computes ? seconds(intersection(rest, piece.span)) : 0;
      }
    }
    return sum;
  }

 private:
  std::vector<Trace::Piece> pieces_;
  std::vector<Trace::Collective> collectives_;  // in the order of their begin
};

std::map<Key, Last> last_of(const std::vector<Trace>& traces) {
  std::map<Key, Last> last;
  for (const Trace& trace : traces) {
    for (const Trace::Collective& one : trace.collectives) {
      Last& came = last[{one.group, one.number}];
      const int64_t at = trace.by_rank_0(one.span.begin);
      if (came.rank < 0 || at > came.at) {
        came = {trace.rank, at};
      }
    }
  }
  return last;
}

double of(const TraceAccount::Rank& rank, Phase phase) {
  return rank.parts[static_cast<size_t>(phase)];
}

void add(const TraceAccount::Rank& from, TraceAccount::Rank& to) {
  std::ranges::transform(to.parts, from.parts, to.parts.begin(), std::plus());
  for (const auto& [rank, waited] : from.waiting_s) {
    to.waiting_s[rank] += waited;
  }
  to.together_s += from.together_s;
  to.hidden_s += from.hidden_s;
}

std::string table(const std::string& title, const std::vector<TraceAccount::Rank>& ranks) {
  std::string text = title + "\n";
  text += "  rank    compute  optimizer       data     saving    waiting   transfer   hidden\n";
  for (const TraceAccount::Rank& rank : ranks) {
    const auto ms = [](double s) { return s * 1e3; };
    text += formatted("  %4d %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f", rank.rank,
                      ms(of(rank, Phase::kCompute)), ms(of(rank, Phase::kOptimizer)),
                      ms(of(rank, Phase::kData)), ms(of(rank, Phase::kSaving)), ms(rank.waiting()),
                      ms(rank.transfer()));
    text += rank.together_s > 0 ? formatted(" %6.1f %%", 100 * rank.hidden_s / rank.together_s)
                                : "        -";
    text +=
        rank.waits_most_for() < 0 ? "\n" : str("   waits for rank ", rank.waits_most_for(), "\n");
  }
  return text;
}

nlohmann::ordered_json json_of(const TraceAccount::Rank& rank) {
  nlohmann::ordered_json json = {{"rank", rank.rank}};
  for (const Phase phase : kStepPhases) {
    json[str(name_of(phase), "_ms")] = of(rank, phase) * 1e3;
  }
  json["waiting_ms"] = rank.waiting() * 1e3;
  json["transfer_ms"] = rank.transfer() * 1e3;
  json["collectives_ms"] = rank.together_s * 1e3;
  json["hidden_ms"] = rank.hidden_s * 1e3;
  json["waiting_for_ms"] = nlohmann::ordered_json::object();
  for (const auto& [other, waited] : rank.waiting_s) {
    json["waiting_for_ms"][str(other)] = waited * 1e3;
  }
  return json;
}

}  // namespace

double TraceAccount::Rank::waiting() const {
  return std::accumulate(waiting_s.begin(), waiting_s.end(), 0.0,
                         [](double sum, const auto& each) { return sum + each.second; });
}

double TraceAccount::Rank::transfer() const {
  return std::max(0.0, of(*this, Phase::kCommunication) - waiting());
}

int TraceAccount::Rank::waits_most_for() const {
  const auto most = std::ranges::max_element(waiting_s, {}, [](const auto& w) { return w.second; });
  return most == waiting_s.end() ? -1 : most->first;
}

std::vector<TraceAccount::Rank> TraceAccount::total() const {
  std::vector<Rank> total;
  for (const Step& step : steps) {
    total.resize(step.ranks.size());
    for (size_t i = 0; i < total.size(); ++i) {
      total[i].rank = step.ranks[i].rank;
      add(step.ranks[i], total[i]);
    }
  }
  return total;
}

TraceAccount account_of(const std::vector<Trace>& traces) {
  TraceAccount account;
  const std::map<Key, Last> last = last_of(traces);
  for (const Trace& trace : traces) {
    account.steps.resize(traces[0].steps.size());
    if (trace.steps.size() != account.steps.size()) {
      fail_data("rank ", trace.rank, " has traced other steps than rank ", traces[0].rank);
    }
    for (size_t i = 0; i < trace.steps.size(); ++i) {
      const OneStep step(trace, trace.steps[i].span);
      account.steps[i].number = trace.steps[i].number;
      account.steps[i].ranks.push_back({.rank = trace.rank,
                                        .parts = trace.steps[i].parts,
                                        .waiting_s = step.waiting(last),
                                        .together_s = step.together(false),
                                        .hidden_s = step.together(true)});
    }
    const int64_t bound = std::max(trace.first.bound, trace.last.bound);
    account.clocks_agree_s = std::max(account.clocks_agree_s, static_cast<double>(bound) * 1e-9);
  }
  return account;
}

std::string text_of(const TraceAccount& account) {
  std::string text = "milliseconds\n";
  for (const TraceAccount::Step& step : account.steps) {
    text += table(str("step ", step.number), step.ranks);
  }
  text += table(str("all ", account.steps.size(), " steps"), account.total());
  return text +
         formatted("the clocks of all ranks agree within %.0f us\n", account.clocks_agree_s * 1e6);
}

std::string json_of(const TraceAccount& account) {
  nlohmann::ordered_json json = {{"clocks_agree_within_us", account.clocks_agree_s * 1e6}};
  for (const TraceAccount::Step& step : account.steps) {
    const auto json_of_rank = [](const TraceAccount::Rank& rank) { return json_of(rank); };
    json["steps"].push_back({{"step", step.number}, {"ranks", mapped(step.ranks, json_of_rank)}});
  }
  return json.dump();
}

}  // namespace tandem

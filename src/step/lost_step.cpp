#include "src/step/lost_step.h"

#include <algorithm>
#include <cmath>

#include "src/core/formatted.h"

namespace tandem {

namespace {

// "rank 1", or "rank 0 (and 3 others)".
std::string rank_and_others(int64_t rank, int64_t others) {
  return str("rank ", rank, others == 0 ? "" : str(" (and ", counted(others, "other"), ")"));
}

// The place of the lowest rank that has one.
std::string place_of(const std::vector<std::string>& places) {
  const auto is_place = [](const std::string& text) { return !text.empty(); };
  const auto lowest = std::ranges::find_if(places, is_place);
  if (lowest == places.end()) {
    return "each gradient of each rank is finite, but their sum is not";
  }
  return str(rank_and_others(lowest - places.begin(), std::ranges::count_if(places, is_place) - 1),
             ", ", *lowest);
}

// The losses of the first run are all that it left of the single ranks.
std::string suspect_of(const StepRecord::Copy& first, int64_t micro_batches) {
  const std::span<const double> losses = first.figures.as<double>().subspan(1);
  std::vector<int64_t> lost;  // the first micro-batch of each rank whose loss is not finite
  for (int64_t i = 0; i < std::ssize(losses); ++i) {
    const bool is_new = lost.empty() || lost.back() / micro_batches != i / micro_batches;
    if (!std::isfinite(losses[static_cast<size_t>(i)]) && is_new) {
      lost.push_back(i);
    }
  }
  if (lost.empty()) {
    return "no rank is known, because all losses were finite";
  }
  return str("the loss of ", rank_and_others(lost[0] / micro_batches, std::ssize(lost) - 1),
             ", micro-batch ", lost[0] % micro_batches, " was not finite");
}

}  // namespace

LostStep agree_on_lost_step(Control& control, const std::optional<FiniteCheck::Place>& place,
                            const StepRecord::Copy& first, const StepRecord::Copy& second,
                            int64_t micro_batches) {
  const std::vector<std::string> places = control.all_gather(place ? place->text() : "");
  if (std::isfinite(second.step_state().squared_norm)) {
    return {.text = "not when the step was run once more, so the hardware is suspect: " +
                    suspect_of(first, micro_batches),
            .happens_again = false};
  }
  return {.text = place_of(places) + "; again when the step was run once more, so data or numerics",
          .happens_again = true};
}

}  // namespace tandem

#include "src/device/ranks/wire_count.h"

namespace tandem {

std::string_view name_of(Traffic traffic) {
  constexpr std::array<std::string_view, kTraffics> kNames = {
      "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "control"};
  return kNames[static_cast<size_t>(traffic)];
}

WireCount::Bytes WireCount::payload() const {
  Bytes sum;
  for (size_t i = 0; i < by.size(); ++i) {
    if (i != static_cast<size_t>(Traffic::kControl)) {
      sum.inside += by[i].inside;
      sum.between += by[i].between;
    }
  }
  return sum;
}

WireCount& WireCount::add(const WireCount& other, int64_t times) {
  for (size_t i = 0; i < by.size(); ++i) {
    by[i].inside += times * other.by[i].inside;
    by[i].between += times * other.by[i].between;
  }
  collectives += times * other.collectives;
  return *this;
}

}  // namespace tandem

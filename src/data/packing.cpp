#include "src/data/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "src/core/error.h"
#include "src/data/sampler.h"

namespace tandem {
namespace {

constexpr int64_t kGroup = 16, kPoolGroups = 64;  // documents, and groups of them

// Takes the pieces of one window out of a sorted pool.
std::vector<PackedPiece> take_window(int64_t room, bool cuts, std::vector<PackedPiece>* pool) {
  std::vector<PackedPiece> window;
  while (room > 0 && !pool->empty()) {
    const auto too_long = std::ranges::upper_bound(*pool, room, {}, &PackedPiece::length);
    if (too_long != pool->begin()) {
      window.push_back(*std::prev(too_long));
      pool->erase(std::prev(too_long));
    } else if (cuts) {
      const PackedPiece whole = pool->back();
      const PackedPiece rest{whole.length - room, whole.start + room};
      window.push_back({room, whole.start, true});
      pool->pop_back();
      pool->insert(std::ranges::upper_bound(*pool, rest), rest);
    } else {
      break;
    }
    room -= window.back().length;
  }
  return window;
}

}  // namespace

Packing::Packing(std::vector<int64_t> starts, const Options& options)
    : starts_(std::move(starts)), room_(options.context + 1), may_cut_(options.cuts) {
  require(!starts_.empty() && options.context > 0, "Packing: no starts, or no context");
  if (options.seed) {
    key_ = random_key(*options.seed, RandomUse::kSampleOrder, kPoolStream);
  }
  const int64_t documents = std::ssize(starts_) - 1;
  const int64_t pools = (documents + kGroup * kPoolGroups - 1) / (kGroup * kPoolGroups);
  first_windows_.resize(static_cast<size_t>(pools + 1));
  int64_t cuts = 0, tokens = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : cuts, tokens) if (pools > 1)
  for (int64_t pool = 0; pool < pools; ++pool) {
    const Plan all = plan(pool, std::numeric_limits<int64_t>::max());
    first_windows_[pool + 1] = all.windows;
    cuts += all.cuts;
    tokens += all.tokens;
  }
  std::partial_sum(first_windows_.begin(), first_windows_.end(), first_windows_.begin());
  cuts_ = cuts;
  padding_ = windows() * room_ - tokens;
}

std::vector<PackedPiece> Packing::window(int64_t index) const {
  require(index >= 0 && index < windows(), "Packing: no such window");
  const auto next = std::ranges::upper_bound(first_windows_, index);
  const int64_t pool = next - first_windows_.begin() - 1;
  return plan(pool, index - first_windows_[pool] + 1).last;
}

std::vector<PackedPiece> Packing::documents(int64_t pool) const {
  const int64_t all = std::ssize(starts_) - 1, groups = (all + kGroup - 1) / kGroup;
  std::vector<PackedPiece> documents;
  for (int64_t i = pool * kPoolGroups; i < std::min((pool + 1) * kPoolGroups, groups); ++i) {
    const int64_t group = key_ ? permuted(i, groups, *key_) : i;
    for (int64_t n = group * kGroup; n < std::min((group + 1) * kGroup, all); ++n) {
      documents.push_back({starts_[n + 1] - starts_[n], starts_[n]});
    }
  }
  return documents;
}

Packing::Plan Packing::plan(int64_t pool, int64_t limit) const {
  Plan plan;
  std::vector<PackedPiece> pieces = documents(pool);
  for (auto& [length, start, is_cut] : pieces) {
    const int64_t rest = may_cut_ ? (length - 1) % room_ + 1 : std::min(length, room_);
    const int64_t before = length - rest;
    const int64_t taken = std::min(may_cut_ ? before / room_ : 0, limit - plan.windows);
    if (taken > 0) {
      plan.windows += taken;
      plan.cuts += taken;
      plan.tokens += taken * room_;
      plan.last = {{room_, start + (taken - 1) * room_, true}};
    }
    plan.cuts += !may_cut_ && before > 0 ? 1 : 0;
    start += before;
    length = rest;
  }
  std::ranges::sort(pieces);
  for (; plan.windows < limit && !pieces.empty(); ++plan.windows) {
    plan.last = take_window(room_, may_cut_, &pieces);
    for (const PackedPiece& piece : plan.last) {
      plan.cuts += piece.is_cut ? 1 : 0;
      plan.tokens += piece.length;
    }
  }
  return plan;
}

}  // namespace tandem

#include "src/prepare/bad_records.h"

#include <cstdio>
#include <span>
#include <unordered_set>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/visible_text.h"
#include "src/io/content_hash.h"

namespace tandem {

void BadRecords::add(const std::string& place, const std::string& what) {
  ++count_;
  if (count_ <= kShown && printing_ == Printing::kOn) {
    std::fprintf(stderr, "bad record: %s: %s\n", visible(place).c_str(), visible(what).c_str());
  }
  if (count_ >= kShown && count_ > max_bad_) {
    give_up(" (reading stopped there)");
  }
}

void BadRecords::finish() const {
  if (count_ > kShown) {
    std::fprintf(stderr, "bad records: %lld more\n", static_cast<long long>(count_ - kShown));
  }
  if (count_ > max_bad_) {
    give_up("");
  }
}

void BadRecords::give_up(const char* when) const {
  fail_data(counted(count_, "bad record"), when, ", more than --max-bad ", max_bad_,
            "; nothing was written. Repair the input, or allow more with --max-bad");
}

void LeakedRecords::add(std::string_view text, bool is_val) {
  const Hash128 hash = hash_of(text);
  hashes_.append(&hash, sizeof hash);
  train_count_ += is_val ? 0 : 1;
}

int64_t LeakedRecords::count() const {
  constexpr int64_t kTogether = sizeof(Hash128) << 20;
  const auto shares = static_cast<uint64_t>(1 + hashes_.bytes() / kTogether);
  int64_t leaked = 0;
  for (uint64_t share = 0; share < shares; ++share) {
    std::unordered_set<Hash128, Hash128Hasher> train;
    hashes_.for_each_block<Hash128>([&](int64_t at, std::span<const Hash128> block) {
      for (const Hash128& hash : block) {
        const bool is_train = at++ < train_count_, is_here = hash.high % shares == share;
        if (is_here && is_train) {
          train.insert(hash);
        }
        leaked += is_here && !is_train && train.contains(hash) ? 1 : 0;
      }
    });
  }
  return leaked;
}

}  // namespace tandem

#include "src/prepare/bad_records.h"

#include <cstdio>

#include "src/core/counted.h"
#include "src/core/error.h"
#include "src/core/visible_text.h"

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

}  // namespace tandem

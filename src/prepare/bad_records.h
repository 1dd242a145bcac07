// Counts the corrupt or odd records of an input, and decides when to give up.
//
// The first kShown bad records are printed to standard error, one line each, with their place; the
// rest are only counted. Up to `max_bad` records are left out of the dataset. One more ends the
// command with exit code 3, but not before kShown records were bad or the input has ended, so that
// a person sees more than the first one.
//
// LeakedRecords counts the records that are in both splits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/prepare/temporary_file.h"

namespace tandem {

class BadRecords {
 public:
  static constexpr int64_t kShown = 20;

  // kOff is for reading an input a second time.
  enum class Printing { kOn, kOff };

  explicit BadRecords(int64_t max_bad, Printing printing = Printing::kOn)
      : max_bad_(max_bad), printing_(printing) {}

  // `place` names file and record ("a.jsonl:17"). Throws kData when there are too many.
  void add(const std::string& place, const std::string& what);

  // Call at the end of the input. Throws kData when there were too many.
  void finish() const;

  int64_t count() const { return count_; }

 private:
  [[noreturn]] void give_up(const char* when) const;

  int64_t max_bad_;
  Printing printing_;
  int64_t count_ = 0;
};

// Counts the validation records that are in the training part, too.
class LeakedRecords {
 public:
  // `folder`: for a temporary file.
  explicit LeakedRecords(const std::string& folder) : hashes_(folder) {}

  // All records of the training part come first.
  void add(std::string_view text, bool is_val);

  // Takes as many hashes into memory as fit there, and reads all again for the next ones.
  int64_t count() const;

 private:
  TemporaryFile hashes_;
  int64_t train_count_ = 0;
};

}  // namespace tandem

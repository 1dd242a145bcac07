// The size limit of one record of an input, so that a small hostile file cannot fill the memory.
#pragma once

#include <cstdint>

#include "src/core/error.h"

namespace tandem {

// A record is a line of JSON, a row of CSV, an entry of an archive, an image file, or what a .gz
// file unpacks to.
struct RecordLimit {
  int64_t mib = 64;
  const char* advice = "; --max-record-mb allows more";

  bool allows(int64_t bytes) const { return bytes <= mib << 20; }

  // Throws Error(kData) if the record is larger. `place` names it: the path, or path and line.
  template <class Place>
  void check(int64_t bytes, Place&& place) const {
    if (!allows(bytes)) {
      fail_data(place(), ": more than ", mib, " MiB in one record", advice);
    }
  }
};

// For files that no stranger made.
inline constexpr RecordLimit kNoRecordLimit{.mib = INT64_MAX >> 20};

}  // namespace tandem

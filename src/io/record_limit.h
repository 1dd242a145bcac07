// The size limits of files and of records in them, so that a small hostile file cannot fill the
// memory.
#pragma once

#include <cstdint>

#include "src/core/error.h"

namespace tandem {

// A record is a line of JSON, a row of CSV, an entry of an archive, an image file, or what a .gz
// file unpacks to.
struct RecordLimit {
  int64_t mib = 64;
  bool has_option = true;  // --max-record-mb

  bool allows(int64_t bytes) const { return bytes <= mib << 20; }

  // Throws Error(kData) if the record is larger. `place` names it: the path, or path and line.
  template <class Place>
  void check(int64_t bytes, Place&& place) const {
    if (!allows(bytes) && !has_option) {
      fail_data(place(), ": has over ", mib << 20,
                " bytes, more than Tandem reads; make sure that it is the right file");
    }
    if (!allows(bytes)) {
      fail_data(place(), ": more than ", mib, " MiB in one record; --max-record-mb allows more");
    }
  }
};

// The limit of a file that is held in memory as a whole, such as settings.
constexpr RecordLimit file_limit(int64_t mib = 16) { return {mib, false}; }

}  // namespace tandem

// Adds the op or the block to the message of an internal error.
#pragma once

#include <string>

#include "src/core/error.h"

namespace tandem {

// Runs `work` and returns its result. If `work` throws an internal error, adds place() to its
// message: "...; in PLACE".
template <class Place, class Work>
auto say_where(Place&& place, Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kInternal) {
      throw;
    }
    throw Error(ExitCode::kInternal, error.what(), "; in ", place());
  }
}

}  // namespace tandem

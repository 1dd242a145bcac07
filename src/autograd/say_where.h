// Internal errors that name the op or the block they come from.
#pragma once

#include <string>

#include "src/core/error.h"

namespace tandem {

// Runs `work` and returns its result. To the message of an internal error that it throws, place()
// is added: "...; in PLACE".
template <class Place, class Work>
auto say_where(Place&& place, Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kInternal) {
      throw;
    }
    throw Error(ExitCode::kInternal, str(error.what(), "; in ", place()));
  }
}

}  // namespace tandem

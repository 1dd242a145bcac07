// Ranks that were started differently must find out before they train, not by a hang.
#pragma once

#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "src/core/error.h"

namespace tandem {

// Collective: compares `text` over the ranks, with rank 0's as the reference. When any differs,
// every rank throws the same Error(code): it says what differs, which ranks, and shows the first
// line that differs on both sides.
void check_equal(Communicator& communicator, std::string_view what, const std::string& text,
                 ExitCode code = ExitCode::kConfig);

}  // namespace tandem

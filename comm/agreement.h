// Errors that all ranks see alike. What one rank finds wrong must end all of them with one message
// and one exit code, not with a hang.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "comm/control.h"
#include "src/core/error.h"

namespace tandem {

// Thrown on all ranks at the same place, so that the job can end in order, with rank 0 alone
// printing.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective: runs `work` on every rank. When it throws an Error on any of them, all throw an
// AgreedError with the code and message of the lowest such rank, which is named unless all ranks
// said the same.
void agree(Control& control, const std::function<void()>& work);

// Collective: runs `work` on rank 0 and returns its text on all ranks. An Error it throws is thrown
// on all as an AgreedError.
std::string on_root(Control& control, const std::function<std::string()>& work);

// Collective: compares `text` over the ranks, with rank 0's as the reference. When any differs,
// every rank throws the same AgreedError(code): it says what differs, which ranks, and shows the
// first line that differs on both sides.
void check_equal(Control& control, std::string_view what, const std::string& text,
                 ExitCode code = ExitCode::kConfig);

}  // namespace tandem

// Errors that end all ranks alike. When one rank finds an error, all ranks must stop with the same
// message and exit code; otherwise the others would hang.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "src/core/error.h"
#include "src/device/ranks/control.h"

namespace tandem {

// Thrown on all ranks at the same place in the program, so that the job can shut down cleanly and
// only rank 0 prints the message.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective: runs `work` on every rank. If it throws an Error on any rank, all ranks throw an
// AgreedError with the code and message of the lowest failing rank. The message names that rank,
// unless all ranks failed alike.
void agree(Control& control, const std::function<void()>& work);

// Collective: runs `work` on rank 0 and returns its text on all ranks. If `work` throws an Error,
// all ranks throw it as an AgreedError.
std::string on_root(Control& control, const std::function<std::string()>& work);

// Collective: compares every rank's `text` with rank 0's. If any differs, all ranks throw the same
// AgreedError(code). It says what differs and on which ranks, and shows the first differing line of
// both texts.
void check_equal(Control& control, std::string_view what, const std::string& text,
                 ExitCode code = ExitCode::kConfig);

}  // namespace tandem

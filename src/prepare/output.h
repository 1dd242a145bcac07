// The file that `tandem prepare` writes.
#pragma once

#include <string>
#include <vector>

namespace tandem {

// Throws Error(kConfig) when the output would replace one of the inputs, and when it is a file that
// exists and `force` is not set.
void check_output(const std::string& output, const std::vector<std::string>& inputs, bool force);

}  // namespace tandem

// What `tandem inspect RUN --trace` shows.
#pragma once

#include <string>

namespace tandem {

// Where the time of traced steps went, from the files of all ranks in a folder. Error kData if
// there are none, some are missing, or a file is no trace.
void inspect_trace(const std::string& folder, bool as_json);

}  // namespace tandem

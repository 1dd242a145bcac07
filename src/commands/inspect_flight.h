// What `tandem inspect RUN --flight` shows.
#pragma once

#include <string>

namespace tandem {

// What each rank did last, its last 20 collectives, and what a run that hangs waits for, from the
// flight records in a folder. Error kData if there are none, or a file is none.
void inspect_flight(const std::string& folder, bool as_json);

}  // namespace tandem

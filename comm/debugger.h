// Waiting for a debugger.
#pragma once

namespace tandem {

class World;

// Collective. If TANDEM_WAIT_RANK=N is set for rank 0, rank N prints its host and process id and
// waits here for a debugger or SIGCONT. Collectives of such a job never time out. Throws
// AgreedError(kConfig) if N is not a rank.
void hold_for_debugger(World& world);

}  // namespace tandem

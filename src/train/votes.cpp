#include "src/train/votes.h"

#include "src/core/visible_text.h"
#include "src/device/ranks/agreement.h"
#include "src/trace/flight_verdict.h"

namespace tandem {

namespace {

// Nothing is thrown: the collectives may never end, and to free the memory that they use would mean
// to wait for them. Rank 0 may look at the records of other hosts twice, for which the others have
// patience with what is elsewhere.
[[noreturn]] void end_unlike(int64_t step, World& world) {
  flight_log().enter("elsewhere");
  on_root(world.control(), [&] {
    complain(str("before step ", step, " the ranks called different collectives; this is a bug",
                 flight_verdict_of_job(true).text));
    return std::string();
  });
  world.abort(ExitCode::kInternal);
}

}  // namespace

void require_good(const Decision& agreed, bool has_batch, int64_t step, World& world) {
  if (!agreed.alike) {
    end_unlike(step, world);
  }
  if (agreed.empty && has_batch) {
    const std::string what = str("step ", step, ": the batch has no targets; every one is ignored");
    if (agreed.by_all) {
      throw AgreedError(ExitCode::kData, what);
    }
    fail(ExitCode::kData, what);
  }
}

}  // namespace tandem

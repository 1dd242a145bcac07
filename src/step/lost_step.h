// What is known of a step whose gradient was not finite, after it was run once more from the same
// inputs. The same bits come out, unless the hardware made an error.
#pragma once

#include "src/device/ranks/control.h"
#include "src/step/finite_check.h"
#include "src/step/step_record.h"

namespace tandem {

struct LostStep {
  std::string text;            // part of a message: where, whether again, and what to suspect
  bool happens_again = false;  // false: the second run was finite
};

// Collective. `place`: of the second run on this rank. `first`, `second`: the records of both runs.
// `micro_batches`: of each rank in a step.
LostStep agree_on_lost_step(Control& control, const std::optional<FiniteCheck::Place>& place,
                            const StepRecord::Copy& first, const StepRecord::Copy& second,
                            int64_t micro_batches);

}  // namespace tandem

"""Masters and optimizer state in the host's memory: what waits for what, and what is kept."""
from table import Mutant

BUILD = "simt"
WINDOW, STACK = "src/device/host/window.cpp", "src/device/host/stack.cpp"
UPDATE, STEP, VALUES = "src/step/offloaded_update.cpp", "src/step/training_step.cpp", "comm/sharding/param_values.cpp"
SCHEDULES = ["step.offload_np2", "step.offload_np3"]
MUTANTS = [
    Mutant("a run is brought before its last change has left", WINDOW, "    in_.wait(place(taken_ + kPlaces - 1).left);", "    ;", SCHEDULES),
    Mutant("a run is brought to a place that another has not left", WINDOW, "  in_.wait(next.left);\n", "", SCHEDULES),
    Mutant("a run is changed before it has arrived", WINDOW, "  work_.wait(place(taken_).arrived);\n", "", SCHEDULES),
    Mutant("a run leaves before it is changed", WINDOW, "  out_.wait(work_.record());\n", "", SCHEDULES),
    Mutant("an update does not wait for the verdict", UPDATE, "    work_.wait(compute_.record());", "    ;", SCHEDULES),
    Mutant("a block does not wait for the update of its values", VALUES,
           "  timeline_.wait(stream_, bucket.updated, Phase::kCopy);\n", "", SCHEDULES),
    Mutant("gradients are written before an update has read them", STEP, "    store_->values.await_all();  // then", "    // then",
           SCHEDULES),
    Mutant("values are gathered before they are updated", VALUES, "memory.updated.value_or(now)", "now", SCHEDULES),
    Mutant("a block's values are gathered before they are updated", VALUES,
           "        layout_.group(bucket).stream().wait(*memory.late);\n", "", SCHEDULES),
    Mutant("values are gathered before they are written, or into memory that is in use", VALUES,
           "  group.stream().wait(ready);\n", "", [*SCHEDULES, "step.zero_training_np2"]),
    Mutant("masters are saved while they leave", STEP,
           "    timeline().wait(stream_, offloaded_->rest(), Phase::kCopy);\n", "", SCHEDULES),
    Mutant("a forward pass waits for the whole update", STEP, "  store_->values.gather();\n  for (int attempt",
           "  store_->values.gather();\n  store_->values.await_all();\n  for (int attempt", ["step.offload_time"]),
    Mutant("an update is left out", STEP, "store_->values.outdate([this](int64_t bucket) { return offloaded_->update(bucket); });",
           "store_->values.outdate();", ["step.offload_np1"]),
    Mutant("a block's inputs leave before they are written", STACK, "  out_.wait(compute_.record());\n", "", SCHEDULES),
    Mutant("a block's inputs come back to memory that is in use", STACK, "  in_.wait(compute_.record());\n", "", SCHEDULES),
    Mutant("a block's inputs are freed before they have left", STACK, "    wait_(gone.copied);\n", "", SCHEDULES),
    Mutant("a block's inputs are used before they are back", STACK, "  wait_(newest.copied);\n", "", SCHEDULES),
    Mutant("the host writes where a block's inputs are read", STACK, "host_(host.scratch()),", "host_(host),", SCHEDULES),
    Mutant("an update of one shard does not know that it is to be skipped", "optim/flat_optimizer.cuh",
           "if (shared_by_all.apply != 0) {\n    update_chunk", "if (true) {\n    update_chunk", ["optim.adamw AdamW.UpdatesOneShard"]),
    Mutant("each rank of a host counts on all of its memory", "src/estimate/memory_check.cpp", "available_host_memory() / ranks_here",
           "available_host_memory() / std::min(ranks_here, 1)", ["simt.offload Offload.test_a_control_group_leaves_too_little_memory"]),
    Mutant("masters of the host are rounded where they rest", VALUES,
           "if (masters.device() == rounded.device()) {", "if (true) {", ["step.offload_np1"]),
]

"""Autograd and schedules."""
from table import Mutant

BUILD = "release"
MUTANTS = [
    Mutant("tape: a parameter is final after its first use is differentiated", "src/autograd/tape.cpp",
           "--uses_->count[parameter.id] == 0 && uses_->on_final", "--uses_->count[parameter.id] >= 0 && uses_->on_final",
           ["autograd.block", "comm.param_store_np1"]),
    Mutant("tape: a gradient that another op still reads is added to in place", "src/autograd/tape.cpp",
           "if (!grad.unique()) {", "if (false) {",
           ["layers.add"]),
    Mutant("block: a second forward pass observes batch statistics again", "src/autograd/block.cpp",
           "replay.recompute = replay.recomputing = true;", "replay.recompute = true;",
           ["train.batch_statistics_np1"]),
    Mutant("block: a segment of which nothing was used keeps its parameters waiting", "src/autograd/block.cpp",
           "      context.tape->release_held(context, held);\n      return;", "      return;",
           ["autograd.block"]),
    Mutant("block: the head is run again as well", "src/autograd/block.cpp",
           "context.recompute && i + 1 < blocks.size()", "context.recompute",
           ["autograd.block"]),
    Mutant("block: a recomputed block hands two tensors on, and its tape keeps both", "layers/transformer_block.cpp",
           "if (context.recompute) {", "if (false) {",
           ["autograd.block"]),
    Mutant("tape: a result that is also an input forgets the gradient it has", "src/autograd/tape.cpp",
           "Input(y[i]).add(context, dy[i]);", "y[i].slot()->grad = dy[i];",
           ["autograd.block"]),
    Mutant("schedule: the last step of the warm-up has the full rate already", "optim/schedule.cpp",
           "static_cast<double>(options.warmup_steps + 1);", "static_cast<double>(options.warmup_steps);",
           ["optim.schedule"]),
    Mutant("schedule: the decay counts the warm-up too", "optim/schedule.cpp",
           "static_cast<double>(step - options.warmup_steps) /", "static_cast<double>(step) /",
           ["optim.schedule"]),
]

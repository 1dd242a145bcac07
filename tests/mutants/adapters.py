"""Low-rank adapters."""
from table import Mutant

BUILD = "release"
LORA, FILES, RUNS = "layers/lora/lora.cpp", "src/weights/hugging_face/adapter_files.cpp", "weights.lora Lora."
MUTANTS = [
    Mutant("lora: the rank does not divide", LORA, "scale_(options.alpha / static_cast<double>(options.rank))", "scale_(options.alpha)", ["layers.lora"]),
    Mutant("lora: all targets read the first matrix A", LORA, "first_column += rank;", "first_column += 0 * rank;", ["layers.lora"]),
    Mutant("lora: A's gradient is written where it should be added", LORA, ".beta = static_cast<double>(da.beta)", ".beta = 0", ["layers.lora"]),
    Mutant("lora: x's gradient is written where it should be added", LORA, ".beta = static_cast<double>(dx.beta)", ".beta = 0", ["layers.lora"]),
    Mutant("lora: B's gradient is written where it should be added", LORA, ".beta = static_cast<double>(db.beta)", ".beta = 0", ["layers.lora"]),
    Mutant("lora: the layer below gets no gradient", LORA, "input(1).add(context, dy, dy_row_sums());", "", ["layers.lora"]),
    Mutant("lora: A starts only positive", "src/autograd/parameter.cpp", "(2.0 * uniform_from(words[i % 4]) - 1.0)", "uniform_from(words[i % 4])",
           ["layers.lora"]),
    Mutant("lora: the whole model is trained", "src/weights/make_model.cpp", "parameter->frozen = !is_adapter(parameter->name);",
           "parameter->frozen = false;", [RUNS + "test_checkpoints_hold_adapters_only"]),
    Mutant("lora: checkpoints hold the model, too", "src/settings/config.h", "value_or(model.lora.rank == 0)", "value_or(true)",
           [RUNS + "test_checkpoints_hold_adapters_only"]),
    Mutant("lora: a run does not go on from adapters", "src/train/checkpointer.cpp", "if (then.model.lora.rank == 0) {", "if (true) {",
           [RUNS + "test_a_run_goes_on_from_adapters"]),
    Mutant("lora: a run that is started again may have another alpha", "src/settings/changes.cpp", 'key.starts_with("lora.")', "false",
           [RUNS + "test_a_run_goes_on_from_adapters"]),
    Mutant("lora: rows of a stack are merged with the first rows of B", "src/weights/merged_adapters.cpp", "adapter.first * rank", "0",
           [RUNS + "test_queries_keys_and_values_of_a_gpt_are_one_layer"]),
    Mutant("lora: what peft's settings turn on is taken as off", FILES, "value == Json(false)", "value.is_boolean()",
           [RUNS + "test_folders_that_are_refused"]),
    Mutant("lora: initializations of peft that change the base are taken", FILES, '"gaussian", "eva"', '"gaussian", "pissa", "eva"',
           [RUNS + "test_folders_that_are_refused"]),
    Mutant("lora: target_modules may leave out tensors", FILES, "if (!is_named(module, targets)) {",
           "if (false && !is_named(module, targets)) {", [RUNS + "test_folders_that_are_refused"]),
    Mutant("lora: adapters are cut into shards", "src/weights/hugging_face/writer.cpp",
           "one_file.shard_bytes = std::numeric_limits<int64_t>::max();", "", [RUNS + "test_folders_that_are_refused"]),
    Mutant("lora: tensors of a folder that no layer has are overlooked", FILES, "if (!used.contains(entry.name)) {", "if (false) {",
           [RUNS + "test_folders_that_are_refused"]),
    Mutant("linear: a frozen weight's input is kept for backward", "layers/linear/linear.cpp", "op->x = weight.wanted() ? read : Tensor();", "op->x = read;",
           ["layers.frozen"]),
]

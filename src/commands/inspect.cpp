// tandem inspect: what is in a dataset, a checkpoint, a run or a folder of runs.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "src/commands/commands.h"
#include "src/commands/inspect_flight.h"
#include "src/commands/request.h"
#include "src/core/formatted.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/data/dataset.h"
#include "src/data/token_dataset.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/report/console.h"
#include "src/report/run_facts.h"
#include "src/report/run_report.h"
#include "src/report/trace/chrome_trace.h"
#include "src/report/trace/trace_account.h"
#include "src/weights/hugging_face/reader.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/piece_source.h"
#include "src/weights/run_directory.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr const char* kUsage =
    R"(tandem inspect: what is in a dataset, a checkpoint, a run or a folder of runs

  tandem inspect data/shakespeare_char.h5
  tandem inspect runs                       a table of all runs
  tandem inspect runs/NAME                  how far a run is, its losses, speed and checkpoints
  tandem inspect runs/NAME/checkpoints/step-00000100 --verify
  tandem inspect Llama-3.2-1B               a folder with a config.json and model.safetensors
)";

struct Request {
  bool tensors = false, ranks = false, verify = false, flight = false, trace = false, json = false,
       help = false;
};

// How many documents a text has, and how long they are.
std::string documents_text(const DatasetInfo& info) {
  if (!info.has_documents()) {
    return "where they begin is not known; `tandem prepare text` writes it now";
  }
  const TokenDataset dataset(info);
  std::vector<int64_t> lengths;
  int64_t train = 0;
  for (const Split split : {Split::kTrain, Split::kVal}) {
    train = std::ssize(lengths);
    const std::vector<int64_t> starts = dataset.document_starts(split);
    for (size_t i = 1; i < starts.size(); ++i) {
      lengths.push_back(starts[i] - starts[i - 1]);
    }
  }
  std::ranges::sort(lengths);
  return str(train, " to train, ", std::ssize(lengths) - train, " to validate; median ",
             lengths[(lengths.size() - 1) / 2], " tokens, longest ", lengths.back());
}

void inspect_data(const std::string& path, bool verify) {
  const DatasetInfo info = inspect_dataset(path);
  show("dataset     %s (%s)\n", path.c_str(), format_bytes(info.file_bytes).c_str());
  show("kind        %s\n", std::string(name_of(info.kind)).c_str());
  const char* unit = info.kind == DatasetKind::kText ? "tokens" : "images";
  show("train       %ld %s\nval         %ld %s\n", info.train_count, unit, info.val_count, unit);
  if (info.kind == DatasetKind::kText) {
    show("tokenizer   %s, %ld tokens in the vocabulary\n", visible(info.tokenizer).c_str(),
         info.vocab_size);
    show("documents   %s\n", documents_text(info).c_str());
  } else {
    show("image       %ld x %ld x %ld (channels, height, width)\n", info.channels, info.height,
         info.width);
    show("classes     %zu: %s\n", info.classes.size(), visible(joined(info.classes)).c_str());
  }
  show("hash        %s\n", info.content_hash.c_str());
  if (verify) {
    verify_content(info, true);
    show("verified    every byte is as prepared\n");
  }
}

// An option that says nothing about what was named is an error. Of each option: whether it was
// given.
void refuse(const std::string& path, const char* is,
            std::initializer_list<std::pair<bool, const char*>> options) {
  for (const auto& [given, option] : options) {
    if (given) {
      fail(ExitCode::kConfig, option, " has no meaning for ", path, ", ", is);
    }
  }
}

// Names and shapes, and with `verify` hashes.
template <class Entries>
void list_tensors(const TensorSource& source, const Entries& tensors, bool verify) {
  for (const auto& tensor : tensors) {
    const std::string hash = verify ? "  " + hash_of_tensor(source, tensor.name, tensor.shape) : "";
    show("  %-48s %s%s\n", visible(tensor.name).c_str(), tensor.shape.text().c_str(), hash.c_str());
  }
}

template <class Entries>
int64_t parameters_in(const Entries& tensors) {
  return sum_of(tensors, [](const auto& tensor) {
    return tensor.name.starts_with("param/") ? tensor.shape.elements() : 0;
  });
}

// A Hugging Face model, with the names and shapes that its parameters have here.
void inspect_hugging_face(const std::string& folder, const Request& request) {
  refuse(folder, "a Hugging Face model",
         {{request.json, "--json"},
          {request.ranks, "--ranks"},
          {request.flight, "--flight"},
          {request.trace, "--trace"}});
  const HuggingFaceReader reader(folder);
  show("model       %s (Hugging Face)\n", folder.c_str());
  if (request.tensors || request.verify) {
    list_tensors(reader, reader.tensors(), request.verify);
  }
  if (request.verify) {
    reader.require_tied();
  }
  show("parameters  %ld\n\n[model]\n", parameters_in(reader.tensors()));
  for (const Assignment& setting : hugging_face_settings(folder)) {
    show("%s = %s\n", setting.key.substr(setting.key.find('.') + 1).c_str(), setting.value.c_str());
  }
}

// Error kData if the folder that a checkpoint refers to does not hold the weights that it held.
void require_base(const std::string& checkpoint, const Manifest::Base& base, Control& control) {
  const auto hash_in = [&](const auto& reader) {
    std::map<std::string, Shape> tensors;
    for (const auto& tensor : reader.tensors()) {
      if (std::ranges::count(base.tensors, tensor.name) > 0) {
        tensors[tensor.name] = tensor.shape;
      }
    }
    return hash_of_tensors(control, reader, tensors);
  };
  try {
    const std::string folder = resolve_checkpoint(base.path);
    if (is_hugging_face(folder)) {
      require_hash(base, hash_in(HuggingFaceReader(folder)));
    } else if (const CheckpointReader reader(folder);
               reader.manifest().format_version == Manifest::kFormatVersion) {
      require_hash(base, hash_in(reader));
    } else {
      complain(folder + ": its format has stacked parameters, which are compared when it is read");
    }
  } catch (const Error& error) {
    fail_base(checkpoint, base.path, error.what());
  }
}

void inspect_checkpoint(const std::string& folder, const Request& request, Control& control) {
  const CheckpointReader reader(folder);
  const Manifest& manifest = reader.manifest();
  const Config config = config_of(reader);
  const int64_t bytes = sum_of(manifest.files, &FileEntry::length);
  show("checkpoint  %s (%s)\n", visible(folder).c_str(), format_bytes(bytes).c_str());
  show("step        %ld (sample %ld), written by %s\n", manifest.step, manifest.sampler_position,
       counted(manifest.world_size, "rank").c_str());
  if (manifest.validation_loss) {
    show("val_loss    %.6f\n", *manifest.validation_loss);
  }
  show("model       %s\n", config.model.description().c_str());
  show("data        %s\n", config.data.path.c_str());
  for (const Manifest::Base& base : manifest.bases) {
    show("base        %s (%s)\n", visible(base.path).c_str(),
         counted(std::ssize(base.tensors), "tensor").c_str());
  }
  if (request.tensors || request.verify) {
    list_tensors(reader, reader.tensors(), request.verify);
  }
  show("parameters  %ld\n", parameters_in(reader.tensors()));
  if (request.verify) {
    show("verified    every byte is as it was written\n");
  }
  if (request.tensors || request.verify) {
    show("\n%s", manifest.config.c_str());
  }
  for (const Manifest::Base& base : manifest.bases) {
    if (request.verify) {
      require_base(folder, base, control);
    }
  }
}

std::string at_step(const RunFacts::Loss& loss) {
  return formatted("%.4f at step %ld", loss.value, loss.step);
}

void print_run(const RunFacts& run) {
  show("run         %s: %s, %ld of %s, %s ago\n", visible(run.path).c_str(), run.state().c_str(),
       run.step, counted(run.steps, "step").c_str(), format_duration(run.age_s).c_str());
  show("size        %s\n", format_bytes(run.bytes).c_str());
  if (!run.settings.empty()) {
    show("training    %s, lr %s, global batch %s, %s\n", run.setting("optim.kind").c_str(),
         run.setting("optim.lr").c_str(), run.setting("train.global_batch").c_str(),
         run.setting("train.precision").c_str());
  }
  if (run.loss) {
    show("loss        %s\n", at_step(*run.loss).c_str());
  }
  if (run.val_loss) {
    show("val_loss    %s; best %s\n", at_step(*run.val_loss).c_str(),
         at_step(*run.best_val_loss).c_str());
  }
  if (run.rate > 0) {
    show("speed       %s %s, %.4g ms a step\n", format_count(run.rate).c_str(),
         run.rate_name == "tokens_per_s" ? "tokens/s" : "images/s", run.step_ms);
    show("memory      %s at the peak of the largest rank; the busiest sends %s a step\n",
         format_bytes(run.peak_bytes).c_str(), format_bytes(run.wire_bytes).c_str());
  }
  if (run.usd > 0) {
    show("cost        %.2f dollars\n", run.usd);
  }
}

// Where the time of traced steps went, from the files of all ranks in a folder.
void inspect_trace(const std::string& folder, bool as_json) {
  if (!std::filesystem::exists(folder)) {
    fail_data(folder, ": this run has no trace; name steps in log.trace, such as 20-25");
  }
  const TraceAccount account = account_of(read_traces(folder));
  show("%s\n", (as_json ? json_of(account) : text_of(account)).c_str());
}

void inspect_run(const std::string& path, const Request& request, Control& control) {
  const RunDirectory directory(path);
  if (request.flight || request.trace) {
    const bool others =
        (request.flight && request.trace) || request.tensors || request.ranks || request.verify;
    refuse(path, "together with others than --json",
           {{others, request.flight ? "--flight" : "--trace"}});
    request.flight ? inspect_flight(directory.flight(), request.json)
                   : inspect_trace(directory.trace(), request.json);
    return;
  }
  const RunFacts run = read_run(directory);
  refuse(path, "together with --tensors, --ranks or --verify",
         {{request.json && (request.tensors || request.ranks || request.verify), "--json"}});
  if (request.json) {
    show("%s\n", run.json().c_str());
    return;
  }
  print_run(run);
  if (list_checkpoints(directory.checkpoints()).empty()) {
    show("checkpoint  none yet in %s\n", visible(path).c_str());
  } else {
    inspect_checkpoint(resolve_checkpoint(path), request, control);
  }
  if (request.ranks) {
    show("\n%s\n", describe_run(directory).c_str());
  }
}

// The runs in a folder, by name; none where it holds no run. One that cannot be read is passed over
// with a line.
std::vector<RunFacts> runs_in(const std::string& folder) {
  std::vector<RunFacts> runs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    try {
      if (entry.is_directory() && is_run(entry.path().string())) {
        runs.push_back(read_run(RunDirectory(entry.path().string())));
      }
    } catch (const std::runtime_error& error) {  // of this program, or of a link without an end
      complain(str("passed over ", entry.path().string(), ": ", error.what()));
    }
  }
  std::ranges::sort(runs, {}, &RunFacts::name);
  return runs;
}

void print_table(const std::vector<RunFacts>& runs) {
  size_t width = 16;
  for (const RunFacts& run : runs) {
    width = std::max(width, visible(run.name).size());
  }
  const auto name_width = static_cast<int>(width);
  const bool priced = std::ranges::any_of(runs, [](const RunFacts& run) { return run.usd > 0; });
  show("%-*s %-8s %13s %9s %9s %8s %10s%s\n", name_width, "run", "state", "steps", "loss", "best",
       "age", "size", priced ? "        usd" : "");
  for (const RunFacts& run : runs) {
    const auto number = [](const std::optional<RunFacts::Loss>& loss) {
      return loss ? formatted("%.4f", loss->value) : "-";
    };
    const std::string usd = run.usd > 0 ? formatted(" %10.2f", run.usd) : "";
    show("%-*s %-8s %13s %9s %9s %8s %10s%s\n", name_width, visible(run.name).c_str(),
         run.state().c_str(), str(run.step, "/", run.steps).c_str(), number(run.loss).c_str(),
         number(run.best()).c_str(), format_duration(run.age_s).c_str(),
         format_bytes(run.bytes).c_str(), usd.c_str());
  }
  show("\nbest: least validation loss, or training loss where nothing was validated\n");
}

void inspect_folder(const std::string& path, const Request& request, Control& control) {
  if (is_hugging_face(path)) {
    inspect_hugging_face(path, request);
    return;
  }
  if (is_run(path)) {
    inspect_run(path, request, control);
    return;
  }
  const std::vector<RunFacts> runs = runs_in(path);
  const char* is = runs.empty() ? "which holds no run" : "a folder of runs";
  refuse(path, is,
         {{request.ranks, "--ranks"},
          {request.flight, "--flight"},
          {request.trace, "--trace"},
          {runs.empty() && request.json, "--json"},
          {!runs.empty() && request.tensors, "--tensors"},
          {!runs.empty() && request.verify, "--verify"}});
  if (runs.empty()) {
    inspect_checkpoint(resolve_checkpoint(path), request, control);
  } else if (request.json) {
    show("[%s]\n", joined(mapped(runs, &RunFacts::json), ",\n ").c_str());
  } else {
    print_table(runs);
  }
}

}  // namespace

ExitCode inspect_command(const Words& words, World& world) {
  require_one_process(world, "inspect");
  Request request;
  Options options(kUsage);
  options.add("tensors", request.tensors, "also list a checkpoint's tensors and its settings");
  options.add("ranks", request.ranks, "also show what each rank of a run used and sent");
  options.add("verify", request.verify,
              "read everything and compare hashes; shows those of a checkpoint's tensors");
  options.add("flight", request.flight,
              "of a run: what each rank did last, and what a run that hangs waits for");
  options.add("trace", request.trace,
              "of a run: where the time of the steps of log.trace went, and who waited for whom");
  options.add("json", request.json, "of runs: JSON instead of text");
  options.add("help", request.help, "print this");
  const CommandLine line = options.parse(words);
  std::vector<std::string> problems = options.apply(line.assignments);
  if (!request.help && line.positional.size() != 1) {
    problems.push_back("tandem inspect takes one file or folder; --help shows examples");
  }
  fail_if_any(problems);
  if (request.help) {
    std::fputs(options.help().c_str(), stdout);
  } else if (std::filesystem::is_directory(line.positional[0])) {
    inspect_folder(line.positional[0], request, world.control());
  } else {
    if (std::filesystem::exists(line.positional[0])) {
      refuse(line.positional[0], "which is no folder",
             {{request.tensors, "--tensors"},
              {request.ranks, "--ranks"},
              {request.flight, "--flight"},
              {request.trace, "--trace"},
              {request.json, "--json"}});
    }
    inspect_data(line.positional[0], request.verify);
  }
  return ExitCode::kOk;
}

}  // namespace tandem

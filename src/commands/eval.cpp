// tandem eval: the loss of a checkpoint on a whole validation set, or what it knows of questions.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/formatted.h"
#include "src/core/visible_text.h"
#include "src/device/ranks/agreement.h"
#include "src/inference/choice_evaluation.h"
#include "src/inference/evaluation.h"
#include "src/inference/model_tokenizer.h"
#include "src/inference/trained_model.h"
#include "src/io/file.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/run_directory.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr const char* kUsage =
    R"(tandem eval: loss, and perplexity or accuracy, on the whole validation set

  tandem eval runs/NAME
  mpirun -np 4 tandem eval runs/NAME/checkpoints/best --data other.h5
  tandem eval Llama-3.2-1B --choices hellaswag_val.jsonl

runs/NAME is the same as --checkpoint runs/NAME. The dataset of the run, where its path is relative, is looked for in
the working directory, then in the run's folder and each folder above that. Every target counts once. --choices prints
instead which share of multiple-choice questions the model answers rightly. Results have the same bits for every number
of ranks, at one --tensor.)";

struct Request {
  std::string checkpoint, base, adapter, data, choices, output, tokenizer;
  int64_t batch = 0, context = 0, tensor = 1, shots = 0;
  std::optional<DType> precision;
  std::optional<WindowKind> windows{};
  RunConfig run{};
  bool verify = false, json = false, help = false;
  Options options{kUsage};

  Request() {
    add_model(options, checkpoint, base, adapter);
    options.add("data", data, "dataset; the one of the training run when not given");
    options.add("batch", batch, "samples, or windows of --choices, at a time; 0: as in training", 0,
                1 << 22);
    options.add("context", context, "tokens a sequence; 0: the model's", 0, 1 << 24);
    options.add_choice("windows", windows,
                       {{"run", std::nullopt},
                        {"stream", WindowKind::kStream},
                        {"documents", WindowKind::kDocuments}},
                       "what a sample of text is, as in data.windows; run: as in training");
    options.add_choice("precision", precision,
                       {{"model", std::nullopt},
                        {"f32", DType::kF32},
                        {"bf16", DType::kBf16},
                        {"fp16", DType::kFp16}},
                       "type of weights and activations; model: as in training, or in its files");
    options.add("tensor", tensor, "ranks that cut each layer of a gpt or llama", 1, 1024);
    options.add(
        "choices", choices,
        "questions, a JSON object a line: prompt, choices, label; or HellaSwag's fields. A space "
        "joins prompt and choice; acc_norm is by the byte of a choice");
    options.add("shots", shots,
                "of these, so many stand before each of the others, with their answers", 0, 1000);
    options.add("output", output, "file for the sums of all choices, a line a question");
    options.add("tokenizer", tokenizer,
                "for --choices: file or folder with the tokenizer; the model's own when not given");
    options.add("verify", verify, "hash the whole dataset first, also above 512 MiB");
    run.bind_device(options, "device");
    options.add("threads", run.threads, "CPU threads a rank; 0: its share of the cores", 0, 4096);
    options.add("json", json, "print one JSON object");
    options.add("help", help, "print this");
  }
};

int64_t context_of(const ModelConfig& model, const Request& request) {
  if (request.context == 0) {
    return model->context();
  }
  if (!model->reads_text() || request.context > model->context()) {
    fail(ExitCode::kConfig, "--context ", request.context,
         " must be at most model.context = ", model->context(), ", of a model that reads text");
  }
  return request.context;
}

std::vector<std::string> problems_of_choices(const Request& request) {
  if (request.choices.empty()) {
    const bool has_others =
        request.shots > 0 || !request.output.empty() || !request.tokenizer.empty();
    return has_others ? std::vector<std::string>{"--shots, --output and --tokenizer are for "
                                                 "--choices FILE.jsonl"}
                      : std::vector<std::string>();
  }
  if (!request.data.empty() || request.windows || request.verify || request.tensor > 1) {
    return {
        "--choices reads questions, on ranks with the whole model; leave out --data, "
        "--windows, --verify and --tensor"};
  }
  return {};
}

void print(const TrainedModel& trained, const Evaluation& result, bool as_json) {
  const bool text = trained.config.model->reads_text();
  const char* measure = text ? "perplexity" : "accuracy";
  const double value = text ? std::exp(result.loss) : result.accuracy;
  if (as_json) {
    nlohmann::ordered_json json = {{"checkpoint", trained.checkpoint},
                                   {"step", trained.step},
                                   {"precision", name_of(trained.values->dtype())},
                                   {"targets", result.targets},
                                   {"val_loss", result.loss},
                                   {measure, value}};
    show("%s\n",
         json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return;
  }
  show("checkpoint  %s (step %ld)\n", trained.checkpoint.c_str(), trained.step);
  show("precision   %s\n", std::string(name_of(trained.values->dtype())).c_str());
  show("targets     %ld\n", result.targets);
  show("val_loss    %.6f\n", result.loss);
  show("%-12s%.4f\n", measure, value);
}

void print(const Request& request, const TrainedModel& trained, const ChoiceEvaluation& result) {
  const Share &acc = result.acc, &norm = result.acc_norm;
  const std::string precision(name_of(trained.values->dtype()));
  if (request.json) {
    const nlohmann::ordered_json json = {{"checkpoint", trained.checkpoint},
                                         {"step", trained.step},
                                         {"precision", precision},
                                         {"choices", request.choices},
                                         {"shots", request.shots},
                                         {"questions", acc.all},
                                         {"acc", acc.value()},
                                         {"acc_stderr", acc.error()},
                                         {"acc_norm", norm.value()},
                                         {"acc_norm_stderr", norm.error()}};
    show("%s\n",
         json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return;
  }
  show("checkpoint  %s (step %ld)\n", trained.checkpoint.c_str(), trained.step);
  show("precision   %s\n", precision.c_str());
  show("questions   %ld\n", acc.all);
  show("acc         %.4f +- %.4f\n", acc.value(), acc.error());
  show("acc_norm    %.4f +- %.4f\n", norm.value(), norm.error());
}

// `value`: the same on all ranks.
void require_finite(double value, const TrainedModel& trained) {
  if (!std::isfinite(value)) {
    throw AgreedError(ExitCode::kNumerical, trained.checkpoint, ": the loss is not finite",
                      trained.values->dtype() != DType::kF32 ? "; try --precision f32"
                      : is_hugging_face(trained.checkpoint)  ? "; its weights may be damaged"
                                                             : "; use an earlier checkpoint");
  }
}

// Collective. Scores the questions of --choices, and prints which share of them is right.
void eval_choices(const Request& request, const StoredModel& stored, int64_t context,
                  Machine& machine, Control& control) {
  DatasetInfo sizes{.kind = DatasetKind::kText};
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<NewFile> output;
  std::string hash;       // of the questions, which are read twice: all errors come before the work
  int64_t window = 2048;  // several choices share one
  const Config config = config_of(stored);
  agree(control, [&] {
    require_text_model(config, stored.checkpoint);
    sizes.path = tokenizer_path(request.tokenizer, stored.checkpoint, config);
    tokenizer = tokenizer_at(sizes.path);
    sizes.vocab_size = tokenizer->vocab_size();
    hash = read_questions(request.choices, request.shots, *tokenizer, context,
                          [&](auto, const auto& tokens) {
                            for (const ChoiceTokens& choice : tokens) {
                              window = std::max(window, std::ssize(choice.all));
                            }
                          });
    window = std::min(window, context);
    if (control.rank() == 0 && !request.output.empty()) {
      clean_up_on_signals(request.output);
      output.emplace(request.output);
    }
  });
  check_equal(control, request.choices, hash, ExitCode::kData);
  const TrainedModel trained = load_trained_model(
      stored, sizes, request.precision.value_or(config.train.precision), machine, control);
  Uploader upload(machine.stream, machine.memory, machine.staging, sizes, trained.values->dtype());
  ChoiceEvaluation result;
  const auto use = [&](const ChoiceRecord& record, std::span<const double> sums) {
    require_finite(std::accumulate(sums.begin(), sums.end(), 0.0), trained);
    result.count(record, sums);
    if (output) {
      output->write(line_of(record, sums));
    }
  };
  ChoiceScorer scorer(*trained.model, trained.context(machine), upload, machine.mesh()->model(),
                      window, request.batch > 0 ? request.batch : config.eval_batch(), use);
  const std::string again = read_questions(
      request.choices, request.shots, *tokenizer, context,
      [&](auto record, const auto& tokens) { scorer.add(std::move(record), tokens); });
  scorer.finish();
  if (again != hash) {
    fail_data(request.choices, ": changed while it was read");
  }
  if (output) {
    output->finish();
  }
  if (control.rank() == 0) {
    print(request, trained, result);
  }
}

}  // namespace

ExitCode eval_command(const Words& words, World& world) {
  Control& control = world.control();
  Request request;
  agree(control, [&] {
    std::vector<std::string> problems = request.options.apply_words(words, "checkpoint");
    if (!request.help && request.checkpoint.empty()) {
      problems.push_back("--checkpoint is missing, such as `tandem eval runs/NAME`");
    }
    append(problems, problems_of_choices(request));
    if (world.size() % request.tensor != 0) {
      add_problem(problems, "--tensor ", request.tensor, " does not divide the ",
                  counted(world.size(), "rank"));
    }
    fail_if_any(problems);
    require_other_output(request.output, {request.choices});
  });
  if (request.help) {
    return print_help(request.options, world);
  }
  Machine machine(request.run, {.tensor = request.tensor, .backend = Backend::kMpi}, world);
  const StoredModel stored =
      resolve_model(control, request.checkpoint, request.base, request.adapter);
  const std::string& checkpoint = stored.checkpoint;
  int64_t context = 0;
  agree(control, [&] {
    const ModelConfig model = config_of(stored).model;
    context = context_of(model, request);
    if (request.windows && !model->reads_text()) {
      fail(ExitCode::kConfig, "--windows: model.kind = ", model.kind.name(),
           " reads no text; leave it out");
    }
  });
  if (!request.choices.empty()) {
    eval_choices(request, stored, context, machine, control);
    return ExitCode::kOk;
  }
  std::unique_ptr<Dataset> dataset;
  agree(control, [&] {
    const Config config = config_of(checkpoint);
    if (request.data.empty() && config.data.path.empty()) {
      fail(ExitCode::kConfig, checkpoint, " knows no dataset; name one with --data FILE.h5");
    }
    dataset = open_dataset(
        request.data.empty() ? RunDirectory::of(checkpoint).find(config.data.path) : request.data,
        {.kind = request.windows.value_or(config.data.windows), .context = context});
    if (world.local_rank() == 0) {
      verify_content(dataset->info(), request.verify);
    }
  });
  check_equal(control, "dataset " + dataset->info().path, dataset->info().fingerprint(),
              ExitCode::kData);
  agree(control, [&] { require_same_vocabulary(checkpoint, dataset->info().path); });
  const DType dtype = request.precision.value_or(config_of(checkpoint).train.precision);
  TrainedModel trained = load_trained_model(stored, dataset->info(), dtype, machine, control);
  Uploader upload(machine.stream, machine.memory, machine.staging, dataset->info(),
                  trained.values->dtype());
  const int64_t batch = request.batch > 0 ? request.batch : trained.config.eval_batch();
  Evaluation result = evaluate(*trained.model, trained.context(machine), *dataset, context, batch,
                               0, upload, machine.mesh()->model());
  require_finite(result.loss, trained);
  if (world.rank() == 0) {
    print(trained, result, request.json);
  }
  return ExitCode::kOk;
}

}  // namespace tandem

// tandem generate: text from a trained language model, token by token.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/hash.h"
#include "src/core/visible_text.h"
#include "src/device/ranks/agreement.h"
#include "src/inference/model_tokenizer.h"
#include "src/inference/prompt.h"
#include "src/inference/text_batch.h"
#include "src/inference/trained_model.h"
#include "src/io/file.h"
#include "src/prepare/record_fields.h"
#include "src/prepare/record_reader.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem generate: continues a text with a trained language model

  tandem generate runs/NAME --prompt "Once upon" --tokens 200 --temperature 0.8 --top-k 40
  tandem generate runs/NAME --input prompts.jsonl --output texts.jsonl --batch 16

Prints the tokens as they come, on a terminal after the prompt. The same seed gives the same text. runs/NAME is the same
as --checkpoint runs/NAME. A GPU computes in the type that the model was trained in, the CPU in f32. The ranks of
`mpirun -np N tandem generate` cut each layer, for a model that is too large for one.)";

struct Request {
  std::string checkpoint, base, adapter, prompt, input, output, form = "plain", tokenizer;
  std::vector<std::string> stops;
  int64_t tokens = 200, samples = 1, batch = 8;
  SamplingOptions sampling;
  RunConfig run{};
  bool json = false, help = false;
  Options options{kUsage};

  Request() {
    add_model(options, checkpoint, base, adapter);
    options.add(
        "prompt", prompt,
        "text to continue; empty: the tokenizer's begin-of-text or end-of-text, or a line end");
    options.add("input", input, "JSON objects, one a line, whose \"prompt\" to continue");
    options.add("output", output, "file for the texts of --input, a JSON object a line");
    add_template(options, form,
                 "chat template: the prompt is what the user says, and the model answers");
    options.add("tokens", tokens, "largest number of tokens to print", 1);
    options.add("samples", samples, "texts to print, a line of dashes between them", 1, 1 << 20);
    options.add("batch", batch, "texts to write side by side, which is faster and takes memory", 1,
                1024);
    options.add("json", json, "print one JSON object at the end: the texts, and tokens a second");
    options.add("temperature", sampling.temperature,
                "divides the logits; 0: always the likeliest token", 0, 1000);
    options.add("top-k", sampling.top_k, "only the k likeliest tokens; 0: all");
    options.add("top-p", sampling.top_p,
                "only the likeliest tokens that together have this probability", 1e-6, 1);
    options.add("seed", sampling.seed, "of the random choice");
    options.add("stop", stops, "text that ends the output, itself not printed; may repeat");
    options.add("tokenizer", tokenizer,
                "file with the tokenizer, or folder with its tokenizer.json; the model's own when "
                "not given");
    run.bind_device(options, "device");
    options.add("threads", run.threads, "CPU threads; 0: all cores", 0, 4096);
    options.add("help", help, "print this");
  }
};

// Throws Error(kConfig) unless so many ranks can cut the model.
void require_cut(const Config& config, int ranks) {
  const std::optional<TransformerConfig> model = config.model->transformer();
  const std::string why = ranks == 1 ? ""
                          : model    ? model->why_not_cut(ranks)
                                     : "a model of this kind";
  if (!why.empty()) {
    fail(ExitCode::kConfig, "tandem generate cuts a model over its ranks, and ", ranks,
         " cannot divide ", why, "; start it with another number, or without mpirun");
  }
}

// Writes texts side by side, and gives them on in their order: prints them as they come, or
// collects them for a JSON object, or writes them to a file, a line each.
class Texts {
 public:
  Texts(const Request& request, TextBatch& batch, const Tokenizer& tokenizer, bool prints,
        NewFile* file)
      : request_(request), batch_(batch), tokenizer_(tokenizer), prints_(prints), file_(file) {}

  void add(const std::string& prompt, TextRequest request) {
    while (!batch_.has_room()) {
      step();
    }
    texts_.push_back({prompt, std::make_unique<TextWriter>(std::move(request), tokenizer_)});
    batch_.add(*texts_.back().writer);
  }
  void finish() {
    while (!batch_.is_empty()) {
      step();
    }
  }
  int64_t tokens() const { return tokens_; }
  const nlohmann::ordered_json& samples() const { return samples_; }

 private:
  struct Text {
    std::string prompt;
    std::unique_ptr<TextWriter> writer;
  };
  void step() {
    batch_.step();
    while (!texts_.empty()) {
      const bool has_ended = texts_.front().writer->has_ended();
      if (prints_) {
        print(texts_.front());
      }
      if (!has_ended) {
        return;
      }
      end(texts_.front());
      texts_.pop_front();
    }
  }
  void print(Text& text) {
    const bool on_terminal = ::isatty(STDOUT_FILENO) != 0;
    std::string shown = text.writer->take();
    if (!std::exchange(has_begun_, true)) {
      shown.insert(0, str(tokens_ > 0 ? "---------------\n" : "", on_terminal ? text.prompt : ""));
    }
    shown = on_terminal ? visible(shown, "\n\t") : shown;
    shown += text.writer->has_ended() ? "\n" : "";
    if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() ||
        std::fflush(stdout) != 0) {
      fail_file("standard output", "write", errno);
    }
  }
  void end(const Text& text) {
    has_begun_ = false;
    const int64_t tokens = text.writer->tokens();
    tokens_ += tokens;
    if (file_) {
      const nlohmann::ordered_json line = {
          {"prompt", text.prompt}, {"text", text.writer->take()}, {"tokens", tokens}};
      file_->write(line.dump() + "\n");
    } else if (request_.json) {
      samples_.push_back({{"text", text.writer->take()}, {"tokens", tokens}});
    }
  }

  const Request& request_;
  TextBatch& batch_;
  const Tokenizer& tokenizer_;
  bool prints_;
  NewFile* file_;
  std::deque<Text> texts_;  // that were not given on as a whole
  bool has_begun_ = false;  // to print the first of them
  int64_t tokens_ = 0;
  nlohmann::ordered_json samples_ = nlohmann::json::array();
};

// Calls use(prompt, tokens) for the prompts of --input, or for that of --prompt.
void for_each_prompt(
    const Request& request, Tokenizer& tokenizer,
    const std::function<void(const std::string&, const std::vector<int32_t>&)>& use) {
  if (request.input.empty()) {
    return use(request.prompt, prompt_tokens(request.form, request.prompt, tokenizer));
  }
  for_each_json_line(
      request.input, file_limit(64), [&](std::string* line, const std::string& place) {
        std::string problem;
        const nlohmann::json record = parsed_record(
            *line, [](std::string_view name) { return name == "prompt"; }, &problem);
        std::string prompt;
        std::vector<int32_t> tokens;
        try {
          prompt = problem.empty() ? text_field(record, "prompt") : throw BadRecord(problem);
          tokens = prompt_tokens(request.form, prompt, tokenizer);
        } catch (const std::runtime_error& error) {
          fail_data(place, ": ", error.what());
        }
        use(prompt, tokens);
      });
}

void generate(const Request& request, World& world) {
  Control& control = world.control();
  const StoredModel stored =
      resolve_model(control, request.checkpoint, request.base, request.adapter);
  const std::string& checkpoint = stored.checkpoint;
  Config config;
  DatasetInfo sizes{.kind = DatasetKind::kText};
  std::unique_ptr<Tokenizer> tokenizer;
  TextRequest text{.stops = request.stops, .tokens = request.tokens, .sampling = request.sampling};
  std::optional<NewFile> output;
  const bool is_first = world.rank() == 0;
  Fnv1a<uint64_t> hash;
  int64_t prompts = 0, cut = 0, longest = 0;
  agree(control, [&] {
    config = config_of(stored);
    require_text_model(config, checkpoint);
    require_cut(config, world.size());
    sizes.path = tokenizer_path(request.tokenizer, checkpoint, config);
    tokenizer = tokenizer_at(sizes.path);
    sizes.vocab_size = tokenizer->vocab_size();
    text.ends = end_tokens(request.form, checkpoint, *tokenizer);
    for_each_prompt(request, *tokenizer, [&](const std::string& prompt, const auto& tokens) {
      hash.add(prompt);
      std::ranges::for_each(tokens, [&](int64_t token) { hash.add(token); });
      ++prompts;
      longest = std::max(longest, std::ssize(tokens));
      cut += std::ssize(tokens) > config.model->context() ? 1 : 0;
    });
    if (prompts == 0) {
      fail_data(request.input, ": has no prompts");
    }
    if (is_first && !request.output.empty()) {
      clean_up_on_signals(request.output);
      output.emplace(request.output);
    }
  });

  check_equal(control, request.input.empty() ? "--prompt" : request.input,
              std::to_string(hash.value()), ExitCode::kData);
  if (cut > 0 && is_first) {
    complain(str("only the ends are read of prompts longer than the window of ",
                 config.model->context(), " tokens: ", cut, " of ", prompts));
  }
  Machine machine(request.run, {.tensor = world.size(), .backend = Backend::kMpi}, world);
  const DType dtype = machine.device() == Device::kCpu ? DType::kF32 : config.train.precision;
  const TrainedModel trained = load_trained_model(stored, sizes, dtype, machine, control);
  const auto began = std::chrono::steady_clock::now();
  const int64_t side_by_side =
      request.input.empty() ? std::min(request.batch, request.samples) : request.batch;
  // The keys and values of a large window may need more memory than the model.
  const int64_t context = config.model->context();
  const std::unique_ptr<Decoder> decoder =
      decoder_of(trained, machine, side_by_side,
                 request.tokens < context - longest ? longest + request.tokens : context);
  TextBatch batch(*decoder, machine.stream, tokenizer->vocab_size());
  Texts texts(request, batch, *tokenizer, is_first && !request.json && request.output.empty(),
              output ? &*output : nullptr);
  for_each_prompt(request, *tokenizer, [&](const std::string& prompt, const auto& tokens) {
    text.prompt = tokens;
    text.is_beginning = prompt.empty() && request.form == "plain";
    for (text.number = 0; text.number < static_cast<uint64_t>(request.samples); ++text.number) {
      texts.add(prompt, text);
    }
  });
  texts.finish();
  if (output) {
    output->finish();
  }
  if (request.json && is_first) {
    nlohmann::ordered_json json = {{"checkpoint", checkpoint}};
    if (request.output.empty()) {
      json["samples"] = texts.samples();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    json["tokens"] = texts.tokens();
    json["seconds"] = seconds.count();
    json["tokens_per_s"] = static_cast<double>(texts.tokens()) / seconds.count();
    std::printf(
        "%s\n",
        json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  }
}

}  // namespace

ExitCode generate_command(const Words& words, World& world) {
  Request request;
  agree(world.control(), [&] {
    std::vector<std::string> problems = request.options.apply_words(words, "checkpoint");
    if (!request.help && request.checkpoint.empty()) {
      problems.push_back("--checkpoint is missing, such as `tandem generate runs/NAME`");
    }
    if (request.input.empty() != request.output.empty() ||
        (!request.input.empty() && !request.prompt.empty())) {
      problems.push_back("--input and --output go together, without --prompt");
    }
    fail_if_any(problems);
    require_other_output(request.output, {request.input});
  });
  if (request.help) {
    return print_help(request.options, world);
  }
  generate(request, world);
  return ExitCode::kOk;
}

}  // namespace tandem

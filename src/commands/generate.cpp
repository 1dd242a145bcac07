// tandem generate: text from a trained language model, token by token.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/visible_text.h"
#include "src/data/chat_template.h"
#include "src/device/ranks/agreement.h"
#include "src/inference/model_tokenizer.h"
#include "src/inference/token_sampler.h"
#include "src/inference/trained_model.h"
#include "src/io/file.h"
#include "src/kernels/convert.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/run_directory.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem generate: continues a text with a trained language model

  tandem generate runs/NAME --prompt "Once upon" --tokens 200 --temperature 0.8 --top-k 40

Prints the tokens as they come, on a terminal after the prompt. The same seed gives the same text. runs/NAME is the same
as --checkpoint runs/NAME. A GPU computes in the type that the model was trained in, the CPU in f32. The ranks of
`mpirun -np N tandem generate` cut each layer, for a model that is too large for one.)";

struct Request {
  std::string checkpoint, base, adapter, prompt, form = "plain", tokenizer;
  std::vector<std::string> stops;
  int64_t tokens = 200, samples = 1, batch = 8;
  SamplingOptions sampling;
  RunConfig run{};
  bool json = false, help = false;
  Options options{kUsage};

  Request() {
    options.add("checkpoint", checkpoint,
                "a run's folder, a checkpoint's or a Hugging Face model's");
    options.add("base", base, "where the weights are now that the checkpoint refers to");
    options.add("adapter", adapter, "adapters for the model: a folder of peft, or a run of ours");
    options.add(
        "prompt", prompt,
        "text to continue; empty: the tokenizer's begin-of-text or end-of-text, or a line end");
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

bool on_terminal() { return ::isatty(STDOUT_FILENO) != 0; }

// Keeps text or, after print(), prints it as it comes. Holds back what may be the beginning of a
// stop text.
class StoppingPrinter {
 public:
  // `begin` comes before all other text and ends nothing.
  StoppingPrinter(const std::vector<std::string>& stops, const std::string& begin)
      : stops_(stops), kept_(begin) {}

  // False when a stop text was reached.
  bool push(const std::string& text) {
    held_ += text;
    for (const std::string& stop : stops_) {
      const size_t at = stop.empty() ? std::string::npos : held_.find(stop);
      if (at != std::string::npos) {
        put(at);
        held_.clear();
        return false;
      }
    }
    size_t keep = 0;
    for (const std::string& stop : stops_) {
      for (size_t length = std::min(stop.size(), held_.size()); length > keep; --length) {
        if (held_.ends_with(stop.substr(0, length))) {
          keep = length;
        }
      }
    }
    put(held_.size() - keep);
    return true;
  }
  void finish() { put(held_.size()); }
  // Prints what was kept, and from now on what comes.
  void print() {
    prints_ = true;
    put(0);
  }
  const std::string& kept() const { return kept_; }

 private:
  void put(size_t count) {
    kept_.append(held_, 0, count);
    held_.erase(0, count);
    if (prints_) {
      const std::string shown = on_terminal() ? visible(kept_, "\n\t") : kept_;
      if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() ||
          std::fflush(stdout) != 0) {
        fail_file("standard output", "write", errno);
      }
      kept_.clear();
    }
  }
  std::vector<std::string> stops_;
  bool prints_ = false;
  std::string held_, kept_;
};

// One of the texts that continue the prompt side by side. The tokens `ends` end it.
class Sample {
 public:
  Sample(const Request& request, const std::vector<int32_t>& ends, const Tokenizer& tokenizer,
         int64_t number)
      : request_(request),
        ends_(ends),
        sampler_(request.sampling, static_cast<uint64_t>(number)),
        text_(tokenizer, request.prompt.empty() && request.form == "plain"),
        printer_(request.stops, !request.json && on_terminal() ? request.prompt : "") {}

  // Chooses the next token from its logits [vocab]. After the end, always the last token.
  int32_t next(std::span<const float> logits) {
    if (!ended_) {
      last_ = sampler_.pick(logits);
      ++tokens_;
      ended_ = std::ranges::count(ends_, last_) > 0 || !printer_.push(text_.push(last_)) ||
               tokens_ == request_.tokens;
      if (ended_) {
        printer_.push(text_.finish());
        printer_.finish();
      }
    }
    return last_;
  }
  bool ended() const { return ended_; }
  int64_t tokens() const { return tokens_; }  // chosen, with an end-of-text token that ended it
  StoppingPrinter& printer() { return printer_; }

 private:
  const Request& request_;
  const std::vector<int32_t>& ends_;
  TokenSampler sampler_;
  StreamDecoder text_;
  StoppingPrinter printer_;
  int32_t last_ = 0;
  int64_t tokens_ = 0;
  bool ended_ = false;
};

std::vector<int32_t> prompt_of(const Request& request, Tokenizer& tokenizer) {
  if (request.form != "plain") {
    ChatTokens chat;
    append_parts(chat_prompt(request.form, {{"user", request.prompt}}), tokenizer, &chat);
    return chat.tokens;
  }
  std::vector<int32_t> prompt(tokenizer.before_text().begin(), tokenizer.before_text().end());
  if (!request.prompt.empty()) {
    tokenizer.append_tokens(request.prompt, &prompt);
  } else if (prompt.empty()) {
    prompt =
        tokenizer.end_of_text() ? std::vector{*tokenizer.end_of_text()} : tokenizer.encode("\n");
  }
  return prompt;
}

std::vector<int32_t> ends_of(const Request& request, const std::string& checkpoint,
                             const Tokenizer& tokenizer) {
  std::vector<int32_t> ends;
  if (is_hugging_face(checkpoint)) {
    ends = hugging_face_end_tokens(checkpoint);
  } else if (tokenizer.end_of_text()) {
    ends = {*tokenizer.end_of_text()};
  }
  if (request.form != "plain") {
    ends.push_back(tokenizer.special_token(chat_end(request.form)).value());
  }
  return ends;
}

// Throws Error(kConfig) unless so many ranks can cut the model.
void require_cut(const Config& config, int ranks) {
  const std::optional<TransformerConfig> model = config.model->transformer();
  const std::string why = ranks == 1 ? ""
                          : model    ? model->why_not_cut(ranks)
                                     : "a model of this kind";
  if (!why.empty()) {
    fail(ExitCode::kConfig,
         str("tandem generate cuts a model over its ranks, and ", ranks, " cannot divide ", why,
             "; start it with another number, or without mpirun"));
  }
}

// Continues the prompt with all samples side by side. If it prints, the first one that has not
// ended is printed as it comes.
void write_texts(const std::vector<int32_t>& prompt, int64_t vocab, Decoder& decoder,
                 Stream& stream, std::span<Sample> samples, bool more_follow, bool prints) {
  Memory host(Device::kCpu);
  std::vector<int32_t> tokens(samples.size());
  Tensor logits = decoder.prefill(prompt);
  for (auto printed = samples.begin();;) {
    const Tensor seen = copied_as_f32(stream, logits, host);
    const int64_t columns = seen.elements() / std::ssize(samples);
    for (size_t s = 0; s < samples.size(); ++s) {
      // Not the model's padding after the tokenizer's vocabulary.
      tokens[s] = samples[s].next(
          seen.as<float>().subspan(s * static_cast<size_t>(columns), static_cast<size_t>(vocab)));
    }
    while (prints && printed != samples.end()) {
      printed->printer().print();
      if (!printed->ended()) {
        break;
      }
      ++printed;
      std::printf(more_follow || printed != samples.end() ? "\n---------------\n" : "\n");
    }
    if (std::ranges::all_of(samples, &Sample::ended)) {
      return;
    }
    logits = decoder.step(tokens);
  }
}

void generate(const Request& request, World& world) {
  const StoredModel stored =
      resolve_model(world.control(), request.checkpoint, request.base, request.adapter);
  const std::string& checkpoint = stored.checkpoint;
  Config config;
  DatasetInfo sizes{.kind = DatasetKind::kText};
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> prompt, ends;
  agree(world.control(), [&] {
    config = config_of(stored);
    if (!config.model->reads_text()) {
      fail(ExitCode::kConfig, str(checkpoint, ": model.kind = ", config.model.kind.name(),
                                  " writes no text; use a gpt or llama"));
    }
    require_cut(config, world.size());
    sizes.path = tokenizer_path(request.tokenizer, checkpoint, config);
    tokenizer = tokenizer_at(sizes.path);
    sizes.vocab_size = tokenizer->vocab_size();
    prompt = prompt_of(request, *tokenizer);
    ends = ends_of(request, checkpoint, *tokenizer);
  });

  const bool is_first = world.rank() == 0;
  Machine machine(request.run, {.tensor = world.size(), .backend = Backend::kMpi}, world);
  const DType dtype = machine.device() == Device::kCpu ? DType::kF32 : config.train.precision;
  const TrainedModel trained = load_trained_model(stored, sizes, dtype, machine, world.control());
  nlohmann::ordered_json json = {{"checkpoint", checkpoint}, {"samples", nlohmann::json::array()}};
  const auto began = std::chrono::steady_clock::now();
  int64_t tokens = 0;
  for (int64_t first = 0; first < request.samples; first += request.batch) {
    const int64_t count = std::min(request.batch, request.samples - first);
    const std::unique_ptr<Decoder> decoder =
        trained.model->decoder(trained.context(machine), count);
    if (!decoder) {
      fail(ExitCode::kConfig, str(checkpoint, ": a ", config.model.kind.name(), " has no decoder"));
    }
    std::vector<Sample> samples;
    for (int64_t s = first; s < first + count; ++s) {
      samples.emplace_back(request, ends, *tokenizer, s);
    }
    write_texts(prompt, tokenizer->vocab_size(), *decoder, machine.stream, samples,
                first + count < request.samples, is_first && !request.json);
    for (Sample& sample : samples) {
      tokens += sample.tokens();
      json["samples"].push_back({{"text", sample.printer().kept()}, {"tokens", sample.tokens()}});
    }
  }
  if (request.json && is_first) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    json["tokens"] = tokens;
    json["seconds"] = seconds.count();
    json["tokens_per_s"] = static_cast<double>(tokens) / seconds.count();
    std::printf("%s\n", json.dump().c_str());
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
    fail_if_any(problems);
  });
  if (request.help) {
    return print_help(request.options, world);
  }
  generate(request, world);
  return ExitCode::kOk;
}

}  // namespace tandem

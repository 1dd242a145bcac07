// tandem generate: text from a trained language model, token by token.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "src/commands/commands.h"
#include "src/inference/token_sampler.h"
#include "src/inference/trained_model.h"
#include "src/io/file.h"
#include "src/train/hugging_face/settings.h"
#include "src/train/run_directory.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem generate: continues a text with a trained language model

  tandem generate runs/NAME --prompt "Once upon" --tokens 200 --temperature 0.8 --top-k 40

Prints the tokens as they come. The same seed gives the same text. runs/NAME is the same as --checkpoint runs/NAME.)";

struct Request {
  std::string checkpoint, prompt, tokenizer;
  std::vector<std::string> stops;
  int64_t tokens = 200, samples = 1, threads = 0;
  SamplingOptions sampling;
  bool json = false, help = false;
  Options options{kUsage};

  Request() {
    options.add("checkpoint", checkpoint,
                "a run's folder, a checkpoint's or a Hugging Face model's");
    options.add(
        "prompt", prompt,
        "text to continue; empty: the tokenizer's begin-of-text or end-of-text, or a line end");
    options.add("tokens", tokens, "largest number of tokens to print", 1);
    options.add("samples", samples, "texts to print, a line of dashes between them", 1, 1 << 20);
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
    options.add("threads", threads, "CPU threads; 0: all cores", 0, 4096);
    options.add("help", help, "print this");
  }
};

// That of the request; else a Hugging Face model's own, or RUN/tokenizer.h5 beside
// RUN/checkpoints/step-..., or the one of the dataset that the model was trained on.
std::string tokenizer_path(const Request& request, const std::string& checkpoint,
                           const Config& config) {
  if (!request.tokenizer.empty()) {
    return request.tokenizer;
  }
  if (is_hugging_face(checkpoint)) {
    if (!std::filesystem::exists(checkpoint + "/tokenizer.json")) {
      fail(ExitCode::kConfig, str(checkpoint, " has no tokenizer.json: name a folder that has, or ",
                                  "a dataset with its tokenizer: --tokenizer FILE.h5"));
    }
    return checkpoint;
  }
  const RunDirectory run = RunDirectory::of(checkpoint);
  return std::filesystem::exists(run.tokenizer()) ? run.tokenizer() : run.find(config.data.path);
}

std::unique_ptr<Tokenizer> tokenizer_at(const std::string& path) {
  return std::filesystem::is_directory(path) ? load_hugging_face_tokenizer(path)
                                             : load_tokenizer(H5Reader(path));
}

// Prints text as it comes, or keeps it, but holds back what may be the beginning of a stop text.
class StoppingPrinter {
 public:
  StoppingPrinter(const std::vector<std::string>& stops, bool keeps)
      : stops_(stops), keeps_(keeps) {}

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
  const std::string& kept() const { return kept_; }

 private:
  void put(size_t count) {
    if (keeps_) {
      kept_.append(held_, 0, count);
    } else if (std::fwrite(held_.data(), 1, count, stdout) != count || std::fflush(stdout) != 0) {
      fail_file("standard output", "write", errno);
    }
    held_.erase(0, count);
  }
  std::vector<std::string> stops_;
  bool keeps_;
  std::string held_, kept_;
};

// Feeds up to `most` tokens after the prompt to the printer. Returns how many the model chose, with
// an end-of-text token that ended the text.
int64_t continue_text(const std::vector<int32_t>& prompt, const std::vector<int32_t>& ends,
                      int64_t most, const Tokenizer& tokenizer, Decoder& decoder,
                      TokenSampler& sampler, StoppingPrinter& printer) {
  StreamDecoder text(tokenizer);
  Tensor logits = decoder.prefill(prompt);
  int64_t count = 0;
  while (count < most) {
    // Not the model's padding after the tokenizer's vocabulary.
    const int32_t token = sampler.pick(logits.slice(0, tokenizer.vocab_size()).as<float>());
    ++count;
    if (std::ranges::find(ends, token) != ends.end() || !printer.push(text.push(token))) {
      break;
    }
    if (count < most) {
      logits = decoder.step(token);
    }
  }
  printer.push(text.finish());
  printer.finish();
  return count;
}

void generate(Request& request, World& world, Memory& memory) {
  const std::string checkpoint = resolve_checkpoint(request.checkpoint);
  const Config config = config_of(checkpoint);
  if (!config.model.reads_text()) {
    fail(ExitCode::kConfig, str(checkpoint, ": model.kind = ", config.model.kind,
                                " writes no text; use a gpt or llama"));
  }
  DatasetInfo sizes;
  sizes.path = tokenizer_path(request, checkpoint, config);
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_at(sizes.path);
  sizes.kind = DatasetKind::kText;
  sizes.vocab_size = tokenizer->vocab_size();

  TrainedModel trained = load_trained_model(checkpoint, sizes, DType::kF32, world, memory);
  const std::unique_ptr<Decoder> decoder = trained.model->decoder(
      {.stream = *trained.stream, .memory = memory, .gate = trained.values.get()});
  require(decoder != nullptr, [&] { return config.model.kind + " reads text and has no decoder"; });
  std::vector<int32_t> ends;
  if (is_hugging_face(checkpoint)) {
    ends = hugging_face_end_tokens(checkpoint);
  } else if (tokenizer->end_of_text()) {
    ends = {*tokenizer->end_of_text()};
  }
  std::vector<int32_t> prompt;
  prompt.assign(tokenizer->before_text().begin(), tokenizer->before_text().end());
  if (!request.prompt.empty()) {
    tokenizer->encode(request.prompt, &prompt);
  } else if (prompt.empty()) {
    prompt =
        tokenizer->end_of_text() ? std::vector{*tokenizer->end_of_text()} : tokenizer->encode("\n");
  }
  TokenSampler sampler(request.sampling);
  nlohmann::ordered_json json = {{"checkpoint", checkpoint}, {"samples", nlohmann::json::array()}};
  const auto began = std::chrono::steady_clock::now();
  int64_t tokens = 0;
  for (int64_t sample = 0; sample < request.samples; ++sample) {
    StoppingPrinter printer(request.stops, request.json);
    const int64_t count =
        continue_text(prompt, ends, request.tokens, *tokenizer, *decoder, sampler, printer);
    tokens += count;
    json["samples"].push_back({{"text", printer.kept()}, {"tokens", count}});
    if (!request.json) {
      std::printf(sample + 1 < request.samples ? "\n---------------\n" : "\n");
    }
  }
  if (request.json) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    json["tokens"] = tokens;
    json["seconds"] = seconds.count();
    json["tokens_per_s"] = static_cast<double>(tokens) / seconds.count();
    std::printf("%s\n", json.dump().c_str());
  }
}

}  // namespace

ExitCode generate_command(const Words& words, World& world, Memory& memory) {
  if (world.size() > 1) {
    throw AgreedError(ExitCode::kConfig,
                      "tandem generate runs as one process; start it without mpirun");
  }
  Request request;
  std::vector<std::string> problems = request.options.apply_words(words, "checkpoint");
  if (!request.help && request.checkpoint.empty()) {
    problems.push_back("--checkpoint is missing, such as `tandem generate runs/NAME`");
  }
  fail_if_any(problems);
  if (request.help) {
    std::fputs(request.options.help().c_str(), stdout);
    return ExitCode::kOk;
  }
  use_cpu_share(request.threads, world.local_size());
  generate(request, world, memory);
  return ExitCode::kOk;
}

}  // namespace tandem

// tandem prepare: reads the options of the kinds of datasets.
#include "src/prepare/prepare.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string_view>
#include <utility>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/options/options.h"

namespace tandem {

namespace {

constexpr const char* kTextUsage = R"(tandem prepare text: makes a dataset of tokens from text

  tandem prepare text --input FILE [FILE ...] --output FILE.h5 --tokenizer char
  tandem prepare text --input web.jsonl.gz --output web.h5 --tokenizer gpt2 --vocab FOLDER_OF_ENCODER_JSON_AND_VOCAB_BPE

Reads plain text, .jsonl or .json (a record a line) and .csv, each also as .gz. The last part of the text becomes the
validation set; of a list, such as one name a line, --shuffle-records makes it a random part.)";

constexpr const char* kSftUsage = R"(tandem prepare sft: makes a dataset from instruction data

  tandem prepare sft --input FILE.jsonl [FILE ...] --output FILE.h5 --tokenizer FOLDER --template chatml

A record has prompt and completion; instruction, output and perhaps input; or messages, a list of role (system, user,
assistant) and content, without tools or a weight other than 1. Only completions are learned. The last records become
the validation set; with --shuffle-records random ones do.)";

constexpr const char* kImagesUsage = R"(tandem prepare images: makes a dataset from labelled images

  tandem prepare images --input PATH --output FILE.h5

PATH is a folder, or a .tar or .tar.gz of one: class folders of JPEG and PNG files, with train/ and test/ or val/ inside
or without; IDX files (MNIST: train-images-idx3-ubyte, train-labels-idx1-ubyte and those of t10k, gzip or not); or
CIFAR-10 binary batches.)";

void require_given(const std::string& what, bool given, std::vector<std::string>& problems) {
  // Options::apply says this of a value that it refused.
  const bool is_refused = std::ranges::any_of(problems, [&](const std::string& problem) {
    return problem.starts_with("command line: " + what + " ");
  });
  if (!given && !is_refused) {
    problems.push_back("--" + what + " is missing; --help shows an example");
  }
}

// Applies the options of `line`. Returns false when help was asked for and printed.
bool read_options(Options& options, const bool& help, const CommandLine& line,
                  std::vector<std::string>& problems) {
  append(problems, options.apply(line.assignments));
  if (help) {
    std::fputs(options.help().c_str(), stdout);
  }
  return !help;
}

// Sets what `--tokenizer` says: a kind, or a folder.
void choose_tokenizer(const std::string& name, PrepareTextOptions& request,
                      std::vector<std::string>& problems) {
  constexpr std::array<std::pair<std::string_view, TokenizerKind>, 4> kKinds = {
      {{"char", TokenizerKind::kChar},
       {"bytes", TokenizerKind::kBytes},
       {"gpt2", TokenizerKind::kGpt2},
       {"bpe", TokenizerKind::kBpe}}};
  const auto kind = std::ranges::find(kKinds, name, [](const auto& one) { return one.first; });
  if (kind != kKinds.end()) {
    request.tokenizer = kind->second;
    require_given("vocab", request.tokenizer != TokenizerKind::kGpt2 || !request.vocab.empty(),
                  problems);
    require_given("vocab-size", request.tokenizer != TokenizerKind::kBpe || request.vocab_size > 0,
                  problems);
  } else if (!request.vocab.empty()) {
    problems.push_back("--vocab: only --tokenizer gpt2 takes a vocabulary from files");
  } else if (!std::filesystem::is_directory(name)) {
    problems.push_back("--tokenizer " + name +
                       ": no such folder; say char, bytes, gpt2, bpe, or name a folder with "
                       "tokenizer.json");
  } else {
    request.tokenizer = TokenizerKind::kHuggingFace;
    request.vocab = name;
  }
}

// The output must replace no input and, unless `force` is set, no other file.
void check_output(const std::string& output, const std::vector<std::string>& inputs, bool force) {
  require_other_output(output, inputs);
  if (!force && std::filesystem::is_regular_file(output)) {
    fail(ExitCode::kConfig, "--output ", output,
         " exists; --force replaces it, or write another file");
  }
}

// Prepares records of either kind: adds the options of both, reads the command line, and then calls
// check(problems) and prepare(request).
template <class Request, class Check>
ExitCode prepare_records(const Words& words, Options& options, Request& request, Check check,
                         PrepareReport (*prepare)(const Request&)) {
  bool shuffle = false, force = false, help = false;
  int64_t seed = 1;
  options.add("shuffle-records", shuffle,
              "put all records, of plain text its lines, into a random order first");
  options.add("seed", seed, "of --shuffle-records");
  options.add("force", force, "replace the dataset if it exists");
  options.add("max-bad", request.max_bad, "broken records that may be left out");
  options.add("max-record-mb", request.limit.mib, "largest record or file inside an archive, MiB",
              1, 1 << 20);
  options.add("help", help, "print this");
  std::vector<std::string> problems;
  const CommandLine line = options.parse(words);
  if (!read_options(options, help, line, problems)) {
    return ExitCode::kOk;
  }
  check(problems);
  request.input.insert(request.input.end(), line.positional.begin(), line.positional.end());
  require_given("input", !request.input.empty(), problems);
  require_given("output", !request.output.empty(), problems);
  if (!shuffle && std::ranges::count(line.assignments, std::string("seed"), &Assignment::key)) {
    problems.push_back("--seed has no meaning without --shuffle-records");
  }
  fail_if_any(problems);
  if (shuffle) {
    request.shuffle_seed = static_cast<uint64_t>(seed);
  }
  check_output(request.output, request.input, force);
  clean_up_on_signals(request.output);
  prepare(request);
  return ExitCode::kOk;
}

ExitCode text(const Words& words) {
  PrepareTextOptions request;
  Options options(kTextUsage);
  options.add("input", request.input, "files to read, in this order");
  options.add("output", request.output, "dataset to write");
  std::string tokenizer = "char";
  options.add(
      "tokenizer", tokenizer,
      "how text becomes tokens: char, bytes, gpt2, bpe (trained on the training part), or a "
      "folder with tokenizer.json");
  options.add("vocab", request.vocab, "folder with encoder.json and vocab.bpe, for gpt2");
  options.add("vocab-size", request.vocab_size, "tokens of a trained tokenizer, for bpe");
  options.add("val-fraction", request.val_fraction,
              "part at the end that becomes the validation set", 0, 0.999);
  options.add("field", request.field,
              "field of a .jsonl record that holds the text; \"text\" when not given");
  options.add("column", request.column, "column of a .csv that holds the text");
  const auto check = [&](std::vector<std::string>& problems) {
    choose_tokenizer(tokenizer, request, problems);
  };
  return prepare_records(words, options, request, check, prepare_text);
}

ExitCode sft(const Words& words) {
  PrepareSftOptions request;
  Options options(kSftUsage);
  options.add("input", request.input,
              "files to read, in this order: .jsonl or .csv, each also as .gz");
  options.add("output", request.output, "dataset to write");
  options.add("tokenizer", request.tokenizer, "folder with tokenizer.json");
  add_template(options, request.form, "how a record becomes text");
  options.add("val-fraction", request.val_fraction,
              "part of the records at the end that becomes the validation set", 0, 0.999);
  const auto check = [&](std::vector<std::string>& problems) {
    require_given("tokenizer", !request.tokenizer.empty(), problems);
  };
  return prepare_records(words, options, request, check, prepare_sft);
}

ExitCode images(const Words& words) {
  PrepareImagesOptions request;
  bool force = false, help = false;
  Options options(kImagesUsage);
  options.add("input", request.input, "folder or archive to read");
  options.add("output", request.output, "dataset to write");
  options.add("val-fraction", request.val_fraction,
              "validation part of each class where the input has no test/ or val/ (IDX: t10k)", 0,
              0.999);
  options.add("width", request.width,
              "with --height: scales the middle of each image to this size; 0: all have one size",
              0, 1 << 14);
  options.add("height", request.height, "see --width", 0, 1 << 14);
  options.add("force", force, "replace the dataset if it exists");
  options.add("max-bad", request.max_bad, "broken or odd images that may be left out");
  options.add("max-record-mb", request.limit.mib, "largest record or file inside an archive, MiB",
              1, 1 << 20);
  options.add("help", help, "print this");
  std::vector<std::string> problems;
  const CommandLine line = options.parse(words);
  for (const std::string& word : line.positional) {
    add_problem(problems, "unexpected word ", word, "; --input takes one folder or archive");
  }
  const auto inputs = std::ranges::count(line.assignments, std::string("input"), &Assignment::key);
  if (inputs > 1) {
    problems.push_back("--input is given more than once; it takes one folder or archive");
  }
  if (!read_options(options, help, line, problems)) {
    return ExitCode::kOk;
  }
  require_given("input", !request.input.empty(), problems);
  require_given("output", !request.output.empty(), problems);
  require_given("width", request.width > 0 || request.height == 0, problems);
  require_given("height", request.height > 0 || request.width == 0, problems);
  fail_if_any(problems);
  check_output(request.output, {request.input}, force);
  clean_up_on_signals(request.output);
  prepare_images(request);
  return ExitCode::kOk;
}

}  // namespace

ExitCode prepare_command(const Words& words, World& world) {
  require_one_process(world, "prepare");
  const std::string kind = words.empty() ? "" : words[0];
  const Words rest(words.empty() ? words.begin() : words.begin() + 1, words.end());
  try {
    if (kind == "text") {
      return text(rest);
    }
    if (kind == "sft") {
      return sft(rest);
    }
    if (kind == "images") {
      return images(rest);
    }
  } catch (const std::bad_alloc&) {
    fail(ExitCode::kOutOfMemory,
         "out of memory; free memory on this machine, or prepare several smaller datasets");
  }
  if (kind == "--help") {
    std::printf(
        "%s\n\n%s\n\n%s\n\nMore: tandem prepare text --help, prepare sft --help, prepare images "
        "--help\n",
        kTextUsage, kSftUsage, kImagesUsage);
    return ExitCode::kOk;
  }
  fail(ExitCode::kConfig, "tandem prepare: say text, sft or images, not \"", kind,
       "\"; --help shows examples");
}

}  // namespace tandem

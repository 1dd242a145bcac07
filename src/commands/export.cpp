// tandem export: a checkpoint as Hugging Face and PyTorch read it.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/visible_text.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/file.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/hugging_face/tokenizer_files.h"
#include "src/weights/hugging_face/writer.h"
#include "src/weights/make_model.h"
#include "src/weights/merged_adapters.h"
#include "src/weights/piece_source.h"
#include "src/weights/run_directory.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEmbedding = "param/wte";

constexpr const char* kUsage = R"(tandem export: writes a model for Hugging Face's transformers

  tandem export runs/NAME --output DIR --dtype bf16
  tandem export runs/TUNED --output DIR [--merge]

In Python: transformers.AutoModelForCausalLM.from_pretrained("DIR"). The model may be larger than
memory: one tensor at a time is read. Of a resnet, model.safetensors has the names of torchvision.
A run with adapters becomes a folder for peft.PeftModel.from_pretrained(model, "DIR"), or, with
--merge, a whole model with the adapters in its weights.)";

struct Request {
  std::string checkpoint, base, adapter, output, tokenizer;
  DType dtype = DType::kF32;
  double shard_gb = 5;
  bool merge = false, help = false;
  Options options{kUsage};

  Request() {
    add_model(options, checkpoint, base, adapter);
    options.add("output", output, "folder to make; there is none of this name, or it is empty");
    options.add_choice("dtype", dtype,
                       {{"f32", DType::kF32}, {"bf16", DType::kBf16}, {"fp16", DType::kFp16}},
                       "type of the weights; rounds to nearest even");
    options.add("shard-gb", shard_gb,
                "largest size of a file, in units of 10^9 bytes; adapters are always one", 1e-6,
                1e6);
    options.add("tokenizer", tokenizer, "file with the tokenizer; the run's own when not given");
    options.add("merge", merge,
                "of a run with adapters: the whole model, with these in its weights");
    options.add("help", help, "print this");
  }
};

// Copies the tokenizer of a Hugging Face model.
void copy_tokenizer(const std::string& from, const std::string& folder) {
  for (const char* name : {"/tokenizer.json", "/tokenizer_config.json", "/chat_template.jinja"}) {
    if (fs::exists(from + name)) {
      fs::copy_file(from + name, folder + name);
    }
  }
}

// Writes the tokenizer of the request or of the model. Returns the tokens around a text.
TextTokens write_tokenizer(const Request& request, const std::string& checkpoint, int64_t context,
                           const std::string& folder) {
  std::string path = request.tokenizer;
  if (path.empty() && is_hugging_face(checkpoint)) {
    copy_tokenizer(checkpoint, folder);
    if (!fs::exists(checkpoint + "/tokenizer.json")) {
      complain(str("no ", checkpoint, "/tokenizer.json: the exported model has no tokenizer"));
    }
    return {};
  }
  if (path.empty()) {
    path = (fs::canonical(checkpoint).parent_path().parent_path() / "tokenizer.h5").string();
    if (!fs::exists(path)) {
      complain(str("no ", path, ": the exported model has no tokenizer"));
      return {};
    }
  }
  if (!request.tokenizer.empty()) {
    require_same_vocabulary(checkpoint, path);
  }
  return write_tokenizer_files(H5Reader(path), context, folder);
}

// The rows of the token embedding in this folder.
int64_t vocabulary_in(const std::string& folder) {
  if (is_hugging_face(folder)) {
    return config_of(folder).model->transformer()->vocab;
  }
  for (const CheckpointReader::Entry& tensor : CheckpointReader(folder).tensors()) {
    if (tensor.name == kEmbedding) {
      return tensor.shape[0];
    }
  }
  fail_data(folder, ": has no tensor ", kEmbedding);
}

int64_t vocabulary_of(const std::string& checkpoint, const std::string& moved_to) {
  const std::vector<Manifest::Base> bases =
      is_hugging_face(checkpoint) ? std::vector<Manifest::Base>() : read_manifest(checkpoint).bases;
  for (const Manifest::Base& base : bases) {
    if (std::ranges::count(base.tensors, kEmbedding) > 0) {
      std::string wrong;
      const std::vector<std::string> places = places_of(base, moved_to);
      for (const std::string& folder : places) {
        try {
          return vocabulary_in(resolve_checkpoint(folder));
        } catch (const Error& error) {
          wrong = wrong.empty() ? error.what() : wrong;
        }
      }
      fail_base(checkpoint, places.front(), wrong);
    }
  }
  return vocabulary_in(checkpoint);
}

void write_resnet(const std::string& checkpoint, const ForeignNames& names,
                  const ExportOptions& options, const std::string& folder) {
  const CheckpointReader reader(checkpoint);
  if (!reader.manifest().bases.empty()) {
    fail(ExitCode::kConfig,
         checkpoint +
             ": refers to weights in another folder, which export does not follow for a "
             "resnet; resume the run with checkpoint.self_contained = true and export that");
  }
  write_torchvision(reader, names, options, folder);
}

// The window of what the run began with; 0 if it began with nothing, or that cannot be read.
int64_t first_window(const std::string& checkpoint, const std::string& init_from) {
  if (init_from.empty()) {
    return 0;
  }
  try {
    const std::string began = RunDirectory::of(checkpoint).find(init_from);
    return config_of(resolve_checkpoint(began)).model->context();
  } catch (const Error& error) {
    complain(str("the exported model reads no further than it was trained: ", error.what()));
    return 0;
  }
}

void write_model(const Request& request, Control& control, const StoredModel& stored,
                 const std::string& folder) {
  const std::string& checkpoint = stored.checkpoint;
  const Config config = config_of(stored);
  const ModelConfig& model = config.model;
  ExportOptions options{.dtype = request.dtype,
                        .shard_bytes = static_cast<int64_t>(request.shard_gb * 1e9)};
  const ForeignNames* names = model->foreign_names();
  if (!names) {
    fail(ExitCode::kConfig, checkpoint, ": model.kind = ", model.kind.name(),
         " is in neither transformers nor torchvision; export a gpt, a llama or a resnet");
  }
  if (request.merge && model.lora.rank == 0) {
    fail(ExitCode::kConfig, checkpoint + ": has no adapters to merge; leave --merge out");
  }
  if (!model->transformer()) {
    if (!request.tokenizer.empty()) {
      fail(ExitCode::kConfig, checkpoint + ": a resnet has no tokenizer; leave --tokenizer out");
    }
    return write_resnet(checkpoint, *names, options, folder);
  }
  TransformerConfig sizes = *model->transformer();
  sizes.vocab = vocabulary_of(checkpoint, stored.base);
  sizes.lora = lora_options(model);
  Transformer whole(sizes);
  const auto weights = open_weights(control, stored, whole);
  const std::string home = weights->home_of(std::string(kEmbedding));
  // It reads as far as before, also if it was trained on shorter texts since.
  sizes.context = std::max(sizes.context,
                           request.merge ? config_of(home).model->context()
                                         : first_window(checkpoint, config.checkpoint.init_from));
  options.around_text = write_tokenizer(request, checkpoint, sizes.context, folder);
  if (is_hugging_face(checkpoint)) {
    const std::vector<int32_t> begins = hugging_face_tokens(checkpoint, "bos_token_id");
    const std::vector<int32_t> ends = hugging_face_tokens(checkpoint, "eos_token_id");
    if (!begins.empty()) {
      options.around_text.before = begins;
    }
    if (!ends.empty()) {
      options.around_text.ends = ends;
    }
  }
  sizes.lora = {};
  Transformer plain(sizes);
  if (model.lora.rank == 0) {
    write_hugging_face(*weights, plain, *names, options, folder);
  } else if (request.merge) {
    write_hugging_face(MergedAdapters(*weights, whole), plain, *names, options, folder);
  } else {
    write_adapters(*weights, whole, *names, options, home, folder);
  }
}

void export_model(const Request& request, Control& control) {
  std::string output = fs::path(request.output).lexically_normal().string();
  output = output.ends_with("/") ? output.substr(0, output.size() - 1) : output;
  const fs::file_status there = fs::symlink_status(output);
  if (fs::exists(there) && !(fs::is_directory(there) && fs::is_empty(output))) {
    fail(ExitCode::kConfig, "--output ", output, ": exists; name another folder");
  }
  const StoredModel stored =
      resolve_model(control, request.checkpoint, request.base, request.adapter);
  if (std::error_code error; fs::exists(there) && !fs::remove(output, error)) {
    fail(ExitCode::kConfig, "--output ", output, ": is in use (", error.message(),
         "); name a folder that is not there yet");
  }
  const std::string partial = output + ".partial";
  remove_tree(partial);
  make_directories(partial);
  try {
    write_model(request, control, stored, partial);
    const char* last = fs::exists(partial + "/config.json") ? "config.json" : "adapter_config.json";
    replace_directory(partial, output, last);
  } catch (...) {
    remove_tree(partial);
    throw;
  }
  show("exported    %s\nto          %s\n", stored.checkpoint.c_str(), output.c_str());
}

}  // namespace

ExitCode export_command(const Words& words, World& world) {
  require_one_process(world, "export");
  Request request;
  std::vector<std::string> problems = request.options.apply_words(words, "checkpoint");
  if (!request.help && (request.checkpoint.empty() || request.output.empty())) {
    problems.push_back("--checkpoint and --output are needed; --help shows an example");
  }
  fail_if_any(problems);
  if (request.help) {
    return print_help(request.options, world);
  }
  export_model(request, world.control());
  return ExitCode::kOk;
}

}  // namespace tandem

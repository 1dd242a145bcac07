#include "tests/bench/gpu/cases.h"

namespace tandem::bench {

namespace {

constexpr int64_t kGpt2Vocab = 50257;

Case gpt(std::string name, int64_t batch, int64_t layers, int64_t heads, int64_t width,
         int64_t context = 1024, int64_t vocab = kGpt2Vocab) {
  return {
      .name = std::move(name),
      .batch = batch,
      .transformer = TransformerConfig{
          .vocab = vocab, .context = context, .layers = layers, .heads = heads, .width = width}};
}

Case llama(std::string name, int64_t batch, const TransformerConfig& config) {
  return {.name = std::move(name), .batch = batch, .transformer = config};
}

std::vector<Case> all_cases() {
  return {
      gpt("gpt2_124m", 64, 12, 12, 768),
      gpt("gpt2_350m", 32, 24, 16, 1024),
      gpt("gpt2_774m", 16, 36, 20, 1280),
      gpt("gpt2_1.5b", 16, 48, 25, 1600),
      // Llama 3.2 1B
      llama("llama_1b", 8,
            {.style = kLlama,
             .vocab = 128256,
             .context = 2048,
             .layers = 16,
             .heads = 32,
             .kv_heads = 8,
             .width = 2048,
             .ffn_width = 8192}),
      {.name = "resnet20", .batch = 128, .resnet = ResNetConfig{}},
      // Small ones, for CPUs.
      gpt("shakespeare_char", 12, 4, 4, 128, 64, 65),
      gpt("gpt_384", 8, 6, 6, 384, 256, 65),
      // To try the program.
      gpt("tiny_gpt", 2, 2, 2, 16, 8, 40),
      llama("tiny_llama", 2,
            {.style = kLlama,
             .vocab = 40,
             .context = 8,
             .layers = 2,
             .heads = 2,
             .kv_heads = 1,
             .width = 16}),
      {.name = "tiny_resnet",
       .batch = 2,
       .resnet = ResNetConfig{.depth = 8, .height = 6, .width = 6}},
  };
}

}  // namespace

std::unique_ptr<Model> Case::make_model() const {
  if (resnet) {
    return make_resnet(*resnet);
  }
  return std::make_unique<Transformer>(*transformer);
}

Case case_of(const Options& options) {
  std::string names;
  for (Case& one : all_cases()) {
    if (one.name == options.name) {
      one.batch = options.batch > 0 ? options.batch : one.batch;
      if (one.transformer) {
        one.transformer->vocab = options.vocab > 0 ? options.vocab : one.transformer->vocab;
        one.transformer = resolved(*one.transformer);
      } else if (options.vocab > 0) {
        fail(ExitCode::kConfig, str("--vocab ", options.vocab, ": ", one.name, " reads images"));
      }
      return one;
    }
    names += (names.empty() ? "" : ", ") + one.name;
  }
  fail(ExitCode::kConfig, "--case " + options.name + ": there are " + names);
}

Case transformer_of(const Options& options) {
  Case found = case_of(options);
  if (!found.transformer) {
    fail(ExitCode::kConfig, str("--case ", found.name, ": ", options.mode, " needs a transformer"));
  }
  return found;
}

}  // namespace tandem::bench

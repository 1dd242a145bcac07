#include "src/inference/model_tokenizer.h"

#include <filesystem>

#include "src/weights/hugging_face/settings.h"
#include "src/weights/run_directory.h"
#include "src/weights/stored_weights.h"

namespace tandem {

std::string tokenizer_path(const std::string& given, const std::string& checkpoint,
                           const Config& config) {
  if (!given.empty()) {
    if (!std::filesystem::is_directory(given)) {
      require_same_vocabulary(checkpoint, given);
    }
    return given;
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

}  // namespace tandem

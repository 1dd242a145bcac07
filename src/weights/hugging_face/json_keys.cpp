#include "src/weights/hugging_face/json_keys.h"

#include <stdexcept>

#include "src/core/visible_text.h"
#include "src/io/file.h"

namespace tandem {

namespace {

constexpr int kDeepest = 16;              // nesting that is read; dump() is recursive
constexpr int64_t kMostBytes = 16 << 20;  // of a file

}  // namespace

std::string shown(const Json& value) {
  return visible(value.dump(-1, ' ', false, Json::error_handler_t::replace)).substr(0, 100);
}

JsonKeys JsonKeys::of(const std::string& path) {
  if (FileReader(path).bytes() > kMostBytes) {
    fail(ExitCode::kData, str(path, ": has over ", kMostBytes, " bytes, too many for settings"));
  }
  const std::string text = read_file(path);
  try {
    Json json = Json::parse(text, [](int depth, Json::parse_event_t, const Json&) {
      if (depth > kDeepest) {
        throw std::out_of_range("nested too deeply");
      }
      return true;
    });
    if (json.is_object()) {
      return {path, std::move(json)};
    }
  } catch (const std::exception& error) {
    fail(ExitCode::kData, str(path, ": cannot be read: ", visible(error.what())));
  }
  fail(ExitCode::kData, path + ": holds no JSON object");
}

}  // namespace tandem

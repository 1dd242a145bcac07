#include "src/weights/hugging_face/json_keys.h"

#include "src/core/visible_text.h"
#include "src/io/file.h"
#include "src/io/json_depth.h"

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
    fail_data(path, ": has over ", kMostBytes, " bytes, too many for settings");
  }
  const std::string text = read_file(path);
  if (json_depth(text) > kDeepest) {
    fail_data(path + ": cannot be read: nested too deeply");
  }
  try {
    Json json = Json::parse(text);
    if (json.is_object()) {
      return {path, std::move(json)};
    }
  } catch (const Json::exception& error) {
    fail_data(path, ": cannot be read: ", visible(error.what()));
  }
  fail_data(path + ": holds no JSON object");
}

}  // namespace tandem

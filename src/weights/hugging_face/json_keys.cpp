#include "src/weights/hugging_face/json_keys.h"

#include "src/core/visible_text.h"
#include "src/io/file.h"
#include "src/io/json_depth.h"

namespace tandem {

namespace {

constexpr int kDeepest = 16;  // nesting that is read; dump() is recursive

}  // namespace

std::string shown(const Json& value) {
  return visible(value.dump(-1, ' ', false, Json::error_handler_t::replace)).substr(0, 100);
}

JsonKeys JsonKeys::of(const std::string& path) {
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

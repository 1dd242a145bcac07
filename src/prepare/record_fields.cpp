#include "src/prepare/record_fields.h"

#include "src/core/error.h"
#include "src/data/utf8.h"

namespace tandem {

using Json = nlohmann::json;

Json parsed_record(const std::string& line, const std::function<bool(std::string_view)>& is_read,
                   std::string* problem) {
  if (valid_utf8_prefix(line) != line.size()) {
    *problem = "not valid UTF-8";
    return nullptr;
  }
  const auto keep = [&](int depth, Json::parse_event_t event, const Json& value) {
    constexpr int kDepthOfContent = 4;  // of what a message has, such as a list of tool calls
    return event == Json::parse_event_t::key && depth == 1
               ? is_read(value.get_ref<const std::string&>())
               : depth <= kDepthOfContent;
  };
  Json record = Json::parse(line, keep, false);
  *problem = record.is_discarded() ? "not valid JSON" : "";
  return record;
}

const std::string& text_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    throw BadRecord(str("no field '", name, "'"));
  }
  if (!found->is_string()) {
    throw BadRecord(str("field '", name, "' is not a string"));
  }
  return found->get_ref<const std::string&>();
}

}  // namespace tandem

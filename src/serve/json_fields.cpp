#include "src/serve/json_fields.h"

#include "src/core/error.h"
#include "src/io/json_depth.h"

namespace tandem {

namespace {

constexpr int kDeepest = 16;
constexpr size_t kMostTexts = 16, kLongestText = 1024;

template <class... Args>
[[noreturn]] void refuse(const char* name, const Args&... why) {
  throw HttpError(400, "'", name, "' ", why...);
}

}  // namespace

nlohmann::json json_object(const std::string& body) {
  if (json_depth(body) > kDeepest) {
    throw HttpError(400, "the body is nested deeper than ", kDeepest);
  }
  try {
    nlohmann::json object = nlohmann::json::parse(body);
    return object.is_object() ? object : throw HttpError(400, "the body is no JSON object");
  } catch (const nlohmann::json::exception&) {
    throw HttpError(400, "the body is no JSON in UTF-8");
  }
}

const nlohmann::json* JsonFields::find(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string JsonFields::text(const char* name, const std::string& otherwise) {
  const nlohmann::json* value = find(name);
  if (value && !value->is_string()) {
    refuse(name, "must be a text");
  }
  return value ? value->get<std::string>() : otherwise;
}

bool JsonFields::flag(const char* name, bool otherwise) {
  const nlohmann::json* value = find(name);
  if (value && !value->is_boolean()) {
    refuse(name, "must be true or false");
  }
  return value ? value->get<bool>() : otherwise;
}

int64_t JsonFields::integer(const char* name, int64_t otherwise, int64_t least, int64_t most) {
  const nlohmann::json* value = find(name);
  if (!value) {
    return otherwise;
  }
  const bool fits =
      value->is_number_integer() &&
      (!value->is_number_unsigned() ||
       value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    refuse(name, "must be a whole number from ", least, " to ", most);
  }
  return value->get<int64_t>();
}

double JsonFields::number(const char* name, double otherwise, double least, double most) {
  const nlohmann::json* value = find(name);
  if (!value) {
    return otherwise;
  }
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    refuse(name, "must be a number from ", least, " to ", most);
  }
  return value->get<double>();
}

std::vector<std::string> JsonFields::texts(const char* name) {
  const nlohmann::json* value = find(name);
  std::vector<std::string> texts;
  for (const nlohmann::json& each : !value              ? nlohmann::json::array()
                                    : value->is_array() ? *value
                                                        : nlohmann::json::array({*value})) {
    const std::string text = each.is_string() ? each.get<std::string>() : "";
    if (text.empty() || text.size() > kLongestText || texts.size() == kMostTexts) {
      refuse(name, "must be a text or a list of at most ", kMostTexts, ", each of 1 to ",
             kLongestText, " bytes");
    }
    texts.push_back(text);
  }
  return texts;
}

void JsonFields::require_unused(const char* name, const nlohmann::json& value) {
  const nlohmann::json* given = find(name);
  if (given && *given != value) {
    refuse(name, "is not supported");
  }
}

void JsonFields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (!value.is_null() && !known_.contains(name)) {
      throw HttpError(400, "parameter '", name.substr(0, 64), "' is not known");
    }
  }
}

}  // namespace tandem

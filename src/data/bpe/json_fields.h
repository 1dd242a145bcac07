// A JSON object from outside, and its fields. Every function throws kData, beginning with `place`,
// when there is something else.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "src/core/error.h"
#include "src/io/json_depth.h"

namespace tandem {

// Nested at most 64 deep, so that functions that call themselves may go through it.
inline nlohmann::json parse_object(std::string_view text, const std::string& place) {
  if (json_depth(text) > 64) {
    fail_data(place, ": nested too deeply");
  }
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    fail_data(place, ": not a JSON object");
  }
  return json;
}

[[noreturn]] inline void fail_field(std::string_view name, std::string_view what,
                                    const std::string& place) {
  fail_data(place, ": \"", name, "\" is missing or is not ", what);
}

// The field, or null when there is none.
inline const nlohmann::json& field_or_null(const nlohmann::json& object, const char* name) {
  static const nlohmann::json null;
  return object.is_object() && object.contains(name) ? object[name] : null;
}

inline std::string string_field(const nlohmann::json& object, const char* name,
                                const std::string& place) {
  const nlohmann::json& field = field_or_null(object, name);
  if (!field.is_string()) {
    fail_field(name, "a text", place);
  }
  return field.get<std::string>();
}

inline const nlohmann::json& array_field(const nlohmann::json& object, const char* name,
                                         const std::string& place) {
  const nlohmann::json& field = field_or_null(object, name);
  if (!field.is_array()) {
    fail_field(name, "a list", place);
  }
  return field;
}

inline bool bool_field(const nlohmann::json& object, const char* name, bool when_missing,
                       const std::string& place) {
  const nlohmann::json& field = field_or_null(object, name);
  if (!field.is_null() && !field.is_boolean()) {
    fail_field(name, "true or false", place);
  }
  return field.is_null() ? when_missing : field.get<bool>();
}

// A token id below `limit`.
inline int32_t id_of_json(const nlohmann::json& id, int64_t limit, std::string_view what,
                          const std::string& place) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(limit)) {
    fail_data(place, ": ", what, " has no id from 0 to ", limit - 1);
  }
  return id.get<int32_t>();
}

}  // namespace tandem

// Settings in the JSON files of Hugging Face's programs.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "src/core/error.h"

namespace tandem {

using Json = nlohmann::json;

// Prints a value as the file has it, fit for a message.
std::string shown(const Json& value);

// A JSON object of a file. A key with the value null counts as left out.
class JsonKeys {
 public:
  // `prefix` stands before keys in messages.
  JsonKeys(std::string path, Json json, std::string prefix = "")
      : path_(std::move(path)), json_(std::move(json)), prefix_(std::move(prefix)) {}

  // Error kData if the file cannot be read, is too large, or holds no object.
  static JsonKeys of(const std::string& path);

  const std::string& path() const { return path_; }
  const Json& json() const { return json_; }
  std::string name(const std::string& key) const { return prefix_ + key; }  // in messages
  // nullptr where the key is left out.
  const Json* find(const std::string& key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  bool is_null(const std::string& key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_null();
  }
  // Error kData where the key is left out.
  const Json& at(const std::string& key) const {
    const Json* value = find(key);
    if (!value) {
      fail_data(path_, ": has no ", name(key));
    }
    return *value;
  }
  // The value, a flag or a number as `otherwise` is, as text of a setting; `otherwise` where it is
  // left out.
  std::string text(const std::string& key, const std::string& otherwise = "") const {
    const Json* value = otherwise.empty() ? &at(key) : find(key);
    const bool is_flag = otherwise == "true" || otherwise == "false";
    if (value && !(is_flag ? value->is_boolean() : value->is_number())) {
      wrong(key, is_flag ? "true or false" : "a number");
    }
    return value ? shown(*value) : otherwise;
  }
  int64_t positive(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value > kLargest || value == 0) {
      wrong(key, str("a whole number from 1 to ", kLargest));
    }
    return value.get<int64_t>();
  }
  // The object of a key; an empty one where it is left out.
  JsonKeys object(const std::string& key) const {
    const Json* value = find(key);
    if (value && !value->is_object()) {
      wrong(key, "an object");
    }
    return {path_, value ? *value : Json::object(), key + "."};
  }
  bool has_objects() const {
    return std::ranges::any_of(json_, [](const Json& value) { return value.is_object(); });
  }

  // For values that no program takes.
  [[noreturn]] void wrong(const std::string& key, const std::string& allowed) const {
    fail_data(path_, ": ", name(key), " = ", shown(at(key)), " must be ", allowed);
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& known) const {
    fail_data(path_, ": ", name(key), " = ", shown(json_.at(key)),
              " is not in this program, which has ", known);
  }
  // Refuses a value that is neither left out nor one of these.
  void require(const std::string& key, std::initializer_list<Json> values,
               const std::string& known) const {
    const Json* value = find(key);
    if (value && std::ranges::find(values, *value) == values.end()) {
      refuse(key, known);
    }
  }

 private:
  static constexpr int64_t kLargest = int64_t{1} << 30;  // no product of two overflows

  std::string path_;
  Json json_;
  std::string prefix_;
};

}  // namespace tandem

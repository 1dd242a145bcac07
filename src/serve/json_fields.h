// Reads the parameters of a request from a JSON object.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "src/serve/http/http_request.h"

namespace tandem {

// The object that a request's body is. HttpError 400 for what is no JSON object in UTF-8, or is
// nested deeper than 16.
nlohmann::json json_object(const std::string& body);

// Fields that are null count as absent. HttpError 400, which names the field, for a value of
// another kind or outside of its limits.
class JsonFields {
 public:
  // `object` must outlive it.
  explicit JsonFields(const nlohmann::json& object) : object_(object) {}

  const nlohmann::json* find(const char* name);  // null: absent
  std::string text(const char* name, const std::string& otherwise = "");
  bool flag(const char* name, bool otherwise);
  int64_t integer(const char* name, int64_t otherwise, int64_t least,
                  int64_t most = std::numeric_limits<int64_t>::max());
  double number(const char* name, double otherwise, double least, double most);
  std::vector<std::string> texts(const char* name);  // a text or a list of at most 16, none empty
  // A parameter that we have not: its only value is the one without an effect.
  void require_unused(const char* name, const nlohmann::json& value);
  // HttpError for a field that nobody asked for: it might change results.
  void finish() const;

 private:
  const nlohmann::json& object_;
  std::set<std::string> known_;
};

}  // namespace tandem

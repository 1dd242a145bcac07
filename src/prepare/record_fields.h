// The fields of a record that is a JSON object.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tandem {

// Why a record cannot be read.
struct BadRecord : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The record of a line, or null and the problem. Fields that `is_read` does not name are checked
// but not stored: lists of numbers take eight times the memory of their text.
nlohmann::json parsed_record(const std::string& line,
                             const std::function<bool(std::string_view)>& is_read,
                             std::string* problem);

// Throws BadRecord if there is none of this name, or if it is no string.
const std::string& text_field(const nlohmann::json& object, const char* name);

}  // namespace tandem

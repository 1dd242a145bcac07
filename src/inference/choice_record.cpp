#include "src/inference/choice_record.h"

#include <unicode/locid.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>
#include <optional>

#include "src/core/error.h"
#include "src/core/parse_number.h"
#include "src/data/chat_template.h"
#include "src/prepare/record_fields.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

bool is_choice_field(std::string_view name) {
  constexpr std::array<std::string_view, 7> kFields = {
      "prompt", "choices", "label", "activity_label", "ctx_a", "ctx_b", "endings"};
  return std::ranges::count(kFields, name) > 0;
}

// Does what Python's str.capitalize() does: the first letter becomes title case, all others small.
std::string capitalized(const std::string& text) {
  const icu::UnicodeString all = icu::UnicodeString::fromUTF8(text);
  const int32_t first = all.moveIndex32(0, 1);
  icu::UnicodeString capital = all.tempSubString(0, first), small = all;
  capital.toTitle(nullptr, icu::Locale::getRoot());
  small.toLower(icu::Locale::getRoot());
  // Small letters of the first one may be several.
  icu::UnicodeString small_first = all.tempSubString(0, first);
  small_first.toLower(icu::Locale::getRoot());
  std::string result;
  (capital + small.tempSubString(small_first.length())).toUTF8String(result);
  return result;
}

void replace_all(std::string& text, std::string_view old, std::string_view with) {
  for (size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + with.size())) {
    text.replace(at, old.size(), with);
  }
}

// Removes each [ with what follows up to the next ] in the same line.
void remove_brackets(std::string& text) {
  for (size_t at = text.find('['); at != std::string::npos; at = text.find('[', at)) {
    const size_t end = text.find_first_of("]\n", at + 1);
    if (end != std::string::npos && text[end] == ']') {
      text.erase(at, end + 1 - at);
    } else {
      ++at;
    }
  }
}

std::string without_markup(const std::string& given) {
  std::string text(stripped(given));
  replace_all(text, " [title]", ". ");
  remove_brackets(text);
  replace_all(text, "  ", " ");
  return text;
}

std::vector<std::string> texts_of(const Json& record, const char* name) {
  const auto list = record.find(name);
  if (list == record.end() || !list->is_array() || list->size() < 2) {
    throw BadRecord(str("field '", name, "' is not a list of two texts or more"));
  }
  std::vector<std::string> texts;
  for (const Json& text : *list) {
    if (!text.is_string()) {
      throw BadRecord(str("field '", name, "' holds something other than texts"));
    }
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

int64_t label_of(const Json& record, size_t choices) {
  const auto label = record.find("label");
  std::optional<int64_t> number;
  if (label != record.end() && label->is_number_integer()) {
    number = label->get<int64_t>();
  } else if (label != record.end() && label->is_string()) {
    number = parse_number<int64_t>(label->get_ref<const std::string&>());
  }
  if (!number || *number < 0 || *number >= static_cast<int64_t>(choices)) {
    throw BadRecord(str("field 'label' is no number of 0 to ", choices - 1));
  }
  return *number;
}

ChoiceRecord record_of(const Json& record) {
  if (!record.is_object()) {
    throw BadRecord("not a JSON object");
  }
  ChoiceRecord result;
  if (record.contains("endings")) {
    result.choices = texts_of(record, "endings");
    std::ranges::transform(result.choices, result.choices.begin(), without_markup);
    result.prompt =
        without_markup(str(text_field(record, "activity_label"), ": ", text_field(record, "ctx_a"),
                           " ", capitalized(text_field(record, "ctx_b"))));
  } else {
    result.prompt = text_field(record, "prompt");
    result.choices = texts_of(record, "choices");
  }
  if (std::ranges::any_of(result.choices, &std::string::empty)) {
    throw BadRecord("a choice is empty");
  }
  result.label = label_of(record, result.choices.size());
  return result;
}

}  // namespace

ChoiceRecord choice_record(const std::string& line, std::string* problem) {
  const Json record = parsed_record(line, is_choice_field, problem);
  if (!problem->empty()) {
    return {};
  }
  try {
    return record_of(record);
  } catch (const BadRecord& bad) {
    *problem = bad.what();
    return {};
  }
}

}  // namespace tandem

#include "src/data/bpe/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/data/bpe/json_fields.h"

namespace tandem {

namespace {

constexpr size_t kBlock = 1 << 20;   // bytes; ICU counts in 32 bits
constexpr size_t kMostGrowth = 64;   // eight spaces for a tab, three bytes for a space: 24
constexpr size_t kMostAdded = 1024;  // bytes beside that

}  // namespace

std::string_view in_normal_form_c(std::string_view text, std::string* storage) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = icu::Normalizer2::getNFCInstance(error);
  bool changed = false;
  for (size_t begin = 0, end = 0; begin < text.size() && U_SUCCESS(error); begin = end) {
    end = std::min(text.size(), begin + kBlock);
    while (end < text.size() && static_cast<uint8_t>(text[end]) >= 0x80) {
      ++end;  // ASCII composes with nothing before it
    }
    const std::string_view block = text.substr(begin, end - begin);
    const icu::StringPiece piece(block.data(), static_cast<int32_t>(block.size()));
    if (!changed && !form->isNormalizedUTF8(piece, error)) {
      changed = true;
      *storage = text.substr(0, begin);
    }
    if (changed) {
      icu::StringByteSink<std::string> sink(storage);
      form->normalizeUTF8(0, piece, sink, nullptr, error);
    }
  }
  require(U_SUCCESS(error), "ICU: ", u_errorName(error));
  return changed ? *storage : text;
}

std::string with_replaced(std::string_view text, std::string_view replaced,
                          std::string_view content, size_t most) {
  std::string result;
  for (size_t found; result.size() <= most && (found = text.find(replaced)) != text.npos;) {
    result.append(text.substr(0, found)).append(content);
    text.remove_prefix(found + replaced.size());
  }
  return result.append(text);
}

Normalizer::Normalizer(std::string_view json, const std::string& place) : place_(place) {
  if (json != "null") {
    read(parse_object(json, place));
  }
}

void Normalizer::read(const nlohmann::json& json) {
  const std::string type = string_field(json, "type", place_);
  const nlohmann::json& pattern = field_or_null(json, "pattern");
  if (type == "Sequence") {
    for (const nlohmann::json& part : array_field(json, "normalizers", place_)) {
      read(part);
    }
  } else if (type == "NFC") {
    steps_.push_back({Step::kNfc, "", ""});
  } else if (type == "Prepend") {
    steps_.push_back({Step::kPrepend, "", string_field(json, "prepend", place_)});
  } else if (type == "Replace" && field_or_null(pattern, "String") != "") {
    steps_.push_back({Step::kReplace, string_field(pattern, "String", place_),
                      string_field(json, "content", place_)});
  } else {
    fail_data(place_, ": ", type,
              " is not supported; NFC, Prepend, Replace of a text and Sequence are");
  }
}

std::string_view Normalizer::normalize(std::string_view text, std::string* storage) const {
  const size_t bytes = text.size(), most = kMostGrowth * bytes + kMostAdded;
  for (const Step& step : steps_) {
    std::string changed;
    if (step.kind == Step::kNfc && in_normal_form_c(text, &changed).data() == text.data()) {
      continue;
    }
    if (step.kind == Step::kReplace) {
      changed = with_replaced(text, step.replaced, step.content, most);
    } else if (step.kind == Step::kPrepend && !text.empty()) {
      changed = step.content + std::string(text);
    }
    if (changed.size() > most) {
      fail_data(place_, " makes over ", most, " bytes of a text of ", bytes,
                "; shorten what it inserts");
    }
    *storage = std::move(changed);
    text = *storage;
  }
  return text;
}

}  // namespace tandem

#include "src/data/bpe/pre_tokenizer.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/data/bpe/json_fields.h"
#include "src/data/bpe/normalizer.h"

namespace tandem {
namespace {

using Json = nlohmann::json;
using Behaviour = PreTokenizer::Behaviour;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int kMostNested = 8;
constexpr size_t kLongestWord = size_t{4} << 20;

constexpr std::array<std::pair<std::string_view, Behaviour>, 5> kBehaviours = {{
    {"Isolated", Behaviour::kIsolated},
    {"Removed", Behaviour::kRemoved},
    {"MergedWithPrevious", Behaviour::kMergedWithPrevious},
    {"MergedWithNext", Behaviour::kMergedWithNext},
    {"Contiguous", Behaviour::kContiguous},
}};

constexpr std::array<std::pair<std::string_view, PreTokenizer::Spaced>, 3> kSpaced = {{
    {"always", PreTokenizer::Spaced::kAlways},
    {"first", PreTokenizer::Spaced::kAtBeginning},
    {"never", PreTokenizer::Spaced::kNever},
}};

// Whether a part of the text, which matches or does not, and the next one become one word.
bool joins(Behaviour behaviour, bool is_match, bool next_is_match) {
  switch (behaviour) {
    case Behaviour::kMergedWithPrevious:
      return !is_match && next_is_match;
    case Behaviour::kMergedWithNext:
      return is_match && !next_is_match;
    case Behaviour::kContiguous:
      return is_match == next_is_match;
    default:
      return false;
  }
}

}  // namespace

// Reads the component and what is in it.
struct PreTokenizer::Reader {
  const std::string& place;
  std::vector<Step>& steps;
  bool ended = false;  // by ByteLevel

  void read(const Json& json, int depth) {
    const std::string type = string_field(json, "type", place);
    if (ended) {
      fail_data(place, ": ", type, " after ByteLevel; ByteLevel must come last");
    }
    if (type == "Sequence" && depth < kMostNested) {
      for (const Json& part : array_field(json, "pretokenizers", place)) {
        read(part, depth + 1);
      }
    } else if (type == "ByteLevel") {
      read_byte_level(json);
    } else if (type == "Digits") {
      add(make_regex("\\p{N}"), bool_field(json, "individual_digits", false, place)
                                    ? Behaviour::kIsolated
                                    : Behaviour::kContiguous);
    } else if (type == "Split") {
      read_split(json);
    } else if (type == "Metaspace") {
      read_metaspace(json);
    } else {
      fail_data(place, ": ", type, depth < kMostNested ? "" : " in Sequences",
                " is not supported; ByteLevel, Split, Digits, Metaspace and Sequence are");
    }
  }

  void read_byte_level(const Json& json) {
    ended = true;
    if (bool_field(json, "add_prefix_space", true, place)) {
      add_space(" ", Spaced::kAlways);
    }
    if (bool_field(json, "use_regex", true, place)) {
      add(make_regex(kGpt2Pattern), Behaviour::kIsolated);
    }
  }

  void read_metaspace(const Json& json) {
    const std::string space = string_field(json, "replacement", place);
    const Json& named = field_or_null(json, "prepend_scheme");
    const std::string name =
        named.is_null() ? "always" : string_field(json, "prepend_scheme", place);
    const auto spaced =
        std::ranges::find(kSpaced, name, &std::pair<std::string_view, Spaced>::first);
    if (spaced == kSpaced.end() || space.empty()) {
      fail_data(place, ": Metaspace with prepend_scheme '", name, "' is not supported");
    }
    const bool prepends = bool_field(json, "add_prefix_space", true, place);
    add_space(space, prepends ? spaced->second : Spaced::kNever);
    if (bool_field(json, "split", true, place)) {
      add(Regex(regex_of_text(space), place), Behaviour::kMergedWithNext);
    }
  }

  void add_space(std::string_view space, Spaced spaced) {
    steps.push_back({{}, Behaviour::kIsolated, false, std::string(space), spaced});
  }

  void read_split(const Json& json) {
    const std::string name = string_field(json, "behavior", place);
    const auto behaviour =
        std::ranges::find(kBehaviours, name, &std::pair<std::string_view, Behaviour>::first);
    if (behaviour == kBehaviours.end()) {
      fail_data(place, ": Split with behavior '", name, "' is not supported");
    }
    const Json& pattern = json.contains("pattern") ? json["pattern"] : Json();
    const bool is_regex = pattern.is_object() && pattern.contains("Regex");
    const std::string text = string_field(pattern, is_regex ? "Regex" : "String", place);
    add(is_regex ? make_regex(text) : Regex(regex_of_text(text), place), behaviour->second,
        bool_field(json, "invert", false, place));
  }

  void add(Regex regex, Behaviour behaviour, bool invert = false) {
    steps.push_back({std::move(regex), behaviour, invert, "", Spaced::kNever});
  }

  Regex make_regex(std::string_view expression) const {
    return {translate_regex(expression, place), place};
  }
};

void check_length(std::string_view word) {
  if (word.size() > kLongestWord) {
    fail_data("a word of more than ", kLongestWord,
              " bytes, which this tokenizer does not cut; put spaces or line ends in, or use the "
              "tokenizer bytes or char");
  }
}

PreTokenizer::PreTokenizer(std::string_view json, const std::string& place, bool of_bytes) {
  Reader reader{place, steps_};
  if (of_bytes || json != "null") {
    reader.read(Json::parse(json, nullptr, false), 0);
  }
  if (of_bytes != reader.ended) {
    fail_data(place, reader.ended ? ": ByteLevel does not go with model.byte_fallback"
                                  : ": there is no ByteLevel and no model.byte_fallback; Tandem "
                                    "reads BPE with one of them");
  }
}

void PreTokenizer::run(size_t index, std::string_view text, bool begins, const Use& use) const {
  if (text.empty()) {
    return;
  }
  if (index == steps_.size()) {
    use(text);
    return;
  }
  const Step& step = steps_[index];
  if (!step.regex) {
    std::string spaced = with_replaced(text, " ", step.space);
    if (!spaced.starts_with(step.space) &&
        (step.spaced == Spaced::kAlways || (step.spaced == Spaced::kAtBeginning && begins))) {
      spaced.insert(0, step.space);
    }
    run(index + 1, spaced, begins, use);
    return;
  }
  size_t begin = 0, end = 0;  // a part that the next one may join
  bool is_match = false;
  const auto pass_on = [&] {
    if (!is_match || step.behaviour != Behaviour::kRemoved) {
      run(index + 1, text.substr(begin, end - begin), begins && begin == 0, use);
    }
  };
  const auto add = [&](size_t next_end, bool next_is_match) {
    if (end == next_end) {
      return;
    }
    next_is_match = next_is_match != step.invert;
    if (begin == end || !joins(step.behaviour, is_match, next_is_match)) {
      pass_on();
      begin = end;
    }
    end = next_end;
    is_match = next_is_match;
  };
  while (end < text.size()) {
    const Regex::Match match = step.regex->find(text, end);
    add(match.begin, false);
    add(match.end, true);
  }
  pass_on();
}

}  // namespace tandem

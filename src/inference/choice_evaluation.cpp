#include "src/inference/choice_evaluation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "src/device/ranks/agreement.h"
#include "src/prepare/record_reader.h"

namespace tandem {

namespace {

// Calls use() for the records of a file. The first `shots` stand before the prompts of the others.
void read_questions(const std::string& file, int64_t shots, Tokenizer& tokenizer, int64_t length,
                    const std::function<void(ChoiceRecord, std::vector<ChoiceTokens>)>& use) {
  std::string examples;
  int64_t number = 0;
  const auto add = [&](std::string* line, const std::string& place) {
    std::string problem;
    ChoiceRecord record = choice_record(*line, &problem);
    if (!problem.empty()) {
      fail_data(place, ": ", problem);
    }
    if (++number <= shots) {
      examples += record.prompt + " " + record.choices[static_cast<size_t>(record.label)] + "\n\n";
      return;
    }
    record.prompt.insert(0, examples);
    std::vector<ChoiceTokens> tokens = choice_tokens(tokenizer, record, length, place);
    use(std::move(record), std::move(tokens));
  };
  for_each_json_line(file, RecordLimit{}, add);
  if (number <= shots) {
    fail_data(file, ": has no questions after the ", shots, " of --shots");
  }
}

}  // namespace

double Share::error() const {
  return all < 2 ? 0 : std::sqrt(value() * (1 - value()) / static_cast<double>(all - 1));
}

void ChoiceEvaluation::count(const ChoiceRecord& record, std::span<const double> sums) {
  std::vector<double> by_byte(sums.begin(), sums.end());
  for (size_t i = 0; i < by_byte.size(); ++i) {
    by_byte[i] /= static_cast<double>(record.choices[i].size());
  }
  acc.count(std::ranges::max_element(sums) - sums.begin() == record.label);
  acc_norm.count(std::ranges::max_element(by_byte) - by_byte.begin() == record.label);
}

void add_questions(const std::string& file, int64_t shots, Tokenizer& tokenizer, int64_t length,
                   ChoiceScorer& scorer) {
  try {
    read_questions(file, shots, tokenizer, length,
                   [&](auto record, const auto& tokens) { scorer.add(std::move(record), tokens); });
    scorer.finish();
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {  // all ranks read the same file
    throw AgreedError(error.code(), error.what());
  }
}

std::string line_of(const ChoiceRecord& record, std::span<const double> sums) {
  nlohmann::ordered_json bytes = nlohmann::json::array();
  for (const std::string& choice : record.choices) {
    bytes.push_back(choice.size());
  }
  return nlohmann::ordered_json{{"label", record.label}, {"sums", sums}, {"bytes", bytes}}.dump() +
         "\n";
}

}  // namespace tandem

#include "src/inference/choice_evaluation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "src/core/hash.h"
#include "src/core/mapped.h"
#include "src/device/ranks/agreement.h"
#include "src/inference/model_tokenizer.h"
#include "src/prepare/record_reader.h"

namespace tandem {

std::string read_questions(const std::string& file, int64_t shots, Tokenizer& tokenizer,
                           int64_t length, const UseQuestion& use) {
  Fnv1a<uint64_t> hash;
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
    std::vector<ChoiceTokens> tokens =
        at_place(place, [&] { return choice_tokens(tokenizer, record, length); });
    hash.add(line_of(record, {}));
    for (const ChoiceTokens& choice : tokens) {
      hash.add(choice.scored);
      std::ranges::for_each(choice.all, [&](int64_t token) { hash.add(token); });
    }
    use(std::move(record), std::move(tokens));
  };
  for_each_json_line(file, file_limit(64), add);
  if (number <= shots) {
    fail_data(file, ": has no questions",
              shots > 0 ? str(" after the ", shots, " of --shots") : "");
  }
  return std::to_string(hash.value());
}

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

RunQuestions::RunQuestions(const Config& config, const RunDirectory& run, const DatasetInfo& data,
                           Control& job)
    : config_(config), data_(data) {
  if (config.train.eval_choices.empty()) {
    return;
  }
  std::string hash;
  const std::string file = run.find(config.train.eval_choices);
  agree(job, [&] {
    hash = read_questions(
        file, 0, *tokenizer_at(data.path), config.model->context(),
        [&](auto record, auto tokens) { all_.emplace_back(std::move(record), std::move(tokens)); });
  });
  check_equal(job, "train.eval_choices = " + file, hash, ExitCode::kData);
}

std::optional<double> RunQuestions::acc(Model& model, const Context& context, Machine& machine,
                                        const std::function<bool()>& stops) const {
  constexpr int64_t kQuestionsUnasked = 16;
  if (all_.empty()) {
    return std::nullopt;
  }
  // Places for batches of the training itself may be without positions.
  Uploader upload(context.stream, context.memory, machine.staging, data_, DType::kF32);
  ChoiceEvaluation result;
  double total = 0;
  ChoiceScorer scorer(model, context, upload, machine.mesh()->model(), config_.model->context(),
                      config_.eval_batch(),
                      [&](const ChoiceRecord& record, std::span<const double> sums) {
                        total += std::accumulate(sums.begin(), sums.end(), 0.0);
                        result.count(record, sums);
                      });
  for (int64_t i = 0; const auto& [record, tokens] : all_) {
    if (i++ % kQuestionsUnasked == 0 && stops()) {
      return std::nullopt;
    }
    scorer.add(record, tokens);
  }
  scorer.finish();
  return std::isfinite(total) ? result.acc.value() : std::numeric_limits<double>::quiet_NaN();
}

std::string line_of(const ChoiceRecord& record, std::span<const double> sums) {
  const std::vector<size_t> bytes = mapped(record.choices, &std::string::size);
  return nlohmann::ordered_json{{"label", record.label}, {"sums", sums}, {"bytes", bytes}}.dump() +
         "\n";
}

}  // namespace tandem

// How many multiple-choice questions a model answers rightly.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/inference/choices.h"
#include "src/machine/machine.h"
#include "src/weights/run_directory.h"

namespace tandem {

// A share of questions. Its standard error is that of the mean of zeros and ones.
struct Share {
  int64_t hits = 0, all = 0;
  void count(bool hit) { hits += hit, ++all; }
  double value() const { return static_cast<double>(hits) / static_cast<double>(all); }
  double error() const;  // 0 for a single question
};

struct ChoiceEvaluation {
  Share acc;       // the likeliest choice is the right one
  Share acc_norm;  // that with the largest log-probability for each byte is

  void count(const ChoiceRecord& record, std::span<const double> sums);
};

using UseQuestion = std::function<void(ChoiceRecord record, std::vector<ChoiceTokens> tokens)>;

// Calls use() for the questions of a file, a record a line (choice_record.h). The first `shots`
// records stand, with their answers, before the prompts of the others. Returns a hash of all
// questions. Error kData, with file and line, for a line that is no record or does not fit a window
// of `length` tokens; and if no question is left.
std::string read_questions(const std::string& file, int64_t shots, Tokenizer& tokenizer,
                           int64_t length, const UseQuestion& use);

// The questions of train.eval_choices, which a run asks at each validation. None if it is empty.
class RunQuestions {
 public:
  // Collective. `config` and `data` must outlive this. AgreedError kData as read_questions(), and
  // if ranks have other questions than rank 0.
  RunQuestions(const Config& config, const RunDirectory& run, const DatasetInfo& data,
               Control& job);
  // Collective. The share that the model answers rightly, ChoiceEvaluation::acc; NaN if a sum is
  // not finite; nothing if there are no questions, or if stops(), which must tell all ranks the
  // same, says true in between. `context` has no tape.
  std::optional<double> acc(Model& model, const Context& context, Machine& machine,
                            const std::function<bool()>& stops) const;

 private:
  const Config& config_;
  const DatasetInfo& data_;
  std::vector<std::pair<ChoiceRecord, std::vector<ChoiceTokens>>> all_;
};

// One JSON object and a newline: the label, the sums, and the bytes of the choices.
std::string line_of(const ChoiceRecord& record, std::span<const double> sums);

}  // namespace tandem

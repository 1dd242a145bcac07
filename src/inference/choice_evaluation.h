// How many multiple-choice questions a model answers rightly.
#pragma once

#include <string>

#include "src/inference/choices.h"

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

// Collective: all ranks read the file, a record a line (choice_record.h). The first `shots` records
// stand, with their answers, before the prompts of the others. AgreedError kData, with file and
// line, for a line that is no record or does not fit a window of `length` tokens; and if no
// question is left.
void add_questions(const std::string& file, int64_t shots, Tokenizer& tokenizer, int64_t length,
                   ChoiceScorer& scorer);

// One JSON object and a newline: the label, the sums, and the bytes of the choices.
std::string line_of(const ChoiceRecord& record, std::span<const double> sums);

}  // namespace tandem

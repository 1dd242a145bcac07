// Records of multiple-choice questions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

struct ChoiceRecord {
  std::string prompt;
  std::vector<std::string> choices;  // none is empty
  int64_t label = 0;                 // the right one
};

// The record of a line, which is a JSON object with
//   prompt, choices (a list of strings), label (a number from 0 on, or such a number as text)
//   or activity_label, ctx_a, ctx_b, endings, label, as HellaSwag has them (Zellers et al. 2019,
//   arXiv:1905.07830). These are prepared as lm-evaluation-harness does: ctx_b begins with a
//   capital, and what stands in brackets is left out.
// Without a problem, *problem is empty.
ChoiceRecord choice_record(const std::string& line, std::string* problem);

}  // namespace tandem

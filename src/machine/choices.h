// A GPU has several ways of computing a product, and cuDNN computes attention, too. Those of a step
// are measured before the first step and kept with the run in choices.json, so that a run that is
// started again has the same bits. KernelChoices are for one kind of GPU and one version of each
// library; the file may hold those of several.
#pragma once

#include <functional>
#include <string>

#include "src/machine/machine.h"
#include "src/product/product_choice.h"

namespace tandem {

struct Chosen {
  std::string text{};    // of choices.json: what was kept, and what was measured
  int64_t measured = 0;  // choices that the job has measured
  double seconds = 0;    // that this took
};

// Collective. This process then follows `kept`, the text of a choices.json or "", and what a step
// of this rank leaves `open` and has no choice there is measured: by the first rank that has it,
// for all ranks with such a GPU. A way that gives wrong results is left out, with a line on
// standard error. So is a library just measured with which `check_fit` throws an AgreedError; it is
// called if any library was chosen, and throws on all ranks if a step does not fit in memory.
// AgreedErrors: kData, with `origin`, if `kept` is no such text; those of measure() and of
// check_fit. On a CPU nothing happens.
Chosen choose(const Machine& machine, const OpenChoices& open, const std::string& kept,
              const std::string& origin, const std::function<void()>& check_fit);

// This process follows the choices in the file that were made with such a GPU and such libraries.
// Nothing happens without a file, and on a CPU. Error kData if it is no choices.json.
void use_kept_choices(const Machine& machine, const std::string& file);

}  // namespace tandem

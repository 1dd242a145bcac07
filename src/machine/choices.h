// A GPU has several ways of computing a product. Those of a step are measured before the first step
// and kept with the run in choices.json, so that a run that is started again has the same bits.
// Choices are for one kind of GPU and one version of cuBLASLt; the file may hold those of several.
#pragma once

#include <string>

#include "src/machine/machine.h"
#include "src/product/product_choice.h"

namespace tandem {

struct Chosen {
  std::string text{};    // of choices.json: what was kept, and what was measured
  int64_t measured = 0;  // products that the job has measured
  double seconds = 0;    // that this took
};

// Collective. Products on the GPU then follow `kept`, the text of a choices.json or "", and
// products without a choice there are measured: by the first rank that has the product, for all
// ranks with such a GPU. `products`: of a step of this rank. A way that gives wrong results is left
// out, with a line on standard error. AgreedErrors: kData, with `origin`, if `kept` is no such
// text; those of measure_products(). On a CPU nothing happens.
Chosen choose_products(const Machine& machine, const ProductSet& products, const std::string& kept,
                       const std::string& origin);

// Products on the GPU follow the choices in the file that were made with such a GPU and such a
// library. Nothing happens without a file, and on a CPU. Error kData if it is no choices.json.
void use_kept_choices(const Machine& machine, const std::string& file);

}  // namespace tandem

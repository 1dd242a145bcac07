#include "src/machine/choices.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/device/dispatch.h"
#include "src/device/ranks/agreement.h"
#include "src/io/file.h"
#include "src/product/measure.h"

namespace tandem {

// Words that are unknown read as the first one; read_choices() notices.
NLOHMANN_JSON_SERIALIZE_ENUM(DType,
                             {{DType::kF32, "f32"}, {DType::kBf16, "bf16"}, {DType::kFp16, "fp16"}})
NLOHMANN_JSON_SERIALIZE_ENUM(Epilogue, {{Epilogue::kNone, "none"},
                                        {Epilogue::kGelu, "gelu"},
                                        {Epilogue::kGeluGradient, "gelu gradient"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProductKey, m, n, k, in, out, a_transposed, b_transposed,
                                   a_stride, b_stride, d_stride, has_bias, accumulates, epilogue)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Alignments, a, b, d, bias, gelu_input)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProductChoice, alignments, is_fused, seconds, first_seconds,
                                   algorithm)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProductChoices, gpu, cublas_lt, products)

namespace {

using nlohmann::json;

using AllChoices = std::vector<ProductChoices>;  // of each GPU and library once

AllChoices read_choices(const std::string& text, const std::string& origin) {
  std::string why = "it is not as it was written";
  try {
    const json written = text.empty() ? json::array() : json::parse(text);
    if (AllChoices all = written; json(all) == written) {
      return all;
    }
  } catch (const json::exception& error) {
    why = error.what();
  }
  fail_data(origin, ": no choices of products (", why, "); remove it, and they are measured again");
}

// Returns the choices for the GPU and the library that `other` is for.
ProductChoices& choices_like(AllChoices& all, const ProductChoices& other) {
  for (ProductChoices& choices : all) {
    if (choices.gpu == other.gpu && choices.cublas_lt == other.cublas_lt) {
      return choices;
    }
  }
  return all.emplace_back(ProductChoices{.gpu = other.gpu, .cublas_lt = other.cublas_lt});
}

// Collective. Returns the products that this rank measures: no earlier rank with such a GPU lacks
// them as well. Alignments are the smallest of all such ranks.
ProductSet to_measure(Control& job, const ProductChoices& own, const ProductSet& missing) {
  std::map<ProductKey, int> measured_by;
  ProductSet all;
  int rank = 0;
  for (const std::string& text : job.all_gather(json({own.gpu, own.cublas_lt, missing}).dump())) {
    const json request = json::parse(text);
    if (request[0] == own.gpu && request[1] == own.cublas_lt) {
      for (const auto& [key, alignments] : request[2].get<ProductSet>()) {
        measured_by.emplace(key, rank);
        add(all, key, alignments);
      }
    }
    ++rank;
  }
  std::erase_if(all, [&](const auto& each) { return measured_by.at(each.first) != job.rank(); });
  return all;
}

}  // namespace

Chosen choose_products(const Machine& machine, const ProductSet& products, const std::string& kept,
                       const std::string& origin) {
  Chosen chosen{.text = kept};
  if constexpr (kHasCuda) {
    if (machine.device() == Device::kCpu) {
      return chosen;
    }
    Control& job = machine.mesh()->job();
    const auto begin = std::chrono::steady_clock::now();
    AllChoices all;
    ProductChoices own;
    ProductSet missing;
    agree(job, [&] {
      all = read_choices(kept, origin);
      own = choices_like(all, no_choices());
      std::ranges::copy_if(products, std::inserter(missing, missing.end()),
                           [&](const auto& each) { return !own.find(each.first, each.second); });
    });
    const ProductSet mine = to_measure(job, own, missing);
    ProductChoices measured;
    agree(job, [&] {
      measured = measure_products(machine.stream, mine, [&](const std::string& warning) {
        std::fprintf(stderr, "tandem: warning: rank %d: %s\n", job.rank(), warning.c_str());
      });
    });
    for (const std::string& text : job.all_gather(json(measured).dump())) {
      const auto theirs = json::parse(text).get<ProductChoices>();
      ProductChoices& choices = choices_like(all, theirs);
      for (const auto& [key, choice] : theirs.products) {
        if (!choices.find(key, choice.alignments)) {
          choices.products.insert_or_assign(key, choice);
          ++chosen.measured;
        }
      }
    }
    chosen.text = json(all).dump(1) + "\n";
    use_choices(std::make_shared<const ProductChoices>(choices_like(all, own)));
    chosen.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return chosen;
}

void use_kept_choices(const Machine& machine, const std::string& file) {
  if constexpr (kHasCuda) {
    if (machine.device() == Device::kCuda && std::filesystem::exists(file)) {
      AllChoices all = read_choices(read_file(file), file);
      use_choices(std::make_shared<const ProductChoices>(choices_like(all, no_choices())));
    }
  }
}

}  // namespace tandem

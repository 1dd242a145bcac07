#include "src/machine/choices.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/core/mapped.h"
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
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LibraryChoice, by_library, own_seconds, other_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(KernelChoices, gpu, cublas_lt, products, libraries)

namespace {

using nlohmann::json;

using AllChoices = std::vector<KernelChoices>;  // of each GPU and library once

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
  fail_data(origin, ": no measured choices (", why, "); remove it, and they are measured again");
}

// Returns the choices for the GPU and the library that `other` is for.
KernelChoices& choices_like(AllChoices& all, const KernelChoices& other) {
  for (KernelChoices& choices : all) {
    if (choices.gpu == other.gpu && choices.cublas_lt == other.cublas_lt) {
      return choices;
    }
  }
  return all.emplace_back(KernelChoices{.gpu = other.gpu, .cublas_lt = other.cublas_lt});
}

// Collective. Returns what this rank measures: no earlier rank with such a GPU lacks it as well.
// Alignments are the smallest of all such ranks.
OpenChoices to_measure(Control& job, const KernelChoices& own, OpenChoices missing) {
  const json request = {own.gpu, own.cublas_lt, missing.products,
                        mapped(std::views::keys(missing.libraries))};
  std::map<ProductKey, int> product_by;
  std::map<std::string, int> library_by;
  int rank = 0;
  for (const std::string& text : job.all_gather(request.dump())) {
    const json other = json::parse(text);
    if (other[0] == own.gpu && other[1] == own.cublas_lt) {
      for (const auto& [key, alignments] : other[2].get<ProductSet>()) {
        product_by.emplace(key, rank);
        add(missing.products, key, alignments);
      }
      for (const json& name : other[3]) {
        library_by.emplace(name, rank);
      }
    }
    ++rank;
  }
  const auto is_for_other = [&](const auto& by) {
    return [&](const auto& each) { return by.at(each.first) != job.rank(); };
  };
  std::erase_if(missing.products, is_for_other(product_by));
  std::erase_if(missing.libraries, is_for_other(library_by));
  return missing;
}

// Collective. Measures, and returns what all ranks have measured.
std::vector<KernelChoices> measured_by_all(const Machine& machine, const OpenChoices& mine) {
  Control& job = machine.mesh()->job();
  KernelChoices measured;
  agree(job, [&] {
    measured = measure(machine.stream, mine, [&](const std::string& warning) {
      std::fprintf(stderr, "tandem: warning: rank %d: %s\n", job.rank(), warning.c_str());
    });
  });
  return mapped(job.all_gather(json(measured).dump()),
                [](const std::string& text) -> KernelChoices { return json::parse(text); });
}

// Adds what was measured and has no choice. Returns its number.
int64_t add(AllChoices& all, const std::vector<KernelChoices>& measured) {
  int64_t added = 0;
  for (const KernelChoices& theirs : measured) {
    KernelChoices& choices = choices_like(all, theirs);
    for (const auto& [key, choice] : theirs.products) {
      if (!choices.find(key, choice.alignments)) {
        choices.products.insert_or_assign(key, choice);
        ++added;
      }
    }
    for (const auto& each : theirs.libraries) {
      added += choices.libraries.insert(each).second ? 1 : 0;
    }
  }
  return added;
}

bool has_library(const AllChoices& all) {
  return std::ranges::any_of(all, [](const KernelChoices& choices) {
    return std::ranges::any_of(choices.libraries,
                               [](const auto& each) { return each.second.by_library; });
  });
}

// Tandem's kernels take the place of the libraries that were just chosen. Returns whether there are
// any.
bool leave_out_libraries(AllChoices& all, const std::vector<KernelChoices>& measured) {
  bool any = false;
  for (const KernelChoices& theirs : measured) {
    for (const auto& [name, choice] : theirs.libraries) {
      any = any || choice.by_library;
      choices_like(all, theirs).libraries.at(name).by_library = false;
    }
  }
  return any;
}

void use(const KernelChoices& choices) {
  use_choices(std::make_shared<const KernelChoices>(choices));
}

}  // namespace

Chosen choose(const Machine& machine, const OpenChoices& open, const std::string& kept,
              const std::string& origin, const std::function<void()>& check_fit) {
  Chosen chosen{.text = kept};
  if constexpr (kHasCuda) {
    if (machine.device() == Device::kCpu) {
      return chosen;
    }
    Control& job = machine.mesh()->job();
    const auto begin = std::chrono::steady_clock::now();
    AllChoices all;
    KernelChoices own;
    OpenChoices missing = open;
    agree(job, [&] {
      all = read_choices(kept, origin);
      own = choices_like(all, no_choices());
      std::erase_if(missing.products,
                    [&](const auto& each) { return own.find(each.first, each.second) != nullptr; });
      std::erase_if(missing.libraries,
                    [&](const auto& each) { return own.libraries.contains(each.first); });
    });
    const std::vector<KernelChoices> measured =
        measured_by_all(machine, to_measure(job, own, std::move(missing)));
    chosen.measured = add(all, measured);
    use(choices_like(all, own));
    if (has_library(all)) {
      try {
        check_fit();
      } catch (const AgreedError& error) {
        if (!leave_out_libraries(all, measured)) {
          throw;
        }
        if (job.rank() == 0) {
          std::fprintf(stderr, "tandem: warning: Tandem's attention is used, not cuDNN's: %s\n",
                       error.what());
        }
        use(choices_like(all, own));
        check_fit();
      }
    }
    chosen.text = json(all).dump(1) + "\n";
    chosen.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return chosen;
}

void use_kept_choices(const Machine& machine, const std::string& file) {
  if constexpr (kHasCuda) {
    if (machine.device() == Device::kCuda && std::filesystem::exists(file)) {
      AllChoices all = read_choices(read_file(file), file);
      use(choices_like(all, no_choices()));
    }
  }
}

}  // namespace tandem

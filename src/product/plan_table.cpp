#include "src/product/plan_table.h"

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <mutex>
#include <sstream>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr std::string_view kTitle = "tandem gemm plans 1";
constexpr std::string_view kColumns =
    "m n k in out a b a_stride b_stride d_stride bias sum epilogue align_a align_b align_d "
    "align_bias align_gelu formulation us first_us candidates algorithm";

thread_local ProductRecorder* recorder = nullptr;

std::mutex plans_mutex;
std::shared_ptr<const PlanTable> plans;

// The word for each value of an enumeration; the place is the value.
constexpr std::string_view kOperations[] = {"N", "T"}, kBias[] = {"-", "bias"},
                           kSum[] = {"-", "add"}, kEpilogues[] = {"-", "gelu", "dgelu"},
                           kFormulations[] = {"separate", "fused"};

// Reads the words of a line, one after another.
class Words {
 public:
  Words(const std::string& line, const std::string& place) : words_(line), place_(place) {}

  std::string next() {
    std::string word;
    if (!(words_ >> word)) {
      wrong("ends too soon");
    }
    return word;
  }
  template <class Number>
  Number number(int base = 10) {
    const std::string word = next();
    Number value{};
    const char* end = word.data() + word.size();
    std::from_chars_result result{};
    if constexpr (std::is_floating_point_v<Number>) {
      result = std::from_chars(word.data(), end, value);
    } else {
      result = std::from_chars(word.data(), end, value, base);
    }
    if (result.ec != std::errc() || result.ptr != end) {
      wrong("has \"" + word + "\" for a number");
    }
    return value;
  }
  template <size_t kCount>
  int one_of(const std::string_view (&choices)[kCount]) {
    const std::string word = next();
    const auto found = std::ranges::find(choices, word);
    if (found == std::end(choices)) {
      wrong("has the unknown word \"" + word + "\"");
    }
    return static_cast<int>(found - choices);
  }
  DType dtype() {
    const std::string word = next();
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      if (word == name_of(dtype)) {
        return dtype;
      }
    }
    wrong("has the unknown type \"" + word + "\"");
  }
  uint32_t alignment() {
    const auto bytes = number<uint32_t>();
    if (bytes == 0 || bytes > 64 || (bytes & (bytes - 1)) != 0) {
      wrong("has an alignment that is no power of 2 up to 64");
    }
    return bytes;
  }
  AlgorithmBytes algorithm() {
    const std::string word = next();
    AlgorithmBytes bytes;
    if (word.size() != 16 * bytes.size()) {
      wrong("has an algorithm of the wrong length");
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = Words(word.substr(16 * i, 16), place_).number<uint64_t>(16);
    }
    return bytes;
  }
  void end() {
    if (std::string word; words_ >> word) {
      wrong("goes on with \"" + word + "\"");
    }
  }
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ExitCode::kConfig, str(place_, " ", what, "; write the table with tandem bench gemm"));
  }

 private:
  std::istringstream words_;
  std::string place_;
};

void read_row(Words words, PlanTable& table) {
  ProductKey key{};
  for (int64_t* size : {&key.m, &key.n, &key.k}) {
    *size = words.number<int64_t>();
  }
  key.in = words.dtype();
  key.out = words.dtype();
  key.a_transposed = words.one_of(kOperations);
  key.b_transposed = words.one_of(kOperations);
  for (int64_t* stride : {&key.a_stride, &key.b_stride, &key.d_stride}) {
    *stride = words.number<int64_t>();
  }
  key.has_bias = words.one_of(kBias);
  key.accumulates = words.one_of(kSum);
  key.epilogue = static_cast<Epilogue>(words.one_of(kEpilogues));
  PlanTable::Row row;
  Alignments& align = row.alignments;
  for (uint32_t* bytes : {&align.a, &align.b, &align.d, &align.bias, &align.gelu_input}) {
    *bytes = words.alignment();
  }
  row.is_fused = words.one_of(kFormulations);
  row.seconds = words.number<double>() * 1e-6;
  row.first_seconds = words.number<double>() * 1e-6;
  row.candidates = words.number<int64_t>();
  if (row.is_fused) {
    row.algorithm = words.algorithm();
  }
  words.end();
  if (!table.rows.emplace(key, row).second) {
    words.wrong("repeats a product");
  }
}

}  // namespace

uint32_t alignment(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 64;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

ProductKey ProductKey::of(const Product& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .in = p.a.data.dtype(),
          .out = p.d.data.dtype(),
          .a_transposed = p.a.transposed,
          .b_transposed = p.b.transposed,
          .a_stride = p.a.row_stride(),
          .b_stride = p.b.row_stride(),
          .d_stride = p.d.row_stride(),
          .has_bias = static_cast<bool>(p.bias),
          .accumulates = p.beta != 0,
          .epilogue = p.epilogue};
}

Alignments Alignments::of(const Product& p) {
  const auto of = [](const Tensor& tensor) { return alignment(tensor ? tensor.raw() : nullptr); };
  return {.a = of(p.a.data),
          .b = of(p.b.data),
          .d = of(p.d.data),
          .bias = of(p.bias),
          .gelu_input = of(p.gelu_input)};
}

bool Alignments::at_least(const Alignments& other) const { return smallest(other) == other; }

Alignments Alignments::smallest(const Alignments& other) const {
  return {.a = std::min(a, other.a),
          .b = std::min(b, other.b),
          .d = std::min(d, other.d),
          .bias = std::min(bias, other.bias),
          .gelu_input = std::min(gelu_input, other.gelu_input)};
}

ProductRecorder::ProductRecorder() : outer_(recorder) { recorder = this; }
ProductRecorder::~ProductRecorder() { recorder = outer_; }

void ProductRecorder::note(const Product& product) {
  if (!recorder || product.m == 0 || product.n == 0 || product.k == 0) {
    return;
  }
  const Alignments now = Alignments::of(product);
  Alignments& least = recorder->products_.try_emplace(ProductKey::of(product), now).first->second;
  least = least.smallest(now);
}

const PlanTable::Row* PlanTable::find(const ProductKey& key, const Alignments& alignments) const {
  const auto found = rows.find(key);
  return found != rows.end() && alignments.at_least(found->second.alignments) ? &found->second
                                                                              : nullptr;
}

std::string PlanTable::text() const {
  std::ostringstream out;
  out << kTitle << "\nlibrary " << cublas_lt << "\ngpu " << gpu << "\n" << kColumns << "\n";
  for (const auto& [key, row] : rows) {
    const Alignments& align = row.alignments;
    out << key.m << ' ' << key.n << ' ' << key.k << ' ' << name_of(key.in) << ' '
        << name_of(key.out) << ' ' << kOperations[key.a_transposed] << ' '
        << kOperations[key.b_transposed] << ' ' << key.a_stride << ' ' << key.b_stride << ' '
        << key.d_stride << ' ' << kBias[key.has_bias] << ' ' << kSum[key.accumulates] << ' '
        << kEpilogues[static_cast<int>(key.epilogue)] << ' ' << align.a << ' ' << align.b << ' '
        << align.d << ' ' << align.bias << ' ' << align.gelu_input << ' '
        << kFormulations[row.is_fused] << std::fixed << std::setprecision(2) << ' '
        << row.seconds * 1e6 << ' ' << row.first_seconds * 1e6 << ' ' << row.candidates;
    if (row.is_fused) {
      out << ' ' << std::hex << std::setfill('0');
      for (const uint64_t word : row.algorithm) {
        out << std::setw(16) << word;
      }
      out << std::dec << std::setfill(' ');
    }
    out << '\n';
  }
  return out.str();
}

PlanTable PlanTable::from_text(const std::string& text, const std::string& origin) {
  std::istringstream lines(text);
  std::string line;
  int number = 0;
  PlanTable table;
  const auto header = [&](std::string_view begin) {
    ++number;
    if (!std::getline(lines, line) || !line.starts_with(begin)) {
      fail(ExitCode::kConfig, str(origin, ":", number, ": no line \"", begin,
                                  "\"; write the table with tandem bench gemm"));
    }
    return line.substr(begin.size());
  };
  header(kTitle);
  table.cublas_lt = header("library ");
  table.gpu = header("gpu ");
  header(kColumns);
  while (std::getline(lines, line)) {
    read_row(Words(line, str(origin, ":", ++number, ":")), table);
  }
  return table;
}

void use_plans(std::shared_ptr<const PlanTable> table) {
  const std::lock_guard lock(plans_mutex);
  plans = std::move(table);
}

std::shared_ptr<const PlanTable> plans_in_use() {
  const std::lock_guard lock(plans_mutex);
  return plans;
}

}  // namespace tandem

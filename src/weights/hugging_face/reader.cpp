#include "src/weights/hugging_face/reader.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "src/core/visible_text.h"
#include "src/weights/hugging_face/names.h"
#include "src/weights/hugging_face/settings.h"

namespace tandem {

namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t size : shape) {
    text += str(text.empty() ? "" : ", ", size);
  }
  return "[" + text + "]";
}

}  // namespace

HuggingFaceReader::HuggingFaceReader(const std::string& folder) : files_(folder) {
  const TransformerConfig config = resolved(*hugging_face_config(folder).model->transformer());
  const bool has_prefix =
      config.style.is_rotary || files_.find(std::string(kGpt2Prefix) + "wte.weight");
  std::set<std::string> used;
  for (HuggingFaceParameter& parameter : hugging_face_parameters(config)) {
    for (HuggingFaceTensor& part : parameter.parts) {
      if (!has_prefix && part.name.starts_with(kGpt2Prefix)) {
        part.name.erase(0, kGpt2Prefix.size());
      }
      const SafetensorsEntry* entry = files_.find(part.name);
      if (!entry) {
        fail(ExitCode::kData, str(folder, ": has no tensor ", part.name, " ", part.shape,
                                  ", which its config.json asks for"));
      }
      if (entry->dtype != "F32" && entry->dtype != "F16" && entry->dtype != "BF16") {
        fail(ExitCode::kData, str(folder, ": ", part.name, " has type ", visible(entry->dtype),
                                  "; weights may be F32, F16 or BF16"));
      }
      if (!std::ranges::equal(entry->shape, part.shape.sizes())) {
        fail(ExitCode::kData, str(folder, ": ", part.name, " is ", text_of(entry->shape),
                                  ", its config.json asks for ", part.shape));
      }
      used.insert(part.name);
    }
    parameter.name = "param/" + parameter.name;
    parameters_[parameter.name] = parameter;
  }
  for (const SafetensorsEntry& entry : files_.tensors()) {
    if (!used.contains(entry.name) && !is_no_hugging_face_parameter(entry.name, config)) {
      fail(ExitCode::kData, str(folder, ": tensor ", visible(entry.name),
                                " has no place in the model that its config.json describes"));
    }
  }
  is_tied_ = config.tie_embeddings;
}

// Compares rows, bit by bit.
void HuggingFaceReader::require_tied() const {
  constexpr std::string_view head = "lm_head.weight";
  if (!is_tied_ || !files_.find(head)) {
    return;
  }
  const HuggingFaceTensor& embedding = parameters_.at("param/wte").parts[0];
  const Shape& shape = embedding.shape;
  bool same = std::ranges::equal(files_.find(head)->shape, shape.sizes());
  std::vector<float> ours(static_cast<size_t>(shape[1])), theirs(ours.size());
  for (int64_t row = 0; same && row < shape[0]; ++row) {
    files_.read(embedding.name, row * shape[1], ours);
    files_.read(head, row * shape[1], theirs);
    same = std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) == 0;
  }
  if (!same) {
    fail(ExitCode::kData, str(files_.path(), ": ", head, " is not ", embedding.name,
                              ", though config.json ties them; set tie_word_embeddings to false"));
  }
}

void HuggingFaceReader::require_tensor(const std::string& name, const Shape& shape) const {
  const auto found = parameters_.find(name);
  if (found == parameters_.end() || found->second.shape != shape) {
    fail(ExitCode::kData,
         str(files_.path(), ": has no ", name, " ", shape, "; it is another model"));
  }
}

void HuggingFaceReader::read(const Slab& slab) const {
  require_tensor(slab.name, slab.slice.whole());
  const HuggingFaceParameter& parameter = parameters_.at(slab.name);
  float* out = slab.data.data<float>();
  for (int64_t done = 0; done < slab.data.elements();) {
    Range run = slab.slice.run_at(slab.offset + done);
    run.end = std::min(run.end, run.begin + slab.data.elements() - done);
    read_range(parameter, run, out + done);
    done += run.count();
  }
}

// Elements `range` of our parameter.
void HuggingFaceReader::read_range(const HuggingFaceParameter& parameter, Range range,
                                   float* out) const {
  int64_t first = 0;  // element of the parameter where the part begins
  for (const HuggingFaceTensor& part : parameter.parts) {
    const Range here =
        intersection({range.begin - first, range.end - first}, {0, part.shape.elements()});
    if (here.count() > 0) {
      float* to = out + (first + here.begin - range.begin);
      if (part.transposed) {
        read_transposed(part, here, to);
      } else {
        files_.read(part.name, here.begin, {to, static_cast<size_t>(here.count())});
      }
    }
    first += part.shape.elements();
  }
}

// Elements `range` of the transposed tensor. The file has [columns, rows]: some of our rows are a
// stretch of each of its rows.
void HuggingFaceReader::read_transposed(const HuggingFaceTensor& tensor, Range range,
                                        float* out) const {
  const int64_t columns = tensor.shape[0], rows = tensor.shape[1];
  const int64_t first = range.begin / columns, last = (range.end + columns - 1) / columns;
  std::vector<float> stretch(static_cast<size_t>(last - first));
  for (int64_t column = 0; column < columns; ++column) {
    files_.read(tensor.name, column * rows + first, stretch);
    for (int64_t row = first; row < last; ++row) {
      const int64_t element = row * columns + column;
      if (range.begin <= element && element < range.end) {
        out[element - range.begin] = stretch[static_cast<size_t>(row - first)];
      }
    }
  }
}

}  // namespace tandem

#include "src/weights/hugging_face/reader.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "layers/models/transformer.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/weights/hugging_face/names.h"
#include "src/weights/hugging_face/settings.h"

namespace tandem {

namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  return "[" + joined(mapped(shape, [](int64_t size) { return str(size); })) + "]";
}

}  // namespace

HuggingFaceReader::HuggingFaceReader(const std::string& folder) : files_(folder) {
  const ModelConfig config = hugging_face_config(folder).model;
  const ForeignNames& names = *config->foreign_names();
  Transformer model(*config->transformer());
  is_tied_ = model.config().tie_embeddings;
  const bool has_prefix = !names.is_conv1d || files_.find(str(kGpt2Prefix, "wte.weight"));
  std::set<std::string> used;
  for (ForeignTensor& tensor : foreign_tensors(model, names)) {
    if (!has_prefix && tensor.name.starts_with(kGpt2Prefix)) {
      tensor.name.erase(0, kGpt2Prefix.size());
    }
    const SafetensorsEntry* entry = files_.find(tensor.name);
    if (!entry) {
      fail_data(folder, ": has no tensor ", tensor.name, " ", tensor.shape,
                ", which its config.json asks for");
    }
    if (entry->dtype != "F32" && entry->dtype != "F16" && entry->dtype != "BF16") {
      fail_data(folder, ": ", tensor.name, " has type ", visible(entry->dtype),
                "; weights may be F32, F16 or BF16");
    }
    if (!std::ranges::equal(entry->shape, tensor.shape.sizes())) {
      fail_data(folder, ": ", tensor.name, " is ", text_of(entry->shape),
                ", its config.json asks for ", tensor.shape);
    }
    used.insert(tensor.name);
    int64_t first = 0;
    for (const Piece& piece : tensor.pieces) {
      const std::string name = "param/" + piece.name;
      entries_[name] = {name, piece.slice.whole(), tensor, first};
      first += piece.slice.elements();
    }
  }
  const auto is_known = [&](const std::string& name) {
    return used.contains(name) || (is_tied_ && name == kHeadName) ||
           std::ranges::any_of(names.buffers,
                               [&](std::string_view end) { return name.ends_with(end); });
  };
  for (const SafetensorsEntry& entry : files_.tensors()) {
    if (!is_known(entry.name)) {
      fail_data(folder, ": tensor ", visible(entry.name),
                " has no place in the model that its config.json describes");
    }
  }
}

// Compares rows, bit by bit.
void HuggingFaceReader::require_tied() const {
  if (!is_tied_ || !files_.find(kHeadName)) {
    return;
  }
  const ForeignTensor& embedding = entries_.at("param/wte").there;
  const Shape& shape = embedding.shape;
  bool same = std::ranges::equal(files_.find(kHeadName)->shape, shape.sizes());
  std::vector<float> ours(static_cast<size_t>(shape[1])), theirs(ours.size());
  for (int64_t row = 0; same && row < shape[0]; ++row) {
    files_.read(embedding.name, row * shape[1], ours);
    files_.read(kHeadName, row * shape[1], theirs);
    same = std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) == 0;
  }
  if (!same) {
    fail_data(files_.path(), ": ", kHeadName, " is not ", embedding.name,
              ", though config.json ties them; set tie_word_embeddings to false");
  }
}

void HuggingFaceReader::require_tensor(const std::string& name, const Shape& shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.shape != shape) {
    fail_data(files_.path(), ": has no ", name, " ", shape, "; it is another model");
  }
}

void HuggingFaceReader::read(const Slab& slab) const {
  require_tensor(slab.name, slab.slice.whole());
  const Entry& entry = entries_.at(slab.name);
  float* out = slab.data.data<float>();
  for (int64_t done = 0; done < slab.data.elements();) {
    Range run = slab.slice.run_at(slab.offset + done);
    run.end = std::min(run.end, run.begin + slab.data.elements() - done);
    read_range(entry, run, out + done);
    done += run.count();
  }
}

// Elements `range` of our tensor.
void HuggingFaceReader::read_range(const Entry& entry, Range range, float* out) const {
  const Range there{entry.first + range.begin, entry.first + range.end};
  if (entry.there.transposed) {
    read_transposed(entry.there, there, out);
  } else {
    files_.read(entry.there.name, there.begin, {out, static_cast<size_t>(there.count())});
  }
}

// Elements `range` of the transposed tensor. The file has [columns, rows]: some of our rows are a
// stretch of each of its rows.
void HuggingFaceReader::read_transposed(const ForeignTensor& tensor, Range range,
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

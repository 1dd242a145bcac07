// Reads the weights of a Hugging Face model as those of ours.
#pragma once

#include <map>
#include <ranges>
#include <string>
#include <string_view>

#include "src/device/slab.h"
#include "src/io/safetensors/safetensors.h"
#include "src/weights/hugging_face/names.h"

namespace tandem {

// Serves "param/NAME" for each piece of the model. Reads only the bytes that are asked for, and of
// a transposed matrix the whole rows that they are in. Functions throw Error(kData).
class HuggingFaceReader final : public TensorSource {
 public:
  // Reads config.json and the headers. Throws unless the files hold the tensors of that model, with
  // their shapes and as F32, F16 or BF16, and no others.
  explicit HuggingFaceReader(const std::string& folder);

  // Where one of our tensors is.
  struct Entry {
    std::string name;     // as in Slab
    Shape shape;          // of ours
    ForeignTensor there;  // the tensor that holds it
    int64_t first = 0;    // element of it, in our order, where it begins
  };
  // Sorted by name.
  auto tensors() const { return std::views::values(entries_); }

  // Reads the copy of a tied head that some files hold, and throws unless it equals the embedding.
  void require_tied() const;

  void require_tensor(const std::string& name, const Shape& shape) const override;
  void read(const Slab& slab) const override;
  std::string home_of(const std::string& /*name*/) const override { return files_.path(); }

 private:
  void read_range(const Entry& entry, Range range, float* out) const;
  void read_transposed(const ForeignTensor& tensor, Range range, float* out) const;

  SafetensorsReader files_;
  bool is_tied_ = false;
  std::map<std::string, Entry> entries_;  // by name
};

}  // namespace tandem

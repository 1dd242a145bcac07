#include "src/io/safetensors/header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/core/visible_text.h"

namespace tandem {

namespace {

using Json = nlohmann::json;

constexpr int kDeepestIndex = 16;
constexpr size_t kMostSizes = 64;  // in a shape

std::string shortened(std::string text, size_t limit) {
  if (text.size() > limit) {
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0U) == 0x80U) {
      --limit;  // not within a character
    }
    text = text.substr(0, limit) + "...";
  }
  return text;
}

const std::string& name_of(const SafetensorsPlace& tensor) { return tensor.entry.name; }

// Reads JSON without building it, so that memory does not depend on its nesting.
class StrictReader : public nlohmann::json_sax<Json> {
 public:
  explicit StrictReader(const std::string& path) : path_(path) {}

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return bad_number("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return bad_number("a number that is not whole, or too large");
  }
  bool binary(binary_t&) override { return other(); }
  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    refuse(str("not JSON: ", shortened(visible(error.what()), 200)));
  }

 protected:
  void read(std::string_view json) {
    if (json.find('\0') != std::string_view::npos) {
      refuse("not JSON: it has a zero byte");  // the library would end there
    }
    Json::sax_parse(json.begin(), json.end(), this);
  }

  virtual bool other() = 0;  // a value that is no text and no whole number
  virtual bool bad_number(const char*) { return other(); }

  [[noreturn]] void refuse(const std::string& why) const { fail_data(path_, ": ", why); }
  [[noreturn]] void refuse(const std::string& tensor, const std::string& why) const {
    refuse(str("tensor ", shown_name(tensor), ": ", why));
  }

  const std::string& path_;
};

class HeaderReader final : public StrictReader {
 public:
  HeaderReader(int64_t data_bytes, const std::string& path)
      : StrictReader(path), data_bytes_(data_bytes) {}

  std::vector<SafetensorsPlace> parse(std::string_view header) {
    read(header);
    std::ranges::sort(tensors_, {}, name_of);
    refuse_twins();
    require_every_byte_once();
    return std::move(tensors_);
  }

  bool start_object(size_t) override {
    if (level_ >= kInTensor || (level_ == kTop && is_array_)) {
      refuse_here("an object where none may be");
    }
    ++level_;
    return true;
  }

  bool key(string_t& key) override {
    if (level_ == kTop) {
      tensor_ = {.entry = {.name = std::move(key), .dtype = {}, .shape = {}}};
      fields_ = {};
      is_metadata_ = tensor_.entry.name == "__metadata__";
      if (is_metadata_ && std::exchange(has_metadata_, true)) {
        refuse("__metadata__ stands in it twice");
      }
    } else if (is_metadata_) {
      metadata_keys_.push_back(std::move(key));
    } else {
      const auto* field = std::ranges::find(kFields, key);
      if (field == std::end(kFields)) {
        refuse_here(str("unknown field ", shown_name(key)));
      }
      field_ = static_cast<size_t>(field - kFields);
      if (std::exchange(fields_[field_], true)) {
        refuse_here(str(key, " stands in it twice"));
      }
    }
    return true;
  }

  bool string(string_t& text) override {
    if (level_ == kInTensor && is_metadata_) {
      return true;
    }
    if (level_ != kInTensor || is_array_ || field_ != kDtype) {
      return other();
    }
    tensor_.entry.dtype = std::move(text);
    return true;
  }

  bool start_array(size_t) override {
    if (level_ != kInTensor || is_metadata_ || is_array_ || field_ == kDtype) {
      return other();
    }
    is_array_ = true;
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (!is_array_) {
      return other();
    }
    if (!std::in_range<int64_t>(number)) {
      refuse_here(str(kFields[field_], " has the number ", number, ", which is too large"));
    }
    if (numbers_.size() == (field_ == kOffsets ? 2 : kMostSizes)) {
      refuse_here(str(kFields[field_], " has too many numbers"));
    }
    numbers_.push_back(static_cast<int64_t>(number));
    return true;
  }

  bool end_array() override {
    is_array_ = false;
    if (field_ == kShape) {
      tensor_.entry.shape = numbers_;
    } else if (numbers_.size() != 2) {
      refuse_here("data_offsets are not two numbers");
    } else {
      tensor_.begin = numbers_[0];
      tensor_.end = numbers_[1];
    }
    return true;
  }

  bool end_object() override {
    if (level_ == kInTensor && !is_metadata_) {
      check_tensor();
      tensors_.push_back(std::move(tensor_));
    } else if (level_ == kInTensor) {
      std::ranges::sort(metadata_keys_);
      if (const auto twin = std::ranges::adjacent_find(metadata_keys_);
          twin != metadata_keys_.end()) {
        refuse(str("__metadata__ has the key ", shown_name(*twin), " twice"));
      }
    }
    --level_;
    return true;
  }

 private:
  enum Level { kOutside, kTop, kInTensor };
  enum Field { kDtype, kShape, kOffsets };
  static constexpr const char* kFields[] = {"dtype", "shape", "data_offsets"};

  [[noreturn]] void refuse_here(const std::string& why) const {
    if (level_ == kOutside) {
      refuse("the header is not a JSON object");
    } else if (is_metadata_) {
      refuse(str("__metadata__: ", why));
    }
    refuse(tensor_.entry.name, why);
  }

  bool other() override {
    refuse_here(is_metadata_ ? "a value that is not a text" : "a value of a wrong type");
  }
  bool bad_number(const char* kind) override {
    refuse_here(is_array_ ? str(kFields[field_], " has ", kind) : "a value of a wrong type");
  }

  void check_tensor() const {
    for (size_t field = 0; field < std::size(kFields); ++field) {
      if (!fields_[field]) {
        refuse_here(str(kFields[field], " is missing"));
      }
    }
    const SafetensorsEntry& entry = tensor_.entry;
    const int64_t bits = bits_of_safetensors_type(entry.dtype);
    if (bits == 0) {
      refuse_here(str("unknown type ", shown_name(entry.dtype)));
    }
    int64_t size = bits;
    for (const int64_t count : entry.shape) {
      if (__builtin_mul_overflow(size, count, &size)) {
        refuse_here("its shape is too large");
      }
    }
    if (tensor_.end < tensor_.begin) {
      refuse_here(str("its bytes end at ", tensor_.end, ", before they begin at ", tensor_.begin));
    }
    if (tensor_.end > data_bytes_) {
      refuse_here(str("its bytes end at ", tensor_.end, ", but the file has only ", data_bytes_,
                      " bytes of data; it may be cut short"));
    }
    if (size % 8 != 0 || size / 8 != tensor_.end - tensor_.begin) {
      refuse_here(str("its shape and type need ", size / 8, " bytes, but it has ",
                      tensor_.end - tensor_.begin));
    }
  }

  void refuse_twins() const {
    const auto twin = std::ranges::adjacent_find(tensors_, {}, name_of);
    if (twin != tensors_.end()) {
      refuse(twin->entry.name, "it stands in the header twice");
    }
  }

  void require_every_byte_once() const {
    std::vector<const SafetensorsPlace*> order;
    for (const SafetensorsPlace& tensor : tensors_) {
      order.push_back(&tensor);
    }
    std::ranges::sort(order, {},
                      [](const auto* tensor) { return std::pair(tensor->begin, tensor->end); });
    int64_t at = 0;
    const std::string* before = nullptr;
    for (const SafetensorsPlace* tensor : order) {
      if (tensor->begin < at) {
        refuse(tensor->entry.name, str("its bytes overlap those of tensor ", shown_name(*before)));
      }
      if (tensor->begin > at) {
        refuse(tensor->entry.name, str("a gap of ", tensor->begin - at, " bytes before it"));
      }
      at = tensor->end;
      before = &tensor->entry.name;
    }
    if (at != data_bytes_) {
      refuse(str(data_bytes_ - at, " bytes after the last tensor",
                 before ? ", " + shown_name(*before) : "", " that belong to none"));
    }
  }

  int64_t data_bytes_;
  int level_ = kOutside;
  bool is_array_ = false, is_metadata_ = false, has_metadata_ = false;
  size_t field_ = 0;
  std::array<bool, std::size(kFields)> fields_{};  // that the tensor has had
  std::vector<int64_t> numbers_;
  SafetensorsPlace tensor_;
  std::vector<SafetensorsPlace> tensors_;
  std::vector<std::string> metadata_keys_;
};

// Everything but weight_map is passed over.
class IndexReader final : public StrictReader {
 public:
  using StrictReader::StrictReader;

  std::vector<SafetensorsMapping> parse(std::string_view index) {
    read(index);
    if (map_.empty()) {
      refuse("weight_map is missing or empty");
    }
    std::ranges::sort(map_, {}, &SafetensorsMapping::tensor);
    if (const auto twin = std::ranges::adjacent_find(map_, {}, &SafetensorsMapping::tensor);
        twin != map_.end()) {
      refuse(twin->tensor, "it stands in weight_map twice");
    }
    return std::move(map_);
  }

  bool start_object(size_t) override {
    if (is_map()) {
      other();
    }
    return enter();
  }
  bool start_array(size_t) override {
    if (level_ == 0 || is_weight_map()) {
      other();
    }
    return enter();
  }
  bool end_object() override { return --level_ >= 0; }
  bool end_array() override { return --level_ >= 0; }

  bool key(string_t& key) override {
    if (level_ == 1) {
      is_weights_ = key == "weight_map";
      if (is_weights_ && std::exchange(had_weights_, true)) {
        refuse("weight_map stands in it twice");
      }
    }
    key_ = std::move(key);
    return true;
  }

  bool string(string_t& shard) override {
    if (!is_map()) {
      return other();
    }
    if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos ||
        visible(shard) != shard) {
      refuse(key_, str("its shard ", shown_name(shard), " is not the name of a file beside it"));
    }
    map_.push_back({std::move(key_), std::move(shard)});
    return true;
  }
  bool number_unsigned(number_unsigned_t) override { return other(); }

 private:
  bool is_weight_map() const { return level_ >= 1 && is_weights_; }  // or inside
  bool is_map() const { return level_ == 2 && is_weights_; }

  bool enter() {
    if (++level_ > kDeepestIndex) {
      refuse(str("nested more than ", kDeepestIndex, " levels deep"));
    }
    return true;
  }
  bool other() override {
    if (level_ == 0) {
      refuse("not a JSON object");
    } else if (is_map()) {
      refuse(key_, "its shard is not a text");
    } else if (is_weight_map()) {
      refuse("weight_map is not an object");
    }
    return true;
  }

  int level_ = 0;
  bool is_weights_ = false, had_weights_ = false;
  std::string key_;
  std::vector<SafetensorsMapping> map_;
};

}  // namespace

int64_t bits_of_safetensors_type(std::string_view dtype) {
  constexpr std::pair<std::string_view, int64_t> kBits[] = {
      {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},    {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32}, {"I64", 64},    {"U64", 64},    {"F64", 64},    {"C64", 64}};
  const auto* found = std::ranges::find(kBits, dtype, &std::pair<std::string_view, int64_t>::first);
  return found == std::end(kBits) ? 0 : found->second;
}

std::string shown_name(const std::string& name) {
  return shortened(visible(name.substr(0, 200)), 100);
}

std::vector<SafetensorsPlace> parse_safetensors_header(std::string_view header, int64_t data_bytes,
                                                       const std::string& path) {
  return HeaderReader(data_bytes, path).parse(header);
}

std::vector<SafetensorsMapping> parse_safetensors_index(std::string_view json,
                                                        const std::string& path) {
  return IndexReader(path).parse(json);
}

}  // namespace tandem

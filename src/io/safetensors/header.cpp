#include "src/io/safetensors/header.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"

namespace tandem {

namespace {

using Json = nlohmann::json;

constexpr int kDeepestIndex = 16;
constexpr size_t kMostSizes = 64;  // in a shape

const std::string& name_of(const SafetensorsPlace& tensor) { return tensor.entry.name; }

using Event = Json::parse_event_t;

struct Refusal {
  const std::string& path;
  [[noreturn]] void operator()(const std::string& why) const { fail_data(path, ": ", why); }
  [[noreturn]] void operator()(const std::string& tensor, const std::string& why) const {
    (*this)(str("tensor ", shown_name(tensor), ": ", why));
  }
};

// `check` sees each event before anything is stored, and the number of objects and arrays around
// it. It throws for what may not be there, and gives false for what need not be kept, so memory
// depends on no nesting.
Json parsed(std::string_view json, const Refusal& refuse, const Json::parser_callback_t& check) {
  if (json.find('\0') != std::string_view::npos) {
    refuse("not JSON: it has a zero byte");  // the library would end there
  }
  try {
    return Json::parse(json.begin(), json.end(), check);
  } catch (const Json::exception& error) {
    refuse(str("not JSON: ", shortened(visible(error.what()), 200)));
  }
}

void require_no_twin(std::vector<std::string> names,
                     const std::function<void(const std::string&)>& refuse_twin) {
  std::ranges::sort(names);
  const auto twin = std::ranges::adjacent_find(names);
  if (twin != names.end()) {
    refuse_twin(*twin);
  }
}

class HeaderReader {
 public:
  HeaderReader(int64_t data_bytes, const std::string& path)
      : refuse_{path}, data_bytes_(data_bytes) {}

  std::vector<SafetensorsPlace> parse(std::string_view header) {
    parsed(header, refuse_, [&](int around, Event event, Json& value) {
      switch (around) {
        case 0:
          return require_object(event);
        case 1:
          return of_header(event, value);
        case 2:
          return of_tensor(event, value);
        default:
          return number_of_list(event, value);
      }
    });
    std::ranges::sort(tensors_, {}, name_of);
    refuse_twins();
    require_every_byte_once();
    return std::move(tensors_);
  }

 private:
  enum Field { kDtype, kShape, kOffsets };
  static constexpr const char* kFields[] = {"dtype", "shape", "data_offsets"};

  [[noreturn]] void refuse_here(const std::string& why) const {
    is_metadata_ ? refuse_("__metadata__: " + why) : refuse_(name_, why);
  }
  [[noreturn]] void refuse_type(Event event) const {
    refuse_here(event == Event::object_start ? "an object where none may be"
                : is_metadata_               ? "a value that is not a text"
                                             : "a value of a wrong type");
  }

  bool require_object(Event event) const {
    if (event != Event::object_start && event != Event::object_end) {
      refuse_("the header is not a JSON object");
    }
    return true;
  }

  bool of_header(Event event, const Json& value) {
    if (event == Event::key) {
      name_ = value.get<std::string>();
      fields_ = {};
      is_metadata_ = name_ == "__metadata__";
      if (is_metadata_ && std::exchange(has_metadata_, true)) {
        refuse_("__metadata__ stands in it twice");
      }
    } else if (event == Event::object_end && is_metadata_) {
      require_no_twin(metadata_keys_, [&](const std::string& twin) {
        refuse_(str("__metadata__ has the key ", shown_name(twin), " twice"));
      });
    } else if (event == Event::object_end) {
      add_tensor(value);
    } else if (event != Event::object_start) {
      refuse_type(event);
    }
    return event != Event::object_end;
  }

  bool of_tensor(Event event, const Json& value) {
    if (event == Event::key && is_metadata_) {
      metadata_keys_.push_back(value.get<std::string>());
      return false;
    } else if (event == Event::key) {
      const auto* field = std::ranges::find(kFields, value.get<std::string>());
      if (field == std::end(kFields)) {
        refuse_here(str("unknown field ", shown_name(value.get<std::string>())));
      }
      field_ = static_cast<size_t>(field - kFields);
      if (std::exchange(fields_[field_], true)) {
        refuse_here(str(*field, " stands in it twice"));
      }
      numbers_ = 0;
    } else if (is_metadata_ || field_ == kDtype
                   ? event != Event::value || !value.is_string()
                   : event != Event::array_start && event != Event::array_end) {
      refuse_type(event);
    }
    return true;
  }

  bool number_of_list(Event event, const Json& value) {
    const std::string field = kFields[field_];
    if (event != Event::value || !value.is_number()) {
      refuse_type(event);
    } else if (value.is_number_float()) {
      refuse_here(field + " has a number that is not whole, or too large");
    } else if (!value.is_number_unsigned()) {
      refuse_here(field + " has a negative number");
    } else if (!std::in_range<int64_t>(value.get<uint64_t>())) {
      refuse_here(str(field, " has the number ", value.dump(), ", which is too large"));
    } else if (++numbers_ > (field_ == kOffsets ? 2 : kMostSizes)) {
      refuse_here(field + " has too many numbers");
    }
    return true;
  }

  void add_tensor(const Json& fields) {
    for (size_t field = 0; field < std::size(kFields); ++field) {
      if (!fields_[field]) {
        refuse_here(str(kFields[field], " is missing"));
      }
    }
    const auto offsets = fields[kFields[kOffsets]].get<std::vector<int64_t>>();
    if (offsets.size() != 2) {
      refuse_here("data_offsets are not two numbers");
    }
    tensors_.push_back({.entry = {.name = name_,
                                  .dtype = fields[kFields[kDtype]].get<std::string>(),
                                  .shape = fields[kFields[kShape]].get<std::vector<int64_t>>()},
                        .begin = offsets[0],
                        .end = offsets[1]});
    check(tensors_.back());
  }

  void check(const SafetensorsPlace& tensor) const {
    const SafetensorsEntry& entry = tensor.entry;
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
    if (tensor.end < tensor.begin) {
      refuse_here(str("its bytes end at ", tensor.end, ", before they begin at ", tensor.begin));
    }
    if (tensor.end > data_bytes_) {
      refuse_here(str("its bytes end at ", tensor.end, ", but the file has only ", data_bytes_,
                      " bytes of data; it may be cut short"));
    }
    if (size % 8 != 0 || size / 8 != tensor.end - tensor.begin) {
      refuse_here(str("its shape and type need ", size / 8, " bytes, but it has ",
                      tensor.end - tensor.begin));
    }
  }

  void refuse_twins() const {
    const auto twin = std::ranges::adjacent_find(tensors_, {}, name_of);
    if (twin != tensors_.end()) {
      refuse_(twin->entry.name, "it stands in the header twice");
    }
  }

  void require_every_byte_once() const {
    auto order = mapped(tensors_, [](const SafetensorsPlace& tensor) { return &tensor; });
    std::ranges::sort(order, {},
                      [](const auto* tensor) { return std::pair(tensor->begin, tensor->end); });
    int64_t at = 0;
    const std::string* before = nullptr;
    for (const SafetensorsPlace* tensor : order) {
      if (tensor->begin < at) {
        refuse_(tensor->entry.name, str("its bytes overlap those of tensor ", shown_name(*before)));
      }
      if (tensor->begin > at) {
        refuse_(tensor->entry.name, str("a gap of ", tensor->begin - at, " bytes before it"));
      }
      at = tensor->end;
      before = &tensor->entry.name;
    }
    if (at != data_bytes_) {
      refuse_(str(data_bytes_ - at, " bytes after the last tensor",
                  before ? ", " + shown_name(*before) : "", " that belong to none"));
    }
  }

  Refusal refuse_;
  int64_t data_bytes_;
  std::string name_;  // of the tensor, or __metadata__
  bool is_metadata_ = false, has_metadata_ = false;
  size_t field_ = 0, numbers_ = 0;                 // numbers: in the field's list
  std::array<bool, std::size(kFields)> fields_{};  // that the tensor has had
  std::vector<SafetensorsPlace> tensors_;
  std::vector<std::string> metadata_keys_;
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
  const Refusal refuse{path};
  bool in_map = false, had_map = false;
  std::vector<std::string> names;
  const Json index = parsed(json, refuse, [&](int around, Event event, const Json& value) {
    if (around > kDeepestIndex) {
      refuse(str("nested more than ", kDeepestIndex, " levels deep"));
    } else if (around == 0 && event != Event::object_start && event != Event::object_end) {
      refuse("not a JSON object");
    } else if (event == Event::key && around == 1) {
      in_map = value == "weight_map";
      if (in_map && std::exchange(had_map, true)) {
        refuse("weight_map stands in it twice");
      }
      return in_map;  // all else is passed over
    } else if (event == Event::key && around == 2 && in_map) {
      names.push_back(value.get<std::string>());
    }
    return true;
  });
  const Json& map = index.contains("weight_map") ? index["weight_map"] : Json::object();
  if (!map.is_object() || map.empty()) {
    refuse(map.is_object() ? "weight_map is missing or empty" : "weight_map is not an object");
  }
  require_no_twin(std::move(names),
                  [&](const std::string& twin) { refuse(twin, "it stands in weight_map twice"); });
  std::vector<SafetensorsMapping> mappings;
  for (const auto& [tensor, value] : map.items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (!value.is_string()) {
      refuse(tensor, "its shard is not a text");
    } else if (shard.empty() || shard == "." || shard == ".." ||
               shard.find('/') != std::string::npos || visible(shard) != shard) {
      refuse(tensor, str("its shard ", shown_name(shard), " is not the name of a file beside it"));
    }
    mappings.push_back({tensor, shard});
  }
  return mappings;
}

}  // namespace tandem

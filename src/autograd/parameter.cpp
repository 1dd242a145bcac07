#include "src/autograd/parameter.h"

#include <algorithm>

#include "src/core/hash.h"
#include "src/device/dispatch.h"
#include "src/kernels/map.h"

namespace tandem {

namespace {

constexpr int64_t kManyClasses = 1024;

int64_t padded(int64_t classes) {
  const int64_t multiple = classes < kManyClasses ? 8 : 128;
  return (classes + multiple - 1) / multiple * multiple;
}

}  // namespace

Shape stored_shape(const Parameter& parameter, Device device) {
  const int64_t rows = std::max(parameter.shape[0], parameter.stored_rows);
  const bool is_padded = parameter.classes && device == Device::kCuda;
  return parameter.shape.with(0, is_padded ? padded(rows) : rows);
}

uint32_t random_stream_of(const std::string& piece_name) {
  Fnv1a<uint32_t> hash;
  hash.add(piece_name);
  return hash.value();
}

void initialize(Parameter& parameter, uint64_t seed) {
  const auto element = [&](const PhiloxKey& key, int64_t i) {
    if (parameter.init.kind == Initializer::Kind::kConstant) {
      return parameter.init.scale;
    }
    const PhiloxCounter words = random_words(key, static_cast<uint64_t>(i) / 4);
    if (parameter.init.kind == Initializer::Kind::kUniform) {
      return parameter.init.scale * (2.0 * uniform_from(words[i % 4]) - 1.0);
    }
    const int pair = static_cast<int>(i % 4) / 2;
    return parameter.init.scale * normal_from(words[2 * pair], words[2 * pair + 1])[i % 2];
  };
  on_float(parameter.value.dtype(), [&]<class T>() {
    T* value = parameter.value.data<T>();
    for (const Piece& piece : pieces_of(parameter)) {
      const PhiloxKey key = random_key(seed, RandomUse::kInit, random_stream_of(piece.name));
      for (int64_t i = 0; i < piece.slice.elements();) {
        const Range run = piece.slice.run_at(i);
        i += run.count();
        map(Cpu{}, run.count(), [&, run](int64_t at) {
          value[at] = T(static_cast<float>(element(key, run.begin + at)));
        });
        value += run.count();
      }
    }
  });
}

}  // namespace tandem

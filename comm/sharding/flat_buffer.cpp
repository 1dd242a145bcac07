#include "comm/sharding/flat_buffer.h"

#include "src/core/error.h"

namespace tandem {

namespace {

std::string_view name_of(Placement placement) {
  constexpr std::array<std::string_view, 3> kNames = {"replicated", "partial", "sharded"};
  return kNames[static_cast<size_t>(placement)];
}

}  // namespace

void redistribute(const Group& group, const FlatBuffer& from, const FlatBuffer& to,
                  const EightBits& eight_bits) {
  const auto is = [&](Placement before, Placement after) {
    return from.placement == before && to.placement == after;
  };
  if (is(Placement::kPartial, Placement::kReplicated)) {
    require(from.data.raw() == to.data.raw() && from.data.elements() == to.data.elements(),
            "redistribute: partial and replicated must be the same memory");
    group.all_reduce(to.data, eight_bits);
  } else if (is(Placement::kPartial, Placement::kSharded)) {
    group.reduce_scatter(from.data, to.data, eight_bits);
  } else if (is(Placement::kSharded, Placement::kReplicated)) {
    group.all_gather(from.data, to.data, eight_bits);
  } else {
    require(false, [&] {
      return str("redistribute: no way from ", name_of(from.placement), " to ",
                 name_of(to.placement));
    });
  }
}

}  // namespace tandem

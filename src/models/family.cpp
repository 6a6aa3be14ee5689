#include "models/family.h"

#include <algorithm>
#include <array>

#include "lockstep/error.h"

namespace lockstep::models {
namespace {

constexpr std::array kFamilies{
    Family{.name = "resnet", .build = resnet},
    Family{.name = "llama", .is_language_model = true},
};

}  // namespace

const Family& family_of(std::string_view name) {
  const auto found = std::ranges::find(kFamilies, name, &Family::name);
  require(found != kFamilies.end(), ErrorCode::not_supported, "model.family: {} is not a known family", name);
  return *found;
}

bool is_language_model(std::string_view family) {
  return std::ranges::any_of(kFamilies, [&](const Family& row) { return row.name == family && row.is_language_model; });
}

}  // namespace lockstep::models

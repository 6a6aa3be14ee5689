#include "run/slices.h"

#include <nlohmann/json.hpp>
#include <string>

#include "config/parser.h"

namespace lockstep::run {
namespace {

constexpr const char *kSlices = "slices", *kBegin = "slice_begin";

std::int64_t integer_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

/// The range in the configuration that a checkpoint records, and the number of steps for which it was used.
Slice own_slice(const nlohmann::json& state, const Slices& recorded) {
  Slice slice{.start = 0, .end = 0, .steps = integer_in(state, "step") - recorded.begin};
  const auto configuration = state.find("configuration");
  if (configuration == state.end() || !configuration->is_string()) return slice;
  for (const auto& [key, value] : config::values_in(configuration->get<std::string>())) {
    if (key == "data.start") slice.start = std::stoll(value);
    if (key == "data.end") slice.end = std::stoll(value);
  }
  return slice;
}

bool is_range(std::int64_t start, std::int64_t end) { return start != 0 || end != 0; }

}  // namespace

Slices slices_of(const nlohmann::json& state) {
  Slices out{.earlier = {}, .begin = integer_in(state, kBegin)};
  const auto recorded = state.find(kSlices);
  if (recorded == state.end() || !recorded->is_array()) return out;
  for (const nlohmann::json& slice : *recorded)
    if (slice.is_object())
      out.earlier.push_back(
          {.start = integer_in(slice, "start"), .end = integer_in(slice, "end"), .steps = integer_in(slice, "steps")});
  return out;
}

void add_slices(const Slices& slices, nlohmann::json& state) {
  if (slices.earlier.empty()) return;
  nlohmann::json list = nlohmann::json::array();
  for (const Slice& slice : slices.earlier)
    list.push_back({{"start", slice.start}, {"end", slice.end}, {"steps", slice.steps}});
  state[kSlices] = list;
  state[kBegin] = slices.begin;
}

Slices slices_after(const nlohmann::json& state, const Config& now) {
  Slices out = slices_of(state);
  const Slice own = own_slice(state, out);
  if (own.start == now.data.start && own.end == now.data.end) return out;
  if (own.steps > 0) out.earlier.push_back(own);
  out.begin = integer_in(state, "step");
  return out;
}

Slices slices_before(const nlohmann::json& state, const Config& now) {
  Slices out = slices_of(state);
  const Slice own = own_slice(state, out);
  const bool is_of_ranges =
      !out.earlier.empty() || is_range(own.start, own.end) || is_range(now.data.start, now.data.end);
  if (is_of_ranges && own.steps > 0) out.earlier.push_back(own);
  if (!is_of_ranges) out.earlier.clear();
  out.begin = 0;
  return out;
}

}  // namespace lockstep::run

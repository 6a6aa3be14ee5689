#include "run/slices.h"

#include <nlohmann/json.hpp>

#include "config/parser.h"

namespace lockstep::run {
namespace {

constexpr const char *kSlices = "slices", *kBegin = "slice_begin";

std::int64_t integer_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

/// The range in the configuration that a checkpoint records, and the number of steps for which it was used.
DataRange own_range(const nlohmann::json& state, const Slices& recorded) {
  const DataRange all{.steps = integer_in(state, "step") - recorded.begin};
  const auto configuration = state.find("configuration");
  const bool is_there = configuration != state.end() && configuration->is_string();
  return is_there ? range_in(configuration->get<std::string>(), all) : all;
}

}  // namespace

DataRange range_in(const std::string& configuration, DataRange otherwise) {
  for (const auto& [key, value] : config::values_in(configuration)) {
    if (key == "data.start") otherwise.start = std::stoll(value);
    if (key == "data.end") otherwise.end = std::stoll(value);
  }
  return otherwise;
}

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
  for (const DataRange& slice : slices.earlier)
    list.push_back({{"start", slice.start}, {"end", slice.end}, {"steps", slice.steps}});
  state[kSlices] = list;
  state[kBegin] = slices.begin;
}

Slices slices_after(const nlohmann::json& state, const Config& now) {
  Slices out = slices_of(state);
  const DataRange own = own_range(state, out);
  if (own.start == now.data.start && own.end == now.data.end) return out;
  if (own.steps > 0) out.earlier.push_back(own);
  out.begin = integer_in(state, "step");
  return out;
}

Slices slices_before(const nlohmann::json& state, const Config& now) {
  Slices out = slices_of(state);
  const DataRange own = own_range(state, out), present{.start = now.data.start, .end = now.data.end};
  const bool is_of_ranges = !out.earlier.empty() || !own.is_all() || !present.is_all();
  if (is_of_ranges && own.steps > 0) out.earlier.push_back(own);
  if (!is_of_ranges) out.earlier.clear();
  out.begin = 0;
  return out;
}

}  // namespace lockstep::run

#include "checkpoint/compare.h"

#include <bit>
#include <cmath>
#include <set>
#include <span>

#include "checkpoint/reader.h"

namespace lockstep::checkpoint {
namespace {

void compare_values(std::span<const float> a, std::span<const float> b, TensorDifference& out) {
  out.n_values = static_cast<std::int64_t>(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
    if (out.n_differing++ == 0) out.first_index = static_cast<std::int64_t>(i);
    // Equal infinities are equal bits. A difference that involves an infinity is infinite, and one with a NaN is NaN.
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= out.max_absolute) && !std::isnan(out.max_absolute)) out.max_absolute = difference;
  }
}

std::vector<std::string> differing_keys(const nlohmann::json& a, const nlohmann::json& b) {
  std::set<std::string> keys;
  for (const auto& [key, value] : a.items())
    if (!b.contains(key) || b[key] != value) keys.insert(key);
  for (const auto& [key, value] : b.items())
    if (!a.contains(key)) keys.insert(key);
  return {keys.begin(), keys.end()};
}

}  // namespace

Comparison compare(const std::string& path_a, const std::string& path_b) {
  Reader a(path_a), b(path_b);
  a.check_blocks();
  b.check_blocks();

  Comparison out;
  std::vector<float> values_a, values_b;
  for (const TensorEntry& entry_a : a.tensors()) {
    const TensorEntry* entry_b = b.find(entry_a.path);
    if (entry_b == nullptr) {
      out.only_in_a.push_back(entry_a.path);
      continue;
    }
    ++out.n_compared;
    TensorDifference difference;
    difference.path = entry_a.path;
    difference.shape_a = entry_a.shape;
    difference.shape_b = entry_b->shape;
    if (entry_a.shape == entry_b->shape) {
      values_a.resize(static_cast<std::size_t>(entry_a.shape.n_elements()));
      values_b.resize(values_a.size());
      a.read(entry_a, values_a);
      b.read(*entry_b, values_b);
      compare_values(values_a, values_b, difference);
      if (difference.n_differing == 0) continue;
    }
    out.differing.push_back(difference);
  }
  for (const TensorEntry& entry_b : b.tensors())
    if (a.find(entry_b.path) == nullptr) out.only_in_b.push_back(entry_b.path);
  out.state_keys = differing_keys(a.state(), b.state());
  return out;
}

}  // namespace lockstep::checkpoint

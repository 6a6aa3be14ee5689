#include "train/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/outcome.h"
#include "config/table.h"
#include "lockstep/error.h"
#include "models/family.h"

namespace lockstep::train {

std::string resolve_precision(Config& config, const Backend& backend, World& world) {
  if (!config.precision_is_automatic) return "";
  const config::Key& key = *config::find_key("precision");
  const auto set = [&](const std::string& text) {
    const config::Fit fit = key.set(config, {.is_list = false, .text = text, .items = {}});
    return fit == config::Fit::good && !config.precision_is_automatic;
  };
  const bool is_text = models::is_language_model(config.model.family);
  const auto propose = [&]() -> std::string {
    if (const char* const given = std::getenv("LOCKSTEP_AUTO_PRECISION")) {
      require(set(given), ErrorCode::config_invalid, "LOCKSTEP_AUTO_PRECISION: expected a precision, found \"{}\"",
              given);
      return fmt::format("{} LOCKSTEP_AUTO_PRECISION", given);
    }
    const AutomaticPrecision own =
        backend.automatic_precision(is_text ? Workload::matrix_products : Workload::convolutions);
    return fmt::format("{} {}, {}", name(own.precision), is_text ? "matrix products" : "convolutions", own.reason);
  };
  const std::vector<std::string> all = all_agree(world, propose);
  // Ordered by what devices can compute in, most first, the names happen to be sorted: bf16, fp16, fp32.
  const auto chosen = std::ranges::max_element(all);
  const std::size_t space = chosen->find(' ');
  set(chosen->substr(0, space));
  const std::string of_rank = chosen->starts_with(std::ranges::min(all).substr(0, space))
                                  ? ""
                                  : fmt::format(" of rank {}", chosen - all.begin());
  return fmt::format(" (auto:{}{})", chosen->substr(space), of_rank);
}

}  // namespace lockstep::train

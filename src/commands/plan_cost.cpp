#include "commands/plan_cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/number_text.h"

namespace lockstep::commands {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 24;

/// "52 s", "3.1 min", "17.5 h"
std::string duration_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.3g} s", seconds);
  if (seconds < 5400) return fmt::format("{:.3g} min", seconds / 60);
  return fmt::format("{:.3g} h", seconds / 3600);
}

double rate_per_rank(const scaling::Prediction& prediction) {
  return prediction.size.samples_per_rank / prediction.step_seconds();
}

}  // namespace

PlannedCost planned_cost(const std::string& path, int ranks, int nodes, std::int64_t global_batch,
                         const scaling::Exchanged& exchanged) {
  scaling::CostModel model = scaling::cost_model_in(read_file(path, kMaxBytes), path);
  model.exchanged = exchanged;
  PlannedCost cost{.prediction = model.predict(model.size(ranks, nodes, static_cast<double>(global_batch))),
                   .machines = machines_text(model),
                   .error = model.error};
  cost.knows_network =
      nodes == 1 || std::ranges::any_of(model.fitted, [](const scaling::CostSize& size) { return size.nodes > 1; });
  const scaling::CostSize& baseline = model.fitted.front();
  cost.baseline_ranks = baseline.ranks;
  cost.efficiency = rate_per_rank(cost.prediction) / rate_per_rank(model.predict(baseline));
  return cost;
}

std::string text_of(const PlannedCost& cost) {
  const scaling::Prediction& p = cost.prediction;
  return fmt::format(
      "\nTime, by the cost model of the study (error of the fit: {:.1f} %)\n"
      "  cores       {} per core: {}\n"
      "  step        {:.4f} s ({:.4f} to {:.4f}): compute {:.4f}, exposed communication {:.4f}, data {:.4f}\n"
      "  epoch       {} ({})\n"
      "  training    {} ({}), {:.3g} node-hours\n"
      "  efficiency  {:.0f} % of the speed per rank on {}\n{}",
      100 * cost.error, sharing_text(p.size) + (p.size.sharing > 1 ? " ranks" : " rank"), cost.machines,
      p.step_seconds(), p.low, p.high, p.compute_seconds, p.exposed_seconds, p.data_seconds,
      duration_text(cost.epoch_seconds()), counted(cost.steps_per_epoch, "step"), duration_text(cost.seconds()),
      counted(cost.steps, "step"), cost.node_hours(), 100 * cost.efficiency, counted(cost.baseline_ranks, "rank"),
      cost.knows_network ? ""
                         : "  The study had no case on several nodes: what the network between nodes costs is not in "
                           "these figures.\n");
}

nlohmann::ordered_json json_of(const PlannedCost& cost) {
  const scaling::Prediction& p = cost.prediction;
  return {{"samples_per_rank", p.size.samples_per_rank},
          {"sharing", p.size.sharing},
          {"step_seconds", p.step_seconds()},
          {"interval_low", p.low},
          {"interval_high", p.high},
          {"compute_seconds", p.compute_seconds},
          {"exposed_communication_seconds", p.exposed_seconds},
          {"data_wait_seconds", p.data_seconds},
          {"steps_per_epoch", cost.steps_per_epoch},
          {"epoch_seconds", cost.epoch_seconds()},
          {"steps", cost.steps},
          {"seconds", cost.seconds()},
          {"node_hours", cost.node_hours()},
          {"efficiency", cost.efficiency},
          {"baseline_ranks", cost.baseline_ranks},
          {"knows_network", cost.knows_network}};
}

}  // namespace lockstep::commands

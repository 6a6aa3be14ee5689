#include "base/rank_work.h"

#include <algorithm>

#include "base/signals.h"

namespace lockstep {

Part part_of(const World& world, std::size_t n) {
  const auto n_ranks = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(world.rank());
  return {.begin = n * rank / n_ranks, .end = n * (rank + 1) / n_ranks};
}

void Meetings::after_step() {
  constexpr int kStepsBetweenMeetings = 8;
  if (world_.size() == 1 || ++n_steps_ % kStepsBetweenMeetings == 0) meet(true);
}

void Meetings::end() {
  while (world_.size() > 1 && meet(false)) {
  }
}

bool Meetings::meet(bool works) {
  const std::vector<std::string> all = world_.all_gather(stop_requested() ? "stop" : works ? "true" : "false");
  if (std::ranges::find(all, "stop") != all.end()) throw StoppedBySignal{};
  return std::ranges::find(all, "true") != all.end();
}

}  // namespace lockstep

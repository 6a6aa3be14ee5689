#include "train/resume_changes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/tensor_names.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "tasks/task.h"

namespace lockstep::train {
namespace {

/// The changes since this checkpoint was written, which may be earlier than the last start of the run.
std::vector<config::Difference> changes_since(const checkpoint::StateJson& state, const Config& now) {
  return config::learning_differences(state.value("configuration", ""), now);
}

}  // namespace

std::vector<std::string> require_allowed_changes(const Recorded& before, const Config& now,
                                                 const std::vector<std::string>& allow_change,
                                                 const std::string& file) {
  std::vector<std::string> notes;
  std::string fixed, refused;
  for (const config::Difference& d : config::learning_differences(before.yaml, now)) {
    const auto origin = now.origins.find(d.key);
    const std::string line = fmt::format("\n  {}: {} before, {} now{}", d.key, d.before, d.now,
                                         origin == now.origins.end() ? "" : fmt::format(" ({})", origin->second));
    if (d.fixed) {
      fixed += line;
    } else if (!d.allowed && std::ranges::find(allow_change, d.key) == allow_change.end()) {
      refused += line;
    } else {
      const bool changes_schedule = d.key == "train.epochs" || d.key.starts_with("schedule.");
      notes.push_back(fmt::format("{} changes from {} to {}{}", d.key, d.before, d.now,
                                  changes_schedule ? ", and the schedule with it" : ""));
    }
  }
  require(fixed.empty(), ErrorCode::config_conflict,
          "{} cannot be resumed, because keys that can never change within a run differ from those in {} (undo that, "
          "or start "
          "a new run with another run.name and model.initialize_from={}):{}",
          file, before.source, file, fixed);
  require(refused.empty(), ErrorCode::resume_changed,
          "{} cannot be resumed, because keys that affect what is learned differ from those in {}:{}", file,
          before.source, refused);
  return notes;
}

void require_same_data(const checkpoint::StateJson& state, const DataStamp& data, const Config& now,
                       const std::vector<std::string>& allow_change, const std::string& file) {
  if (!state.contains("inference") || std::ranges::find(allow_change, "data.train") != allow_change.end()) return;
  const auto is_of_data = [](const config::Difference& d) { return d.key.starts_with("data."); };
  if (std::ranges::any_of(changes_since(state, now), is_of_data)) return;
  constexpr std::pair<std::string_view, std::string_view> kOfData[] = {{"channels", "channels"},
                                                                       {"mean", "mean"},
                                                                       {"std", "standard deviation"},
                                                                       {"class_names", "names of classes"},
                                                                       {"tokenizer_hash", "tokenizer"}};
  std::vector<std::string_view> others;
  for (const tasks::StampDifference& d : tasks::stamp_differences(state.at("inference"), data.inference))
    for (const auto& [key, text] : kOfData)
      if (d.key == key) others.push_back(text);
  const std::string hash_before =
      state.value("data", nlohmann::json::object()).value("hash", data.content_hash);  // files of others have none
  if (others.empty() && !data.content_hash.empty() && hash_before != data.content_hash) others.emplace_back("samples");
  require(others.empty(), ErrorCode::resume_changed,
          "{} cannot be resumed, because {} is not the data set on which the run was trained: it differs in {} (key "
          "data.train)",
          file, now.data.train, fmt::join(others, ", "));
}

OptimizerStart optimizer_start(checkpoint::Reader& reader, const Config& now,
                               std::vector<checkpoint::TensorTarget> targets) {
  const checkpoint::StateJson& state = reader.state();
  const auto changes = changes_since(state, now);
  const auto kind = std::ranges::find(changes, "optimizer.kind", &config::Difference::key);
  OptimizerStart start{.targets = {}, .begin = state.value("optimizer_begin", std::int64_t{0}), .note = ""};
  if (kind != changes.end()) {
    start.begin = state.at("step").get<std::int64_t>();
    start.note = fmt::format("the optimizer begins with a fresh state, since that of {} does not fit {}", kind->before,
                             kind->now);
  }
  const auto is_stored = [&](const std::string& path) {
    return std::ranges::find(reader.tensors(), path, &checkpoint::TensorEntry::path) != reader.tensors().end();
  };
  std::size_t n_new = 0;
  for (checkpoint::TensorTarget& target : targets) {
    if (checkpoint::is_in(checkpoint::StateGroup::averages, target.path) && !is_stored(target.path)) {
      start.starts_averages = true;
      continue;
    }
    const bool is_state = checkpoint::is_in(checkpoint::StateGroup::optimizer, target.path);
    const bool is_new = is_state && (kind != changes.end() || !is_stored(target.path));
    if (is_new)
      ++n_new;
    else
      start.targets.push_back(std::move(target));
  }
  if (n_new > 0 && start.note.empty())
    start.note =
        fmt::format("{} tensors of the optimizer begin with zeros, since the checkpoint has none of them", n_new);
  return start;
}

bool keeps_loss_scale(const checkpoint::StateJson& state, const Config& now) {
  return std::ranges::none_of(changes_since(state, now),
                              [](const config::Difference& d) { return d.key.starts_with("loss_scale."); });
}

}  // namespace lockstep::train

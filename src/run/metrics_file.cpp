#include "run/metrics_file.h"

#include <algorithm>
#include <array>

#include "base/file.h"
#include "lockstep/error.h"

namespace lockstep::run {
namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;  // a step of ten thousand ranks has about one MiB

constexpr Curve kCurves[] = {{"loss", "loss"},
                             {"accuracy", "accuracy", "%", 100},
                             {"perplexity", "perplexity"},
                             {"rouge_l", "ROUGE-L of answers"},
                             {"exact_match", "exact match of answers", "%", 100},
                             {"learning_rate", "learning rate"},
                             {"gradient_norm", "norm of the gradients"},
                             {"training_seconds", "time of the training", "s"},
                             {"step_seconds", "time of a step", "s", 1, true},
                             {"model_flops_rate", "FLOPs of the model", "GFLOP/s", 1e-9, true},
                             {"model_flops_utilization", "MFU", "%", 100, true},
                             {"data_wait_seconds", "waiting for data", "ms", 1e3, true},
                             {"exposed_communication_seconds", "waiting for communication", "ms", 1e3, true},
                             {"exchange_seconds", "exchange", "ms", 1e3, true},
                             {"memory_bytes", "memory", "MiB", 1.0 / (1 << 20), true},
                             {"utilisation", "utilisation", "%", 100, true}};

/// The list of a step with an entry for each rank; null if there is none.
const nlohmann::ordered_json* list_of_ranks(const nlohmann::ordered_json& step, const std::string& key) {
  const auto per_rank = step.find("per_rank");
  if (per_rank == step.end() || !per_rank->is_object()) return nullptr;
  const auto list = per_rank->find(key);
  return list != per_rank->end() && list->is_array() ? &*list : nullptr;
}

}  // namespace

MetricsReader::MetricsReader(const std::string& path, std::uint64_t position) : path_(path), position_(position) {
  require_regular_file(path);
  in_.open(path, std::ios::binary);
  is_open_ = in_.is_open();
  in_.seekg(static_cast<std::streamoff>(position));
}

void MetricsReader::require_open() const {
  if (!is_open_) open_regular_file(path_);
}

bool MetricsReader::next() {
  const bool is_complete = std::getline(in_, line_) && !in_.eof();
  require(!in_.bad(), ErrorCode::system_call, "cannot read {}", path_);
  if (is_complete) position_ += line_.size() + 1;
  return is_complete;
}

nlohmann::ordered_json MetricsReader::event() const {
  using Json = nlohmann::ordered_json;
  Json object = line_.size() > kMaxLineBytes ? Json() : Json::parse(line_, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? object : Json::object();
}

std::vector<double> of_ranks(const nlohmann::ordered_json& step, const std::string& key) {
  std::vector<double> out;
  if (const nlohmann::ordered_json* list = list_of_ranks(step, key))
    for (const auto& value : *list) out.push_back(value.is_number() ? value.get<double>() : std::nan(""));
  return out;
}

std::vector<std::string> hosts_of(const nlohmann::ordered_json& step) {
  std::vector<std::string> out;
  if (const nlohmann::ordered_json* list = list_of_ranks(step, "host"))
    for (const auto& value : *list) out.push_back(value.is_string() ? value.get<std::string>() : "");
  return out;
}

std::string unit_of(const nlohmann::ordered_json& event) {
  constexpr std::string_view kEnd = "_per_second";
  for (const auto& [key, value] : event.items())  // beside tokens_per_second, there is the speed of those in the loss
    if (key.ends_with(kEnd) && !key.starts_with("loss_")) return key.substr(0, key.size() - kEnd.size());
  return "";
}

Curve curve_of(std::string_view key) {
  const auto found = std::ranges::find_if(kCurves, [&](const Curve& curve) { return key.ends_with(curve.key); });
  return found == std::ranges::end(kCurves) ? Curve{.key = key} : *found;
}

std::string curve_group(std::string_view event, std::string_view key, std::string_view unit) {
  constexpr std::array<std::string_view, 9> kNoCurves{"time_unix", "step",        "epoch",
                                                      "last_step", "ranks",       "skipped_steps",
                                                      "samples",   "run_seconds", "training_seconds"};
  const bool is_rate = key.ends_with("_per_second");
  if (std::ranges::find(kNoCurves, key) != kNoCurves.end() || key == unit || key.starts_with("trained_") ||
      key.starts_with("processed_"))
    return "";
  if (event == "step") return is_rate || curve_of(key).is_performance ? "performance/" : "train/";
  if (event == "evaluation") return is_rate || key == "evaluation_seconds" ? "" : "validation/";
  const bool is_elsewhere = key.starts_with("validation_") || key == "learning_rate" || key == "epoch_seconds";
  return event == "epoch" && !is_elsewhere ? "epoch/" : "";
}

}  // namespace lockstep::run

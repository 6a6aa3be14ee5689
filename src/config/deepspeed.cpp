// The configuration of DeepSpeed (https://www.deepspeed.ai/docs/config-json/): for each of its keys ours, or that it
// has no effect here, or what to do instead. `auto`, with which transformers fills in its own arguments, keeps the
// value of our files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/printable.h"
#include "config/settings.h"
#include "config/yaml_text.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

using Settings = std::map<std::string, Setting, std::less<>>;

/// How a key is translated. A value is one of `words`, "theirs=ours", in which * is any value and no value of ours
/// means that nothing has to be set; or a number that the formula turns into ours, from it and the learning rate of the
/// file (0: unknown); or, without both, the same as ours.
struct Row {
  std::string_view theirs;  // separated by blanks
  std::string_view ours;
  std::string_view words = "";
  std::string_view instead = "this value is not known";  // what to do if the value has no counterpart
  double (*formula)(double, double) = nullptr;
};

constexpr std::string_view kOff = "false= 0= none= null=";
constexpr std::string_view kMemory =
    "this release cannot; zero_optimization.stage=3 shards everything over the ranks, and adapters (model.lora.rank), "
    "model.base_precision=nf4, model.recompute=block and smaller micro-batches (a smaller train.batch_per_rank with a "
    "greater train.accumulate) save more memory";
constexpr std::string_view kNumber = "a number is expected";
constexpr std::string_view kRate = "give scheduler.params.warmup_max_lr or optimizer.params.lr as a number";

/// In this order; a later row overrides an earlier one with the same key of ours. DeepSpeed's schedulers are one step
/// later, since it repeats the learning rate of step 0.
constexpr std::array kRows{
    Row{"train_micro_batch_size_per_gpu", "train.batch_per_rank"},
    Row{"gradient_accumulation_steps", "train.accumulate"},
    Row{"train_batch_size", "train.global_batch"},
    Row{"gradient_clipping", "train.clip_norm"},
    Row{"zero_optimization.stage", "train.shard", "0=none 1=optimizer 2=gradients 3=parameters"},
    Row{"zero_optimization.cpu_offload", "train.offload", "true=optimizer false=none"},
    Row{"zero_optimization.offload_optimizer.device", "train.offload", "cpu=optimizer none=none", kMemory},
    Row{"zero_optimization.cpu_offload_params zero_optimization.offload_param.device "
        "activation_checkpointing.cpu_checkpointing",
        "", kOff, kMemory},
    Row{"zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients optimizer.params.amsgrad "
        "bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states fp16.fp16_master_weights_and_grads",
        "", kOff, "it changes results in a way that Lockstep does not have: remove it"},
    // Elements, which are fp32, in MiB.
    Row{"zero_optimization.reduce_bucket_size", "comm.bucket_mb", "", kNumber,
        [](double n, double) { return n / (1 << 18); }},
    Row{"communication_data_type", "comm.gradients", "fp32=fp32 fp16=fp16 bf16=bf16 bfp16=bf16"},
    Row{"gradient_allreduce_op", "", "mean=", "gradients are averaged: remove it"},
    Row{"bf16.enabled", "precision", "true=bf16"},
    Row{"fp16.enabled", "precision", "true=fp16"},
    Row{"fp16.initial_scale_power", "loss_scale.initial", "", kNumber, [](double n, double) { return std::exp2(n); }},
    Row{"fp16.loss_scale_window", "loss_scale.growth_steps"},
    Row{"fp16.loss_scale", "loss_scale.kind", "0=auto *=constant"},
    Row{"fp16.loss_scale", "loss_scale.initial", "0=", kNumber, [](double scale, double) { return scale; }},
    Row{"optimizer.type", "optimizer.kind", "adamw=adamw adam=adamw sgd=sgd", "use AdamW or SGD"},
    Row{"optimizer.params.lr", "optimizer.learning_rate"},
    Row{"optimizer.params.betas.0", "optimizer.beta1"},
    Row{"optimizer.params.betas.1", "optimizer.beta2"},
    Row{"optimizer.params.eps", "optimizer.epsilon"},
    Row{"optimizer.params.weight_decay", "optimizer.weight_decay"},
    Row{"optimizer.params.momentum", "optimizer.momentum"},
    Row{"optimizer.params.nesterov", "optimizer.nesterov"},
    Row{"optimizer.params.adam_w_mode optimizer.params.bias_correction", "", "true=", "adamw always does: remove it"},
    Row{"scheduler.type", "schedule.kind", "warmuplr=constant warmupdecaylr=polynomial warmupcosinelr=cosine",
        "use WarmupLR, WarmupDecayLR or WarmupCosineLR"},
    Row{"scheduler.type", "schedule.power", "warmupdecaylr=1 *="},
    Row{"scheduler.type", "schedule.final_learning_rate", "warmupdecaylr=0 *="},
    Row{"scheduler.params.warmup_max_lr", "optimizer.learning_rate"},
    Row{"scheduler.params.warmup_min_lr", "schedule.warmup_start", "0=0", kRate,
        [](double least, double rate) { return least / rate; }},
    Row{"scheduler.params.warmup_min_ratio", "schedule.warmup_start"},
    Row{"scheduler.params.warmup_num_steps", "schedule.warmup_steps"},
    Row{"scheduler.params.warmup_num_steps", "schedule.warmup_epochs", "*=0"},
    Row{"scheduler.params.warmup_type", "", "linear=", "the warm-up is linear: write \"linear\""},
    Row{"scheduler.params.total_num_steps", "schedule.steps"},
    Row{"scheduler.params.cos_min_ratio", "schedule.final_learning_rate", "0=0", kRate,
        [](double ratio, double rate) { return rate > 0 ? ratio * rate : std::nan(""); }},
    Row{"steps_per_print", "log.every_steps"},
};

/// Keys that have no effect here, because Lockstep decides it itself or has no such part. A name that ends with a dot
/// or an underscore stands for all that begin with it.
constexpr std::string_view kIdle =
    "fp16.auto_cast fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale zero_optimization.allgather_ "
    "zero_optimization.stage3_ zero_optimization.offload_ zero_optimization.overlap_comm "
    "zero_optimization.reduce_scatter zero_optimization.contiguous_gradients zero_optimization.round_robin_gradients "
    "zero_optimization.sub_group_size zero_optimization.ignore_unused_parameters "
    "zero_optimization.load_from_fp32_weights zero_optimization.zero_hpz_partition_size optimizer.params.torch_adam "
    "scheduler.params.last_batch_iteration activation_checkpointing. prescale_gradients sparse_gradients "
    "gradient_predivide_factor "
    "wall_clock_breakdown memory_breakdown dump_state zero_allow_untested_optimizer flops_profiler. comms_logger. "
    "tensorboard. csv_monitor. wandb.";

bool is_idle(std::string_view key) {
  return std::ranges::any_of(words(kIdle), [&](std::string_view name) {
    return name.ends_with('.') || name.ends_with('_') ? key.starts_with(name) : key == name;
  });
}

/// NaN if it is not a number.
double number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? std::nan("") : value;
}

/// Our value; empty: nothing has to be set; nullopt: there is none.
std::optional<std::string> ours_of(const Row& row, const std::string& text, double learning_rate) {
  for (const std::string_view word : words(row.words)) {
    const std::string_view theirs = word.substr(0, word.find('='));
    if (theirs != "*" && theirs != lower(text)) continue;
    const std::string ours(word.substr(theirs.size() + 1));
    const Key* key = find_key(row.ours);
    if (key != nullptr && !key->choices.empty() && std::ranges::find(key->choices, ours) == key->choices.end()) break;
    return ours;
  }
  if (row.formula == nullptr) return row.words.empty() ? std::optional(text) : std::nullopt;
  const double value = row.formula(number(text), learning_rate);
  return std::isfinite(value) ? std::optional(fmt::format("{}", value)) : std::nullopt;
}

/// JSON without comments is YAML, apart from its tabs.
std::string without_comments(const std::string& text) {
  std::string out = text;
  bool is_string = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i] == '"') is_string = !is_string;
    if (is_string) {
      i += out[i] == '\\' ? 1 : 0;
      continue;
    }
    if (out[i] == '\t') out[i] = ' ';
    const bool is_line = out.compare(i, 2, "//") == 0;
    if (!is_line && out.compare(i, 2, "/*") != 0) continue;
    const std::size_t last = is_line ? out.find('\n', i) : out.find("*/", i + 2);
    const std::size_t end = last == out.npos ? out.size() : last + (is_line ? 0 : 2);
    for (std::size_t at = i; at < end; ++at)
      if (out[at] != '\n') out[at] = ' ';
  }
  return out;
}

/// The keys of the file. A block that is not enabled is left out.
Settings read(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, kMaxFileBytes);
  } catch (const Error& e) {
    fail(ErrorCode::config_unreadable, "configuration of DeepSpeed: {}", e.what());
  }
  check_is_text(text, path);
  std::vector<Setting> all;
  add_text(without_comments(text), path, all);
  Settings keys;
  for (Setting& setting : all) {
    for (std::size_t i = 0; i < setting.value.items.size(); ++i) {
      const std::string key = fmt::format("{}.{}", setting.key, i);
      keys[key] = {key, {.is_list = false, .text = setting.value.items[i], .items = {}}, setting.place};
    }
    if (!setting.value.is_list) keys[setting.key] = std::move(setting);
  }
  std::erase_if(keys, [every = keys](const auto& entry) {
    const auto enabled = every.find(entry.first.substr(0, entry.first.find('.')) + ".enabled");
    return enabled != every.end() && enabled->second.value.text == "false";
  });
  return keys;
}

double learning_rate_of(const Settings& keys) {
  for (const char* name : {"scheduler.params.warmup_max_lr", "optimizer.params.lr"})
    if (const auto key = keys.find(std::string_view(name)); key != keys.end())
      if (const double rate = number(key->second.value.text); rate > 0) return rate;
  return 0;
}

}  // namespace

void add_deepspeed(const std::string& path, std::vector<Setting>& out, std::vector<std::string>& notes) {
  constexpr std::string_view kAuto = "auto";
  const Settings keys = read(path);
  const auto is_given = [&](std::string_view key) {
    const auto found = keys.find(key);
    return found != keys.end() && found->second.value.text != kAuto;
  };
  const auto set = [&](std::string_view key, const std::string& value, const std::string& place) {
    if (!key.empty() && !value.empty())
      out.push_back({std::string(key), {.is_list = false, .text = value, .items = {}}, place});
  };
  std::vector<std::string> problems, idle;
  const auto refuse = [&](const Setting& setting, std::string_view why) {
    problems.push_back(
        fmt::format("{}: {}={}: {}", setting.place, printable(setting.key), printable(setting.value.text), why));
  };
  for (const Row& row : kRows)
    for (const std::string_view key : words(row.theirs)) {
      if (!is_given(key)) continue;
      const Setting& theirs = keys.find(key)->second;
      const auto ours = ours_of(row, theirs.value.text, learning_rate_of(keys));
      ours ? set(row.ours, *ours, theirs.place) : refuse(theirs, row.instead);
    }
  for (const auto& entry : keys) {
    const std::string_view key = entry.first;
    if (std::ranges::any_of(kRows, [&](const Row& row) { return std::ranges::count(words(row.theirs), key) > 0; }))
      continue;
    if (is_idle(key))
      idle.emplace_back(key);
    else
      refuse(entry.second, "this key is not known; remove it if it is not needed");
  }
  require(problems.empty(), ErrorCode::config_invalid, "{}", fmt::join(problems, "\n"));
  // From both batches, DeepSpeed derives the number of micro-batches. Here, it is the smallest that fits.
  if (is_given("train_batch_size") && is_given("train_micro_batch_size_per_gpu") &&
      !keys.contains("gradient_accumulation_steps"))
    set("train.accumulate", std::string(kAuto), keys.at("train_batch_size").place);
  if (is_given("scheduler.type") && !keys.contains("scheduler.params.warmup_type"))
    notes.push_back(
        fmt::format("{}: the warm-up is linear; without warmup_type, that of DeepSpeed is logarithmic", path));
  if (!idle.empty()) notes.push_back(fmt::format("{}: Lockstep has no use for {}", path, fmt::join(idle, ", ")));
}

}  // namespace lockstep::config

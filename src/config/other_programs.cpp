// Keys of other programs: TRL, Accelerate, PEFT, bitsandbytes, Lightning, Oumi and trainers of the same style. A file
// with them is refused, and the message names our key. Variables of make are translated. docs/coming-from.md has the
// same table, which a test compares.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "config/settings.h"
#include "config/table.h"
#include "config/yaml_text.h"

namespace lockstep::config {
namespace {

enum class Means {
  same,     // theirs and ours have the same values
  related,  // the values differ, so that only a person can translate them
  flag,     // theirs is true or false
};

struct Row {
  std::string_view ours;    // empty: nothing has to be set
  std::string_view theirs;  // separated by blanks; they match a whole key, or its end after a dot
  Means means = Means::same;
  std::string_view if_true = "", if_false = "";  // of a flag; empty: such a value is not translated
};

constexpr std::array kRows{
    Row{"train.batch_per_rank", "batch_size per_device_train_batch_size micro_batch_size train_batch_size"},
    Row{"train.accumulate", "grad_accum gradient_accumulation_steps accumulate_grad_batches accum_steps"},
    Row{"train.epochs", "num_train_epochs num_epochs max_epochs"},
    Row{"train.max_steps", "max_train_steps"},
    Row{"train.clip_norm", "max_grad_norm gradient_clip_val"},
    Row{"train.label_smoothing", "label_smoothing_factor"},
    Row{"train.shard", "fsdp enable_fsdp zero_stage", Means::related},
    Row{"optimizer.learning_rate", "lr learning_rate"},
    Row{"optimizer.weight_decay", "wd weight_decay"},
    Row{"optimizer.kind", "optim optimizer", Means::related},
    Row{"optimizer.beta1", "adam_beta1"},
    Row{"optimizer.beta2", "adam_beta2"},
    Row{"optimizer.epsilon", "adam_epsilon"},
    Row{"schedule.kind", "lr_scheduler_type scheduler", Means::related},
    Row{"schedule.warmup_steps", "warmup_steps num_warmup_steps"},
    Row{"schedule.warmup_epochs", "warmup_ratio", Means::related},
    Row{"model.from", "model.name model_name model_name_or_path"},
    Row{"model.recompute", "gradient_checkpointing enable_gradient_checkpointing", Means::flag, "block", "none"},
    Row{"model.lora.rank", "lora.r lora_r lora_rank peft.r"},
    Row{"model.lora.rank", "tuning.mode use_peft peft_method", Means::related,
        "N, for QLoRA with model.base_precision=nf4"},
    Row{"model.lora.alpha", "lora.alpha lora_alpha"},
    Row{"model.lora.dropout", "lora.dropout lora_dropout"},
    Row{"model.lora.targets", "target_modules lora_target_modules"},
    Row{"model.lora.rslora", "use_rslora"},
    Row{"model.base_precision", "load_in_4bit q_lora", Means::flag, "nf4", "same"},
    Row{"model.classes", "num_classes"},
    Row{"precision", "bf16", Means::flag, "bf16"},
    Row{"precision", "fp16", Means::flag, "fp16"},
    Row{"precision", "amp mixed_precision dtype torch_dtype torch_dtype_str", Means::related},
    Row{"data.sequence_length", "max_seq_len max_seq_length max_length model_max_length cutoff_len seq_length"},
    Row{"data.readers", "num_workers workers dataloader_num_workers"},
    Row{"data.pack", "packing"},
    Row{"evaluation.every_steps", "eval_steps"},
    Row{"evaluation.every_steps", "eval_strategy evaluation_strategy val_check_interval", Means::related},
    Row{"evaluation.every_epochs", "check_val_every_n_epoch"},
    Row{"evaluation.batch_per_rank", "per_device_eval_batch_size eval_batch_size"},
    Row{"evaluation.answers", "predict_with_generate", Means::related},
    Row{"evaluation.answer_tokens", "generation_max_new_tokens max_new_tokens"},
    Row{"evaluation.beams", "generation_num_beams num_beams"},
    Row{"batch_norm.synchronize", "sync_batchnorm"},
    Row{"comm.bucket_mb", "ddp_bucket_cap_mb bucket_cap_mb"},
    Row{"comm.watchdog_seconds", "ddp_timeout"},
    Row{"checkpoint.every_steps", "save_steps"},
    Row{"checkpoint.every_epochs", "save_strategy save_every", Means::related},
    Row{"checkpoint.keep", "save_total_limit"},
    Row{"checkpoint.resume_from", "resume resume_from_checkpoint"},
    Row{"log.every_steps", "logging_steps log_every_n_steps"},
    Row{"log.mlflow", "report_to", Means::related},
    Row{"run.directory", "output_dir logging_dir default_root_dir"},
    Row{"run.name", "run_name experiment_name"},
    Row{"loss_scale.initial", "init_scale"},
    Row{"loss_scale.growth_steps", "growth_interval"},
    Row{"",
        "pin_memory dataloader_pin_memory ddp_find_unused_parameters find_unused_parameters ddp_broadcast_buffers "
        "eval_do_concat_batches eval_accumulation_steps tuning.backend group_by_length trust_remote_code"},
};

/// `name`: a key in lower case. Null if no other program has it.
const Row* row_of(std::string_view name) {
  const auto is_meant = [&](std::string_view word) {
    const std::size_t begin = name.size() - std::min(name.size(), word.size());
    return name.ends_with(word) && (begin == 0 || name[begin - 1] == '.');
  };
  const auto row = std::ranges::find_if(
      kRows, [&](const Row& candidate) { return std::ranges::any_of(words(candidate.theirs), is_meant); });
  return row == kRows.end() ? nullptr : &*row;
}

}  // namespace

std::string text_of_other_programs(std::string_view name) {
  const Row* row = row_of(name);
  if (row == nullptr) return "";
  if (row->ours.empty()) return "; nothing has to be set for it: remove it";
  return fmt::format("; the nearest is {}{}{}", row->ours, row->if_true.empty() ? "" : "=", row->if_true);
}

std::vector<std::pair<std::string_view, std::string_view>> keys_of_other_programs() {
  std::vector<std::pair<std::string_view, std::string_view>> keys;
  for (const Row& row : kRows)
    for (const std::string_view word : words(row.theirs)) keys.emplace_back(word, row.ours);
  return keys;
}

bool translate_variable(Setting& setting) {
  constexpr std::array<std::string_view, 3> kPrefixes{"TRAIN_", "MODEL_", "TUNING_"};
  const auto prefix =
      std::ranges::find_if(kPrefixes, [&](std::string_view text) { return setting.key.starts_with(text); });
  if (prefix == kPrefixes.end()) return true;
  const std::string variable = setting.key;
  setting.key = lower(variable);
  setting.key[prefix->size() - 1] = '.';  // TRAIN_BATCH_SIZE: train.batch_size
  setting.place += ": " + variable;
  if (find_key(setting.key) != nullptr) return true;
  const Row* row = row_of(setting.key);
  if (row == nullptr || row->means == Means::related) return true;
  if (row->ours.empty()) return false;
  if (row->means == Means::flag) {
    const std::string value = lower(setting.value.text);
    const std::string_view ours = value == "true" ? row->if_true : value == "false" ? row->if_false : "";
    if (ours.empty()) return true;
    setting.value.text = ours;
  }
  setting.key = row->ours;
  return true;
}

}  // namespace lockstep::config

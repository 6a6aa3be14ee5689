// Checks that involve several keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/numbers.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "config/parameter_groups.h"
#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep {

std::string Config::places(std::initializer_list<std::string_view> keys) const {
  std::vector<std::string_view> found;
  for (const std::string_view key : keys) {
    const auto origin = origins.find(key);
    if (origin != origins.end() && std::ranges::find(found, origin->second) == found.end())
      found.emplace_back(origin->second);
  }
  return found.empty() ? "" : fmt::format("{}: ", fmt::join(found, ", "));
}

}  // namespace lockstep

namespace lockstep::config {
namespace {

/// Within these limits, sums of weighted losses have the precision of fp32, like those without weights.
constexpr double kLeastClassWeight = 1e-6, kGreatestClassWeight = 1e6;

void check_checkpoint_name(const Config& c) {
  const std::string& name = c.checkpoint.name;
  const std::string place = c.places({"checkpoint.name"});
  require(!name.empty() && name.find('/') == std::string::npos && !name.starts_with('.') && name.size() <= 150,
          ErrorCode::config_invalid,
          "{}checkpoint.name: expected a file name of at most 150 characters, such as \"step-{{step}}\", found \"{}\"",
          place, name);
  constexpr std::array<std::string_view, 5> kFields{"step", "epoch", "model", "start", "end"};
  for (std::size_t open = name.find_first_of("{}"); open != std::string::npos; open = name.find_first_of("{}", open)) {
    const std::size_t close = name.find('}', open);
    const std::string field = close == std::string::npos ? name.substr(open) : name.substr(open + 1, close - open - 1);
    require(name[open] == '{' && std::ranges::find(kFields, field) != kFields.end(), ErrorCode::config_invalid,
            "{}checkpoint.name: \"{}\" has the unknown placeholder {{{}}}; the placeholders are {{{}}}", place, name,
            field, fmt::join(kFields, "}, {"));
    open = close + 1;
  }
  require(
      name.find("{step}") != std::string::npos || name.find("{epoch}") != std::string::npos, ErrorCode::config_invalid,
      "{}checkpoint.name: expected {{step}} or {{epoch}} in it, since otherwise all checkpoints have the same name, "
      "found \"{}\"",
      place, name);
}

/// Names of directories and files are written to JSON and to the terminal. `--fresh` appends to them.
void check_path_text(const Config& c, std::string_view key, const std::string& path) {
  constexpr std::size_t kMaxPart = 240, kMaxPath = 3000;  // bytes; the system's limits are 255 and 4096
  const std::string place = c.places({key});
  const std::size_t valid = valid_length(path);
  require(valid == path.size(), ErrorCode::config_invalid,
          "{}{}: expected text in UTF-8, found the byte 0x{:02x} in \"{}\"", place, key,
          static_cast<unsigned char>(path[std::min(valid, path.size() - 1)]), printable(path));
  require(!has_control_characters(path), ErrorCode::config_invalid,
          "{}{}: expected a name without control characters, found \"{}\"", place, key, printable(path));
  std::size_t longest = 0;
  for (const auto& part : std::filesystem::path(path)) longest = std::max(longest, part.native().size());
  require(longest <= kMaxPart && path.size() <= kMaxPath, ErrorCode::config_invalid,
          "{}{}: expected a name of at most {} bytes (a path of at most {}), found one of {}", place, key, kMaxPart,
          kMaxPath, longest > kMaxPart ? longest : path.size());
}

void check_run(const Config& c) {
  require(!c.run.directory.empty(), ErrorCode::config_invalid,
          "{}run.directory: expected a path, found nothing; `.` is the working directory", c.places({"run.directory"}));
  check_path_text(c, "run.directory", c.run.directory);
  check_path_text(c, "run.name", c.run.name);
  check_path_text(c, "checkpoint.name", c.checkpoint.name);
  require(!c.run.name.empty() && c.run.name != "." && c.run.name.front() != '/' &&
              c.run.name.find("..") == std::string::npos,
          ErrorCode::config_invalid,
          "{}run.name: expected the name of a directory, relative to run.directory, found \"{}\"",
          c.places({"run.name"}), c.run.name);
  check_checkpoint_name(c);
}

void check_log(const Config& c) {
  constexpr double kMinSeconds = 0.1;
  require(c.log.usage_seconds == 0 || c.log.usage_seconds >= kMinSeconds, ErrorCode::config_invalid,
          "{}log.usage_seconds: expected 0 (never), or {} or more, found {}", c.places({"log.usage_seconds"}),
          kMinSeconds, c.log.usage_seconds);
  if (c.log.mlflow.empty()) return;
  check_mlflow_address(c.log.mlflow, c.places({"log.mlflow"}) + "log.mlflow");
  require(!c.log.mlflow_experiment.empty(), ErrorCode::config_invalid,
          "{}log.mlflow_experiment: expected the name of an experiment, found nothing",
          c.places({"log.mlflow_experiment"}));
}

void check_data(const Config& c) {
  require((c.data.start == 0 && c.data.end == 0) || c.data.end > c.data.start, ErrorCode::config_conflict,
          "{}data.end must be greater than data.start (both 0: all samples), found start {} and end {}",
          c.places({"data.start", "data.end"}), c.data.start, c.data.end);
  const auto augments = [&](const char* what) {
    return std::ranges::find(c.data.augment, what) != c.data.augment.end();
  };
  require(!augments("crop") || !augments("resized_crop"), ErrorCode::config_conflict,
          "{}data.augment accepts crop (a shift by a few pixels) or resized_crop (a part of the image), but not both",
          c.places({"data.augment"}));
  const std::vector<double>& jitter = c.data.color_jitter;
  require(jitter.empty() || jitter.size() == 4, ErrorCode::config_invalid,
          "{}data.color_jitter: expected four numbers, of brightness, contrast, saturation and hue, found {}",
          c.places({"data.color_jitter"}), jitter.size());
  require(jitter.empty() || jitter[3] <= 0.5, ErrorCode::config_invalid,
          "{}data.color_jitter: expected a hue, the fourth number, from 0 to 0.5, found {}",
          c.places({"data.color_jitter"}), jitter.empty() ? 0 : jitter[3]);
  require(c.data.mean.empty() || c.data.std.empty() || c.data.mean.size() == c.data.std.size(),
          ErrorCode::config_conflict, "{}data.mean and data.std must each have one number per channel, found {} and {}",
          c.places({"data.mean", "data.std"}), c.data.mean.size(), c.data.std.size());
  require(
      c.data.pack || !c.data.cross_documents, ErrorCode::config_conflict,
      "{}data.cross_documents=true is for windows with several documents, and data.pack=false puts one document into "
      "each: set data.cross_documents=false, or data.pack=true",
      c.places({"data.pack", "data.cross_documents"}));
}

void check_training(const Config& c) {
  require(c.train.global_batch > 0 || c.train.batch_per_rank != 0, ErrorCode::config_conflict,
          "{}one of train.global_batch and train.batch_per_rank must be 1 or more, found 0 for both",
          c.places({"train.global_batch", "train.batch_per_rank"}));
  require(c.train.global_batch == 0 || c.train.global_batch >= c.train.accumulate, ErrorCode::config_conflict,
          "{}train.global_batch must have at least one sample for each of the train.accumulate micro-batches, found {} "
          "and {}",
          c.places({"train.global_batch", "train.accumulate"}), c.train.global_batch, c.train.accumulate);
  require(
      !c.optimizer.nesterov || (c.optimizer.kind != "adamw" && c.optimizer.momentum > 0), ErrorCode::config_conflict,
      "{}optimizer.nesterov: true requires optimizer.kind: sgd or lars, and optimizer.momentum greater than 0, found "
      "{} and {}",
      c.places({"optimizer.nesterov", "optimizer.kind", "optimizer.momentum"}), c.optimizer.kind, c.optimizer.momentum);
  require(c.train.shard != "parameters" || (c.evaluation.generate.empty() && c.evaluation.answers == 0),
          ErrorCode::config_conflict,
          "{}with train.shard=parameters, no rank has all weights to generate text in evaluations: set "
          "evaluation.generate=[] and evaluation.answers=0, and run lockstep generate or lockstep evaluate on a "
          "checkpoint",
          c.places({"evaluation.generate", "evaluation.answers", "train.shard"}));
  require(c.train.shard == "none" || c.optimizer.kind != "lars", ErrorCode::config_conflict,
          "{}lars needs the norms of whole layers, of which each rank has only a part with train.shard: set "
          "train.shard to none, or optimizer.kind to sgd or adamw",
          c.places({"train.shard", "optimizer.kind"}));
  const Config::Model::Lora& lora = c.model.lora;
  require(!lora.is_on() || !lora.targets.empty(), ErrorCode::config_invalid,
          "{}model.lora.targets: expected at least one of [q, k, v, o, gate, up, down], found none",
          c.places({"model.lora.targets"}));
}

int greatest_divisor_up_to(std::int64_t number, int limit) {
  int divisor = limit;
  while (number % divisor != 0) --divisor;
  return divisor;
}

void check_micro_batches(const Config& c) {
  const int m = c.train.micro_batches;
  if (m == 0) return;
  require(c.train.global_batch > 0, ErrorCode::config_conflict,
          "{}train.micro_batches requires a global batch that does not depend on the number of ranks: set "
          "train.global_batch after train.batch_per_rank, or train.micro_batches=0",
          c.places({"train.micro_batches", "train.batch_per_rank"}));
  require(c.train.global_batch % m == 0, ErrorCode::config_conflict,
          "{}train.micro_batches must divide train.global_batch, found {} and {}; {} is possible",
          c.places({"train.micro_batches", "train.global_batch"}), m, c.train.global_batch,
          greatest_divisor_up_to(c.train.global_batch, m));
  require(c.train.accumulate == 1 || c.train.accumulate == Config::kAuto, ErrorCode::config_conflict,
          "{}with train.micro_batches, each rank already processes its micro-batches one after the other: set "
          "train.accumulate to 1, found {}",
          c.places({"train.micro_batches", "train.accumulate"}), c.train.accumulate);
  require(!c.batch_norm.synchronize, ErrorCode::config_conflict,
          "{}train.micro_batches normalizes each micro-batch with its own statistics: set batch_norm.synchronize to "
          "false, or train.micro_batches to 0",
          c.places({"train.micro_batches", "batch_norm.synchronize"}));
}

void check_schedule(const Config& c) {
  require(
      c.schedule.warmup_epochs == 0 || c.schedule.warmup_steps == 0, ErrorCode::config_conflict,
      "{}only one of schedule.warmup_epochs and schedule.warmup_steps can be in effect, found {} and {}; set one to 0",
      c.places({"schedule.warmup_epochs", "schedule.warmup_steps"}), c.schedule.warmup_epochs, c.schedule.warmup_steps);
  require(c.schedule.steps == 0 || c.schedule.warmup_steps <= c.schedule.steps, ErrorCode::config_conflict,
          "{}schedule.warmup_steps must not be longer than schedule.steps, found {} and {}",
          c.places({"schedule.warmup_steps", "schedule.steps"}), c.schedule.warmup_steps, c.schedule.steps);
  require(c.schedule.steps > 0 || c.schedule.warmup_epochs <= c.train.epochs, ErrorCode::config_conflict,
          "{}schedule.warmup_epochs must not be longer than train.epochs, found {} and {}",
          c.places({"schedule.warmup_epochs", "train.epochs"}), c.schedule.warmup_epochs, c.train.epochs);
  require(c.schedule.final_learning_rate <= c.optimizer.learning_rate, ErrorCode::config_conflict,
          "{}schedule.final_learning_rate must not be greater than optimizer.learning_rate, found {} and {}",
          c.places({"schedule.final_learning_rate", "optimizer.learning_rate"}), c.schedule.final_learning_rate,
          c.optimizer.learning_rate);
}

void check_fine_tuning(const Config& c) {
  require(c.data.validation_resize == 0 || c.data.image_size > 0, ErrorCode::config_conflict,
          "{}data.validation_resize requires data.image_size, to which images are cropped after it, found 0",
          c.places({"data.validation_resize", "data.image_size"}));
  require(c.data.validation_size == 0 || c.data.image_size > 0, ErrorCode::config_conflict,
          "{}data.validation_size requires data.image_size, which is the size of training, found 0",
          c.places({"data.validation_size", "data.image_size"}));
  const bool has_own_size = c.data.validation_size > 0;
  const int size = has_own_size ? c.data.validation_size : c.data.image_size;
  require(c.data.validation_resize == 0 || c.data.validation_resize >= size, ErrorCode::config_conflict,
          "{}data.validation_resize must not be less than data.{}, found {} and {}",
          c.places({"data.validation_resize", "data.validation_size", "data.image_size"}),
          has_own_size ? "validation_size" : "image_size", c.data.validation_resize, size);
  const std::vector<double>& weights = c.train.class_weights;
  require(weights.empty() || std::ssize(weights) == c.model.classes, ErrorCode::config_conflict,
          "{}train.class_weights must have one number for each of the model.classes, found {} and {}",
          c.places({"train.class_weights", "model.classes"}), weights.size(), c.model.classes);
  for (const double weight : weights)
    require(weight == 0 || (weight >= kLeastClassWeight && weight <= kGreatestClassWeight), ErrorCode::config_invalid,
            "{}train.class_weights: expected 0, or from {} to {}, found {}; only their ratios matter",
            c.places({"train.class_weights"}), kLeastClassWeight, kGreatestClassWeight, weight);
  require(weights.empty() || std::ranges::any_of(weights, [](double weight) { return weight > 0; }),
          ErrorCode::config_invalid, "{}train.class_weights: expected at least one weight greater than 0, found only 0",
          c.places({"train.class_weights"}));
  for (const std::string& text : c.optimizer.groups) {
    const ParameterGroup group = parse_parameter_group(text, c.places({"optimizer.groups"}));
    require(c.optimizer.learning_rate > 0 || group.learning_rate.value_or(0) == 0, ErrorCode::config_conflict,
            "{}optimizer.groups: the learning rate of a group follows the schedule of optimizer.learning_rate, which "
            "must be greater than 0, found 0; train.freeze selects parameters that are not trained",
            c.places({"optimizer.groups", "optimizer.learning_rate"}));
    // The optimizer multiplies the learning rate of a step by the ratio of the two, which is a float.
    constexpr double kMaxRatio = 1e30;
    const double rate = group.learning_rate.value_or(0);
    require(
        rate == 0 || rate / c.optimizer.learning_rate <= kMaxRatio, ErrorCode::config_conflict,
        "{}optimizer.groups: expected a learning rate of at most 1e30 times optimizer.learning_rate ({}), found \"{}\"",
        c.places({"optimizer.groups", "optimizer.learning_rate"}), c.optimizer.learning_rate, text);
  }
}

void check_hardware(const Config& c) {
  const std::vector<std::string>& families = c.hardware.families;
  require(families.empty() || std::ranges::find(families, c.model.family) != families.end(), ErrorCode::config_conflict,
          "{}this hardware file is for models of the family {}, but model.family is {}: use another file of "
          "jobs/configs/hardware, or none",
          c.places({"hardware.families"}), fmt::join(families, " or "), c.model.family);
}

void check_evaluation(const Config& c) {
  require(c.evaluation.patience == 0 || !c.data.validation.empty(), ErrorCode::config_conflict,
          "{}evaluation.patience={} compares evaluations and needs data.validation, found nothing",
          c.places({"evaluation.patience", "data.validation"}), c.evaluation.patience);
  require(c.evaluation.patience == 0 || c.evaluation.every_epochs > 0 || c.evaluation.every_steps > 0,
          ErrorCode::config_conflict,
          "{}evaluation.patience={} compares evaluations during the training: set evaluation.every_epochs or "
          "evaluation.every_steps, found 0 for both",
          c.places({"evaluation.patience", "evaluation.every_epochs", "evaluation.every_steps"}),
          c.evaluation.patience);
  require(c.evaluation.generate.empty() || !c.data.validation.empty(), ErrorCode::config_conflict,
          "{}evaluation.generate writes samples after evaluations, which need data.validation, found nothing",
          c.places({"evaluation.generate", "data.validation"}));
  require(c.evaluation.answers == 0 || !c.data.validation.empty(), ErrorCode::config_conflict,
          "{}evaluation.answers={} answers the conversations of data.validation, found nothing",
          c.places({"evaluation.answers", "data.validation"}), c.evaluation.answers);
  require(c.checkpoint.best == Config::Checkpoint{}.best || !c.data.validation.empty(), ErrorCode::config_conflict,
          "{}checkpoint.best={} compares evaluations and needs data.validation, found nothing",
          c.places({"checkpoint.best", "data.validation"}), c.checkpoint.best);
}

/// The settings with which RUN/model and its card are written.
void check_publishing(const Config& c) {
  require(parse_byte_size(c.checkpoint.max_shard_size).has_value(), ErrorCode::config_invalid,
          "{}checkpoint.max_shard_size: expected {}, found \"{}\"", c.places({"checkpoint.max_shard_size"}),
          kByteSizeExample, printable(c.checkpoint.max_shard_size));
  const std::string& license = c.model.license;
  const bool is_identifier = std::ranges::all_of(
      license, [](unsigned char x) { return std::islower(x) || std::isdigit(x) || x == '-' || x == '.' || x == '+'; });
  require(is_identifier && license.size() <= 60, ErrorCode::config_invalid,
          "{}model.license: expected an identifier of the Hugging Face Hub in lower case, such as apache-2.0, mit, "
          "cc-by-4.0 or other, found \"{}\"",
          c.places({"model.license"}), printable(license));
}

}  // namespace

void check_mlflow_address(const std::string& address, const std::string& what) {
  const bool is_http = address.starts_with("http://") || address.starts_with("https://");
  const std::size_t begin = std::min(address.find("//"), address.size() - 1) + 2;
  const std::string host = begin < address.size() ? address.substr(begin, address.find('/', begin) - begin) : "";
  require(host.find('@') == std::string::npos, ErrorCode::config_invalid,
          "{}: expected an address without a user and a password, which RUN/config.yaml would show; they belong in "
          "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
          what);
  require(
      is_http && !host.empty() && address.find_first_of(" ?#") == std::string::npos && !has_control_characters(address),
      ErrorCode::config_invalid,
      "{}: expected the address of an MLflow server, such as http://host:5000, found \"{}\"; for a local folder or "
      "database, start `mlflow server --backend-store-uri ...`",
      what, printable(address));
}

void check(const Config& config) {
  check_run(config);
  check_data(config);
  check_training(config);
  check_micro_batches(config);
  check_schedule(config);
  check_log(config);
  check_fine_tuning(config);
  check_hardware(config);
  check_evaluation(config);
  check_publishing(config);
}

}  // namespace lockstep::config

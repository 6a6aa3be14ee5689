// The state that a session begins from: the newest good checkpoint of the run, the one that the user chose, or initial
// weights.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "base/outcome.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_file.h"
#include "checkpoint/tensor_names.h"
#include "config/parser.h"
#include "config/table.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics.h"
#include "tasks/task.h"
#include "train/evaluation.h"
#include "train/resume_changes.h"
#include "train/session.h"

namespace lockstep::train {
namespace {

/// Checks that a run can resume from this checkpoint: it needs the right layout of the tensors, and more than weights.
void check_contents(const checkpoint::StateJson& state, const std::string& file) {
  require(state.contains("global_batch"), ErrorCode::checkpoint_mismatch,
          "{} holds only weights, and no run can resume from it: start a new run with model.initialize_from={}", file,
          file);
  const int layout = state.value("layout_version", 1);
  require(layout == checkpoint::kLayoutVersion, ErrorCode::checkpoint_format,
          "{} has tensors of layout {}; this program resumes from layout {}", file, layout, checkpoint::kLayoutVersion);
}

/// The model must be that of the checkpoint, whatever configuration was recorded.
void check_model(const checkpoint::StateJson& state, const tasks::Task& task, const std::string& file) {
  std::string changes;
  for (const auto& [key, before, now] :
       tasks::stamp_differences(state.value("model", nlohmann::json::object()), task.model_stamp()))
    changes += fmt::format("\n  model.{}: {} before, {} now", key, before, now);
  require(
      changes.empty(), ErrorCode::config_conflict,
      "{} cannot be resumed, because its model has changed (undo that, or start a new run with another run.name and "
      "model.initialize_from={}):{}",
      file, file, changes);
}

constexpr const char* kConfigFile = "config.yaml";

/// Checks model.initialize_from in combination with model.from and model.lora.
void check_initial_adapters(const Config& config, const checkpoint::ModelFile& file) {
  const Config::Model& model = config.model;
  const std::string place = config.places({"model.initialize_from", "model.from"});
  require(inference::holds_adapters(file), ErrorCode::config_conflict,
          "{}with model.lora and model.from, model.initialize_from is for adapters, but {} is a whole model: set only "
          "model.from={}",
          place, file.path, file.path);
  const Config::Model::Lora theirs = inference::lora_of(file);
  require(theirs.rank == model.lora.rank && theirs.alpha == model.lora.alpha && theirs.rslora == model.lora.rslora &&
              std::ranges::is_permutation(theirs.targets, model.lora.targets),
          ErrorCode::config_conflict,
          "{}the adapters of {} have other keys than model.lora: set model.lora.rank={} model.lora.alpha={:g} "
          "'model.lora.targets=[{}]' model.lora.rslora={}",
          place, file.path, theirs.rank, theirs.alpha, fmt::join(theirs.targets, ", "), theirs.rslora);
}

/// Whether a checkpoint records the same measure of quality as this run uses for comparisons.
bool measures_the_same(const checkpoint::StateJson& state, const Config& config, const tasks::Task& task) {
  const std::string before = state.value("quality_of", Config::Checkpoint{}.best);
  return figure_of_best(before, task) == figure_of_best(config.checkpoint.best, task);
}

}  // namespace

void Session::find_checkpoints() {
  const auto list = [this] { return leader() ? list_checkpoints() : std::string(); };
  const nlohmann::json found = nlohmann::json::parse(all_agree(world, list)[0]);
  checkpoints_ = found.at("paths").get<std::vector<std::string>>();
  is_chosen_ = found.at("is_chosen").get<bool>();
  if (checkpoints_.empty() && found.at("n_bad") > 0) fail_without_good_checkpoint();
  std::ranges::reverse(checkpoints_);
}

/// A run that was started from checkpoint.resume_from continues from its own checkpoints once it has newer ones.
std::string Session::list_checkpoints() {
  const std::string& given = config.checkpoint.resume_from;
  checkpoint::Candidates own;
  if (!options_.fresh) run.check_files();
  if (!options_.fresh) own = checkpoint::newest_first(run.checkpoints());
  bool is_chosen = false;
  if (given.empty() && own.paths.empty() && own.n_bad == 0 && !options_.fresh) require_none_lost();
  if (!given.empty()) {
    const std::int64_t own_step = own.paths.empty() ? -1 : checkpoint::Reader(own.paths.front()).step();
    std::int64_t given_step = -1;
    try {
      given_step = checkpoint::Reader(given).step();
    } catch (const Error&) {
      if (own.paths.empty()) throw;
    }
    is_chosen = given_step > own_step || own.paths.empty();
    if (is_chosen)
      own.paths = {given};
    else
      notes.push_back(
          fmt::format("checkpoint.resume_from={} is not used, since the run has a newer checkpoint of its own", given));
  }
  return nlohmann::json{{"paths", own.paths}, {"n_bad", own.n_bad}, {"is_chosen", is_chosen}}.dump();
}

/// Throws if checkpoints are missing: starting over would replace the record of what was trained.
void Session::require_none_lost() {
  const run::RecordedSteps recorded = run::recorded_steps(run.path());
  require(
      recorded.checkpoint < 0, ErrorCode::cannot_open,
      "the run has saved a checkpoint of step {}, as {} records, but {} contains none: restore one, or add --fresh to "
      "start over, which renames the run directory",
      recorded.checkpoint, run.file("metrics.jsonl"), run.checkpoints());
  if (recorded.has_events) notes.emplace_back("the last start ended before its first checkpoint: the run starts over");
}

void Session::fail_without_good_checkpoint() const {
  fail(ErrorCode::checkpoint_damaged,
       "all checkpoints in {} are damaged: add --fresh to start over, which renames the run directory and keeps them",
       run.checkpoints());
}

/// Opens the next of checkpoints_ with reader_. Returns false if none is left.
bool Session::open_next_checkpoint() {
  reader_.reset();
  if (checkpoints_.empty()) return false;
  reader_ = std::make_unique<checkpoint::Reader>(checkpoints_.back());
  checkpoints_.pop_back();
  return true;
}

void Session::resume_from(const checkpoint::StateJson& state, const SessionOptions& options) {
  const std::string& file = reader_->path();
  check_contents(state, file);
  check_unchanged(state, options);
  check_model(state, *task, file);
  const auto batch = state.at("global_batch").get<std::int64_t>();
  const std::int64_t configured = configured_global_batch(config, world.size());
  // A train.global_batch must be the same. What train.batch_per_rank makes of it may differ: the number of ranks may.
  if (configured > 0 && configured != batch && config.train.global_batch == 0)
    notes.push_back(
        fmt::format("the global batch stays {}, as in the run's first step; train.batch_per_rank would make it {}",
                    batch, configured));
  require(
      config.train.global_batch == 0 || config.train.global_batch == batch, ErrorCode::config_conflict,
      "{}{} is of a run with a global batch of {} samples, which it keeps: set train.global_batch={} instead of {}, "
      "or start a new run with model.initialize_from={}",
      config.places({"train.global_batch"}), file, batch, batch, config.train.global_batch, file);
  config.train.global_batch = batch;
}

/// The content of RUN/config.yaml; empty if there is none.
std::string Session::recorded_configuration() const {
  const std::string text = run.read_file(kConfigFile);
  try {
    (void)config::learning_differences(text, config, run.file(kConfigFile));
  } catch (const Error& error) {
    fail(ErrorCode::config_unreadable,
         "{}; the run to resume was started with this file: restore it, or remove it, and the configuration in the "
         "checkpoint is used",
         error.what());
  }
  return text;
}

/// `precision: auto` does not change the precision of a run that resumes, perhaps on other devices.
void Session::keep_precision(const std::string& yaml_before) {
  const config::Key& key = *config::find_key("precision");
  const std::vector<config::Difference> changes = config::learning_differences(yaml_before, config);
  const auto found = std::ranges::find(changes, key.name, &config::Difference::key);
  if (found == changes.end()) return;
  key.set(config, {.is_list = false, .text = found->before, .items = {}});
  precision_reason_ = " (auto: that of the run that is resumed)";
}

/// Checks the changes since the last start, or since the checkpoint was written if RUN has no record of the last start.
void Session::check_unchanged(const checkpoint::StateJson& state, const SessionOptions& options) {
  Recorded before{.yaml = options.fresh ? "" : recorded_configuration(), .source = run.file(kConfigFile)};
  if (before.yaml.empty()) before = {.yaml = state.value("configuration", ""), .source = reader_->path()};
  if (config.precision_is_automatic) keep_precision(before.yaml);
  for (std::string& note : require_allowed_changes(before, config, options.allow_change, reader_->path()))
    notes.push_back(std::move(note));
}

void Session::check_data() const {
  require_same_data(reader_->state(), {task->inference_stamp(), task->train_set()->info().content_hash}, config,
                    options_.allow_change, reader_->path());
}

/// Tensors are checked as they are read, so that the file is read only once. If a file turns out to be damaged on any
/// rank, it is reported, and the checkpoint before it is used.
void Session::restore() {
  OptimizerStart start;
  while (true) {
    std::optional<Error> error;
    try {
      start = optimizer_start(*reader_, config, replica->targets());
      reader_->load(start.targets);
    } catch (const Error& e) {
      error = e;
    }
    if (!world.any(error.has_value())) break;
    const std::string bad = reader_->path();
    // The checkpoint before it would not match either.
    if (error && error->code() == ErrorCode::checkpoint_mismatch) throw *error;
    if (checkpoints_.empty() && error && is_chosen_) throw *error;
    if (error) log::warning("a checkpoint is not used: {}", error->what());
    if (checkpoints_.empty() && !is_chosen_) fail_without_good_checkpoint();
    require(open_next_checkpoint(), ErrorCode::checkpoint_damaged, "another rank could not read {}", bad);
    check_contents(reader_->state(), reader_->path());
    check_model(reader_->state(), *task, reader_->path());
    check_data();
    require(reader_->state().at("global_batch") == config.train.global_batch, ErrorCode::checkpoint_damaged,
            "{} is damaged, and {}, the one before, is of a run with another global batch: move one of them away", bad,
            reader_->path());
  }
  const checkpoint::StateJson& state = reader_->state();
  progress.step = state.at("step").get<std::int64_t>();
  progress.optimizer_begin = start.begin;
  if (!start.note.empty()) notes.push_back(start.note);
  if (start.starts_averages) {
    replica->start_averages();
    notes.emplace_back("the averages of the weights begin with the weights, since the checkpoint has none");
  }
  if (const auto before = state.value("steps_per_epoch", steps_per_epoch); before != steps_per_epoch)
    notes.push_back(fmt::format("an epoch has {} steps instead of {}: after step {}, {} epochs are complete",
                                steps_per_epoch, before, progress.step, progress.step / steps_per_epoch));
  progress.epoch_sums = loss_sums(state.value("epoch_sums", std::vector<double>()));
  progress.is_measured = state.value("quality", nlohmann::json()).is_number();
  progress.slices = run::slices_after(state, config);
  restore_loss_scale(state);
  find_best();
  if (measures_the_same(state, config, *task)) progress.patience.restore(state.value("patience", nlohmann::json()));
  resumed_from = reader_->path();
  reader_.reset();
  checkpoints_.clear();
}

/// If a checkpoint has no loss scale, or keys of it have changed, the initial one is kept.
void Session::restore_loss_scale(const checkpoint::StateJson& state) {
  if (!state.contains("loss_scale") || !keeps_loss_scale(state, config)) return;
  const nlohmann::json& stored = state.at("loss_scale");
  const LossScale loss_scale{.scale = stored.at("scale").get<float>(),
                             .good_steps = stored.at("good_steps").get<std::uint32_t>()};
  require(std::isfinite(loss_scale.scale) && loss_scale.scale > 0, ErrorCode::checkpoint_damaged,
          "{} has a loss scale of {}, which is not possible", reader_->path(), loss_scale.scale);
  replica->set_loss_scale(loss_scale);
}

/// A checkpoint records its own quality and not the best so far, which would depend on where a run was stopped.
void Session::find_best() {
  const std::string best = run.checkpoints() + "/best";
  std::string text;
  if (const std::string broken = leader() ? broken_link_text(best) : ""; !broken.empty())
    log::warning("the best checkpoint so far is not known: {}", broken);
  if (leader() && std::filesystem::exists(best)) {
    try {
      const checkpoint::StateJson state = checkpoint::Reader(best).state();
      if (measures_the_same(state, config, *task))
        text = state.value("quality", nlohmann::json()).dump();
      else
        notes.push_back(
            fmt::format("checkpoint.best is now {}: the next evaluation decides anew which checkpoint is best",
                        config.checkpoint.best));
    } catch (const Error& error) {
      log::warning("the best checkpoint so far is not known: {}", error.what());
    }
  }
  world.broadcast_text(text);
  const nlohmann::json quality = text.empty() ? nlohmann::json() : nlohmann::json::parse(text);
  progress.has_best = quality.is_number();
  if (progress.has_best) progress.best = quality.get<double>();
}

void Session::read_base() {
  const std::string source = inference::base_of(config.model);
  require(!source.empty() || config.data.train == "synthetic", ErrorCode::config_conflict,
          "{}model.lora trains adapters beside a model that exists: set model.from=DIRECTORY, or "
          "model.initialize_from=CHECKPOINT",
          config.places({"model.lora.rank"}));
  if (source.empty()) {
    notes.emplace_back("the base of the adapters has random values, since the data are synthetic");
    return;
  }
  base_ = checkpoint::read_model_file(source);
  require(!inference::holds_adapters(base_), ErrorCode::config_conflict,
          "{}{} has adapters, which need a base themselves: set model.from=DIRECTORY to that base, and "
          "model.initialize_from={} to train the adapters further",
          config.places({"model.from", "model.initialize_from"}), source, source);
  inference::check_tensors(config.model, base_);
  inference::check_places(base_, plan->parameters(), inference::Loaded::base);
  notes.push_back(fmt::format("the base of the adapters is {}", source));
}

void Session::load_base() {
  if (base_.tensors.empty()) return replica->initialize_base(config.run.seed);
  inference::hash_while_read(base_.tensors, [this](const std::string& hash) {
    if (reader_) inference::require_same_base(reader_->state(), reader_->path(), hash, base_.path);
    inference::require_same_base(initial_weights_.state, initial_weights_.path, hash, base_.path);
    base_hash = hash;
  });
  replica->load_base(base_, world);
  world.broadcast_text(base_hash);  // only the ranks that read have it
  base_ = {};
}

void Session::read_initial_weights() {
  const Config::Model& model = config.model;
  const bool has_directory = model.from != Config::Model{}.from, has_base = model.lora.is_on();
  if (has_base && (!has_directory || model.initialize_from.empty())) return;  // these weights are the base
  const std::string& source = model.initialize_from.empty() && has_directory ? model.from : model.initialize_from;
  if (source.empty() && !config.train.freeze.empty())
    notes.push_back("train.freeze: the frozen parameters keep random values, since model.initialize_from is not set");
  if (source.empty()) return;
  checkpoint::ModelFile file = checkpoint::read_model_file(source);
  inference::check_tensors(model, file);
  require(has_base || !inference::holds_adapters(file), ErrorCode::config_conflict,
          "{}{} has adapters, but model.lora.rank is 0: set it, or merge them with `lockstep checkpoint merge`",
          config.places({"model.initialize_from"}), source);
  if (has_base) check_initial_adapters(config, file);
  progress.slices = run::slices_before(file.state, config);
  const std::vector<std::string> kept = differing_heads(*plan, file.tensors);
  initial_weights_ = std::move(file);
  notes.push_back(fmt::format("weights from {}", source));
  for (const std::string& line : kept) notes.push_back(fmt::format("the head is initialized at random: {}", line));
}

void Session::initialize_weights() {
  replica->initialize(config.run.seed);
  if (initial_weights_.tensors.empty()) return;
  replica->load_named(initial_weights_, world);
  initial_weights_ = {};
}

}  // namespace lockstep::train

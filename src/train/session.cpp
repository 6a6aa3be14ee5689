#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "comm/world.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/algorithm_store.h"
#include "train/autotune.h"
#include "train/batch_fit.h"
#include "train/metrics.h"

namespace lockstep::train {

namespace {

constexpr int kSyntheticSize = 32;  // pixels

std::shared_ptr<const data::ImageSet> open_set(const Config& config, const std::string& path, const char* split) {
  const bool training = split == std::string("train");
  data::ImageShaping shaping{.image_size = config.data.image_size, .seed = config.run.seed};
  shaping.resized_crop =
      training && std::ranges::find(config.data.augment, "resized_crop") != config.data.augment.end();
  if (path != "synthetic")
    return data::open_image_set(path, training ? config.data.start : 0, training ? config.data.end : 0, shaping);
  const std::int64_t n =
      training ? config.data.synthetic_samples : std::max<std::int64_t>(1, config.data.synthetic_samples / 10);
  const int size = config.data.image_size > 0 ? config.data.image_size : kSyntheticSize;
  return data::shape_image_set(data::make_synthetic_set(config.run.seed, n, size, size, 3, config.model.classes, split),
                               shaping);
}

void check_fits(const data::ImageSetInfo& set, const Config& config) {
  require(set.classes <= config.model.classes, ErrorCode::model_mismatch,
          "{} has {} classes, the model {}: set model.classes={}", set.path, set.classes, config.model.classes,
          set.classes);
  require(set.channels == 3, ErrorCode::model_mismatch, "{} has images of {} channels; the models take 3", set.path,
          set.channels);
}

BackendOptions device_of(const Config& config, const World& world) {
  return {.device = config.device,
          .threads = config.cpu.threads,
          .local_rank = world.local_rank(),
          .local_size = world.local_size()};
}

void broadcast_text(World& world, std::string& text) {
  std::uint64_t length = text.size();
  world.broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  text.resize(length);
  world.broadcast(std::as_writable_bytes(std::span(text)), 0);
}

/// What a run can continue from: this layout of the tensors, this precision, this model, and more than weights.
void check_stamp(const checkpoint::StateJson& state, const Config& config, const std::string& file) {
  require(state.contains("global_batch"), ErrorCode::checkpoint_mismatch,
          "{} holds weights alone, of no run that could be continued: begin a new one with model.initialize_from={}",
          file, file);
  const int layout = state.value("layout_version", 1);
  require(layout == checkpoint::kLayoutVersion, ErrorCode::checkpoint_version,
          "{} has tensors of layout {}, this program continues layout {}", file, layout, checkpoint::kLayoutVersion);
  const auto same = [&](const char* key, const nlohmann::json& before, const nlohmann::json& now) {
    require(before == now, ErrorCode::checkpoint_mismatch,
            "{} was made with {}={}, the configuration has {}: set {}={}, or begin a new run with "
            "model.initialize_from={}",
            file, key, before.dump(), now.dump(), key, before.dump(), file);
  };
  same("precision", state.value("precision", ""), name(config.precision));
  const nlohmann::json model = state.value("model", nlohmann::json::object());
  same("model.family", model.value("family", ""), config.model.family);
  same("model.depth", model.value("depth", 0), config.model.depth);
  same("model.stem", model.value("stem", ""), config.model.stem);
  same("model.classes", model.value("classes", 0), config.model.classes);
}

}  // namespace

std::shared_ptr<const data::ImageSet> open_train_set(const Config& config) {
  require(!config.data.train.empty(), ErrorCode::config_range,
          "data.train: wanted the path of a data set, or synthetic, found nothing");
  auto set = open_set(config, config.data.train, "train");
  check_fits(set->info(), config);
  return set;
}

std::shared_ptr<const data::ImageSet> open_validation_set(const Config& config) {
  if (config.data.validation.empty()) return nullptr;
  auto set = open_set(config, config.data.validation, "test");
  check_fits(set->info(), config);
  return set;
}

Session::Session(Config given, World& the_world, const SessionOptions& options)
    : config(std::move(given)), world(the_world), run(config) {
  find_checkpoints(options);
  const bool weights_only = !options.checkpoint.empty();
  if (open_next_checkpoint() && !weights_only) continue_from(reader_->state(), options);
  open_data();
  open_backend();
  const BatchShape batch = divide_batch();
  config.train.global_batch = batch.global_batch;
  const std::int64_t n = train_set->info().n_samples;
  require(batch.global_batch <= n, ErrorCode::data_range,
          "a global batch of {} samples is more than the {} of {}: lower train.global_batch", batch.global_batch, n,
          train_set->info().path);
  steps_per_epoch = data::Loader::steps_per_epoch(n, batch.global_batch, config.data.drop_last);
  last_step = steps_per_epoch * config.train.epochs;
  if (config.train.max_steps > 0) last_step = std::min(last_step, config.train.max_steps);

  plan_steps(batch, !weights_only);
  check_ranks_agree();
  replica = std::make_unique<Replica>(*plan, *backend, *communicator);
  if (reader_)
    restore(weights_only);
  else
    initialize_weights();
}

void Session::open_backend() {
  if (!config.reproducible) algorithms_ = std::make_shared<Algorithms>();
  BackendOptions options = device_of(config, world);
  options.algorithms = algorithms_;
  options.records_steps = config.cuda.graph && !config.trace;
  backend = make_backend(options);
  if (const std::string warning = backend->check_precision(config.precision); !warning.empty() && leader())
    log::warning("precision: {}", warning);
}

BatchShape Session::divide_batch() {
  if (wants_fit(config)) {
    const std::int64_t n = train_set->info().n_samples, limit = n / world.size();
    // By fixed algorithms: what is planned here only for its size needs no timing.
    const auto planner = make_backend(device_of(config, world));
    const comm::Topology topology = comm::topology_of(config.comm, world, {}, planner->memory_space());
    std::int64_t fits = batch_that_fits(config, train_set->info(), world.size(), *planner, topology,
                                        backend->device().memory_bytes, limit);
    for (const std::string& other : world.all_gather(std::to_string(fits))) fits = std::min(fits, std::stol(other));
    resolve_batch(config, world.size(), fits, n);
    notes.push_back(fmt::format("{} samples of a rank at once fit into {:.0f} % of {:.1f} GiB", fits,
                                100 * kUsableMemory, static_cast<double>(backend->device().memory_bytes) / (1 << 30)));
  }
  return batch_shape(config, world.rank(), world.size());
}

void Session::plan_steps(const BatchShape& batch, bool is_training) {
  communicator = comm::make_communicator(config.comm, world, *backend, batch.order_over_ranks());
  const auto make_plan = [&] {
    plan = std::make_unique<StepPlan>(
        config, train_set->info(), batch, *backend,
        comm::topology_of(config.comm, world, batch.order_over_ranks(), backend->memory_space()));
  };
  if (!algorithms_) return make_plan();

  const AlgorithmStore store(run, backend->device(), batch.largest_micro_batch());
  const auto send = [&](const Algorithms::Choices& choices) {
    std::string text = nlohmann::json(choices).dump();
    broadcast_text(world, text);
    algorithms_->remember(nlohmann::json::parse(text).get<Algorithms::Choices>());
  };
  send(leader() ? store.load() : Algorithms::Choices());
  make_plan();
  if (is_training && AlgorithmStore::is_on() && world.any(!algorithms_->is_complete())) {
    if (leader()) log::info("timing the algorithms of each layer, once for this device and batch");
    autotune(world, *algorithms_, make_plan, [&](const Algorithms::Choices& choices) { store.save_in_cache(choices); });
    send(algorithms_->choices());
    if (!leader()) make_plan();
  }
  if (is_training && leader()) store.save_in_run(algorithms_->choices());
}

void Session::open_data() {
  train_set = open_train_set(config);
  validation_set = open_validation_set(config);
  if (!validation_set) return;
  const data::ImageSetInfo &t = train_set->info(), &v = validation_set->info();
  require(t.height == v.height && t.width == v.width, ErrorCode::model_mismatch,
          "{} has images of {}x{} pixels, {} of {}x{}", t.path, t.width, t.height, v.path, v.width, v.height);
  // A folder that one split lacks moves the numbers of the classes behind it.
  const auto is_named = [](const data::ImageSetInfo& set) {
    return set.path != "synthetic" && !set.class_names.empty();
  };
  const bool both_named = is_named(t) && is_named(v);
  const auto [in_t, in_v] = std::ranges::mismatch(t.class_names, v.class_names);
  const auto name = [](const auto& names, auto at) { return at == names.end() ? "missing" : fmt::format("'{}'", *at); };
  require(!both_named || t.class_names == v.class_names, ErrorCode::model_mismatch,
          "{} and {} number different classes: class {} is {} in the one and {} in the other", t.path, v.path,
          in_t - t.class_names.begin(), name(t.class_names, in_t), name(v.class_names, in_v));
}

void Session::find_checkpoints(const SessionOptions& options) {
  if (!options.checkpoint.empty()) {
    checkpoints_ = {options.checkpoint};
  } else if (!config.checkpoint.resume_from.empty()) {
    checkpoints_ = {config.checkpoint.resume_from};
  } else {
    nlohmann::json found;
    if (leader()) {
      const checkpoint::Candidates candidates = checkpoint::newest_first(run.checkpoints());
      found = {{"paths", candidates.paths}, {"n_bad", candidates.n_bad}};
    }
    std::string text = found.dump();
    broadcast_text(world, text);
    found = nlohmann::json::parse(text);
    checkpoints_ = found.at("paths").get<std::vector<std::string>>();
    if (checkpoints_.empty() && found.at("n_bad") > 0) fail_without_good_checkpoint();
  }
  std::ranges::reverse(checkpoints_);
}

void Session::fail_without_good_checkpoint() const {
  fail(ErrorCode::checkpoint_damaged,
       "{} has no good checkpoint: `--fresh` starts over and keeps them in another place", run.checkpoints());
}

/// The next of checkpoints_ becomes reader_'s; false where there is none to begin from.
bool Session::open_next_checkpoint() {
  reader_.reset();
  if (checkpoints_.empty()) return false;
  reader_ = std::make_unique<checkpoint::Reader>(checkpoints_.back());
  checkpoints_.pop_back();
  return true;
}

void Session::continue_from(const checkpoint::StateJson& state, const SessionOptions& options) {
  const std::string& file = reader_->path();
  check_stamp(state, config, file);
  const auto batch = state.at("global_batch").get<std::int64_t>();
  const std::int64_t asked = asked_global_batch(config, world.size());
  // train.global_batch is compared below; what train.batch_per_rank makes of it on another number of ranks is no
  // mistake.
  if (asked > 0 && asked != batch && config.train.global_batch == 0)
    notes.push_back(
        fmt::format("the global batch stays {}, that of the run's first step; train.batch_per_rank would "
                    "make it {}",
                    batch, asked));
  require(config.train.global_batch == 0 || config.train.global_batch == batch, ErrorCode::resume_changed,
          "{} is of a run with a global batch of {} samples, which it keeps: set train.global_batch={} instead of {}, "
          "or begin a new run with model.initialize_from={}",
          file, batch, batch, config.train.global_batch, file);
  config.train.global_batch = batch;
  const std::string before = run.read_file("config.yaml");
  check_unchanged(before.empty() ? state.value("configuration", "") : before, options);
}

void Session::check_unchanged(const std::string& before, const SessionOptions& options) {
  if (before.empty()) return;
  std::string text;
  for (const config::Difference& d : config::learning_differences(before, config)) {
    const auto& allowed = options.allow_change;
    const bool is_allowed =
        d.key == "train.epochs" || std::find(allowed.begin(), allowed.end(), d.key) != allowed.end();
    const bool changes_schedule = d.key == "train.epochs" || d.key.starts_with("schedule.");
    if (is_allowed)
      notes.push_back(fmt::format("{} changes from {} to {}{}", d.key, d.before, d.now,
                                  changes_schedule ? ", and the schedule with it" : ""));
    if (!is_allowed) text += fmt::format("\n  {}: {} before, {} now", d.key, d.before, d.now);
  }
  require(text.empty(), ErrorCode::resume_changed, "{} cannot be continued with other settings of what is learned:{}",
          reader_->path(), text);
}

void Session::check_ranks_agree() const {
  const std::vector<std::string> all = world.all_gather(plan->parameters().description());
  for (std::size_t r = 1; r < all.size(); ++r)
    require(all[r] == all[0], ErrorCode::internal,
            "rank {} lays out its weights otherwise than rank 0: the nodes' processors or libraries differ", r);
}

/// Tensors are checked as they are read, so that the file is read once: one that turns out to be damaged, for whatever
/// rank, is named, and the one before it used.
void Session::restore(bool weights_only) {
  std::vector<checkpoint::TensorTarget> targets = replica->targets();
  if (weights_only) std::erase_if(targets, [](const auto& t) { return t.path.starts_with("/optimizer/"); });
  while (true) {
    std::optional<Error> error;
    try {
      reader_->load(targets);
    } catch (const Error& e) {
      error = e;
    }
    if (!world.any(error.has_value())) break;
    if (error) log::warning("Checkpoint skipped: {}", error->what());
    const std::string bad = reader_->path();
    const bool is_given = weights_only || !config.checkpoint.resume_from.empty();
    if (checkpoints_.empty() && error && is_given) throw *error;
    if (checkpoints_.empty() && !is_given) fail_without_good_checkpoint();
    require(open_next_checkpoint(), ErrorCode::checkpoint_damaged, "another rank could not read {}", bad);
    check_stamp(reader_->state(), config, reader_->path());
    require(reader_->state().at("global_batch") == config.train.global_batch, ErrorCode::checkpoint_damaged,
            "{} is damaged, and {}, the one before, is of a run with another global batch: move one of them away", bad,
            reader_->path());
  }
  const checkpoint::StateJson& state = reader_->state();
  progress.step = state.at("step").get<std::int64_t>();
  if (const auto sums = state.value("epoch_sums", std::vector<double>()); sums.size() == 3)
    progress.epoch_sums = {.loss = sums[0], .correct = sums[1], .samples = sums[2]};
  progress.is_measured = state.value("quality", nlohmann::json()).is_number();
  if (!weights_only) restore_loss_scale(state);
  if (!weights_only) find_best();
  resumed_from = reader_->path();
  reader_.reset();
  checkpoints_.clear();
}

/// A checkpoint of a run without it leaves it as it begins.
void Session::restore_loss_scale(const checkpoint::StateJson& state) {
  if (!state.contains("loss_scale")) return;
  const nlohmann::json& stored = state.at("loss_scale");
  const LossScale loss_scale{.scale = stored.at("scale").get<float>(),
                             .good_steps = stored.at("good_steps").get<std::uint32_t>()};
  require(std::isfinite(loss_scale.scale) && loss_scale.scale > 0, ErrorCode::checkpoint_damaged,
          "{} has a loss scale of {}, which is not possible", reader_->path(), loss_scale.scale);
  replica->set_loss_scale(loss_scale);
}

/// A checkpoint tells its own quality, not the best so far: that would depend on where a run was stopped.
void Session::find_best() {
  const std::string best = run.checkpoints() + "/best";
  std::string text;
  if (leader() && std::filesystem::exists(best)) {
    try {
      text = checkpoint::Reader(best).state().value("quality", nlohmann::json()).dump();
    } catch (const Error& error) {
      log::warning("the best checkpoint so far is not known: {}", error.what());
    }
  }
  broadcast_text(world, text);
  const nlohmann::json quality = text.empty() ? nlohmann::json() : nlohmann::json::parse(text);
  progress.has_best = quality.is_number();
  if (progress.has_best) progress.best = quality.get<double>();
}

void Session::initialize_weights() {
  replica->initialize(config.run.seed);
  const std::string& source = config.model.initialize_from;
  if (source.empty()) return;
  std::vector<checkpoint::NamedTensor> tensors;
  if (source.ends_with(".safetensors")) {
    tensors = checkpoint::read_safetensors(source);
  } else {
    for (checkpoint::LoadedTensor& t : checkpoint::load_all(source).tensors) {
      const std::size_t name = t.path.find('/', 1) + 1;
      if (!t.path.starts_with("/optimizer/"))
        tensors.push_back({.name = t.path.substr(name), .shape = t.shape, .values = std::move(t.values)});
    }
  }
  const std::vector<std::string> kept = replica->load_named(tensors);
  notes.push_back(fmt::format("weights from {}", source));
  for (const std::string& line : kept) notes.push_back(fmt::format("the head starts from new values: {}", line));
}

std::int64_t Session::global_batch_of(std::int64_t step) const {
  const std::int64_t begin = step % steps_per_epoch * config.train.global_batch;
  return std::min(config.train.global_batch, train_set->info().n_samples - begin);
}

BatchShape Session::shape_of(std::int64_t step) const {
  BatchShape shape = plan->batch();
  shape.global_batch = global_batch_of(step);
  return shape;
}

bool is_multiple(std::int64_t count, std::int64_t every) { return every > 0 && count % every == 0; }

bool Session::is_due(std::int64_t steps_done, std::int64_t every_steps, std::int64_t every_epochs) const {
  return steps_done == last_step || is_multiple(steps_done, every_steps) ||
         is_multiple(steps_done, every_epochs * steps_per_epoch);
}

std::int64_t Session::samples_after(std::int64_t steps) const {
  if (config.data.drop_last) return steps * config.train.global_batch;
  return steps / steps_per_epoch * train_set->info().n_samples + steps % steps_per_epoch * config.train.global_batch;
}

std::optional<LossSums> evaluate(Session& session, const data::ImageSet& set, const std::string& title,
                                 const std::function<bool()>& stops) {
  const Config& config = session.config;
  const std::int64_t n = config.evaluation.max_samples > 0
                             ? std::min(config.evaluation.max_samples, set.info().n_samples)
                             : set.info().n_samples;
  const std::int64_t batch = session.plan->evaluation_batch() * session.world.size();
  const std::int64_t steps = (n + batch - 1) / batch;
  // The set outlives the loader; ownership stays with the session.
  data::Loader loader(std::shared_ptr<const data::ImageSet>(std::shared_ptr<void>(), &set),
                      {.global_batch = batch,
                       .capacity = session.plan->evaluation_batch(),
                       .rank = session.world.rank(),
                       .size = session.world.size(),
                       .seed = config.run.seed,
                       .shuffle = false,
                       .drop_last = false,
                       .readers = config.data.readers,
                       .prefetch = 2,
                       .last_step = steps,
                       .max_samples = n,
                       .backend = session.backend.get()});
  ProgressBar bar(title, steps, session.leader() && config.log.progress);
  LossSums all;
  for (std::int64_t step = 0; step < steps; ++step) {
    const LossSums mine = session.replica->evaluate(loader.next());
    const StepSums sums =
        session.replica->sum_over_ranks({.loss = mine, .flags = {.stop_requests = stops() ? 1.0 : 0.0}});
    if (sums.flags.stop_requests > 0) return std::nullopt;
    all.loss += sums.loss.loss;
    all.correct += sums.loss.correct;
    all.samples += sums.loss.samples;
    bar.update(step + 1, "");
  }
  return all;
}

}  // namespace lockstep::train

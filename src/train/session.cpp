#include "train/session.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "comm/world.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "train/metrics.h"

namespace lockstep::train {

namespace {

std::shared_ptr<const data::ImageSet> open_set(const Config& config, const std::string& path, const char* split) {
  if (path != "synthetic")
    return data::open_image_set(path, split == std::string("train") ? config.data.start : 0,
                                split == std::string("train") ? config.data.end : 0);
  const std::int64_t n = split == std::string("train") ? config.data.synthetic_samples
                                                       : std::max<std::int64_t>(1, config.data.synthetic_samples / 10);
  return data::make_synthetic_set(config.run.seed, n, config.data.image_size, config.data.image_size, 3,
                                  config.model.classes, split);
}

void check_fits(const data::ImageSetInfo& set, const Config& config) {
  require(set.classes <= config.model.classes, ErrorCode::model_mismatch,
          "{} has {} classes, the model {}: set model.classes={}", set.path, set.classes, config.model.classes,
          set.classes);
  require(set.channels == 3, ErrorCode::model_mismatch, "{} has images of {} channels; the models take 3", set.path,
          set.channels);
}

void broadcast_text(World& world, std::string& text) {
  std::uint64_t length = text.size();
  world.broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  text.resize(length);
  world.broadcast(std::as_writable_bytes(std::span(text)), 0);
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
  if (options.fresh && leader())
    if (const std::string aside = run.set_aside(); !aside.empty())
      notes.push_back(fmt::format("--fresh: the run that was in {} is now in {}", run.path(), aside));
  const std::string checkpoint = find_checkpoint(options);
  if (!checkpoint.empty() && options.checkpoint.empty()) {
    const checkpoint::StateJson state = checkpoint::load_state(checkpoint);
    config.train.global_batch = state.at("global_batch").get<std::int64_t>();  // that of step 0 holds
    check_unchanged(options);
  }
  open_data();
  const BatchShape batch = batch_shape(config, world.rank(), world.size());
  config.train.global_batch = batch.global_batch;
  const std::int64_t n = train_set->info().n_samples;
  require(batch.global_batch <= n, ErrorCode::data_range,
          "a global batch of {} samples is more than the {} of {}: lower train.global_batch", batch.global_batch, n,
          train_set->info().path);
  steps_per_epoch = data::Loader::steps_per_epoch(n, batch.global_batch, config.data.drop_last);
  last_step = steps_per_epoch * config.train.epochs;
  if (config.train.max_steps > 0) last_step = std::min(last_step, config.train.max_steps);

  backend = make_backend({.device = config.device,
                          .threads = config.cpu.threads,
                          .local_rank = world.local_rank(),
                          .local_size = world.local_size()});
  communicator = comm::make_communicator(config.comm, world);
  plan = std::make_unique<StepPlan>(config, train_set->info(), batch, *backend, world.local_size());
  check_ranks_agree();
  replica = std::make_unique<Replica>(*plan, *backend, *communicator);
  if (checkpoint.empty())
    initialize_weights();
  else
    restore(checkpoint, !options.checkpoint.empty());
}

void Session::open_data() {
  train_set = open_train_set(config);
  validation_set = open_validation_set(config);
  if (!validation_set) return;
  const data::ImageSetInfo &t = train_set->info(), &v = validation_set->info();
  require(t.height == v.height && t.width == v.width, ErrorCode::model_mismatch,
          "{} has images of {}x{} pixels, {} of {}x{}", t.path, t.width, t.height, v.path, v.width, v.height);
}

std::string Session::find_checkpoint(const SessionOptions& options) {
  if (!options.checkpoint.empty()) return options.checkpoint;
  if (!config.checkpoint.resume_from.empty()) return config.checkpoint.resume_from;
  std::string found;
  if (leader()) found = checkpoint::newest_good(run.checkpoints());
  broadcast_text(world, found);
  return found;
}

void Session::check_unchanged(const SessionOptions& options) {
  const std::string before = run.read_file("config.yaml");
  if (before.empty()) return;  // a checkpoint from elsewhere: its state was checked
  std::string text;
  for (const config::Difference& d : config::learning_differences(before, config)) {
    const auto& allowed = options.allow_change;
    const bool is_allowed =
        d.key == "train.epochs" || std::find(allowed.begin(), allowed.end(), d.key) != allowed.end();
    if (is_allowed)
      notes.push_back(fmt::format("{} changes from {} to {}, and the schedule with it", d.key, d.before, d.now));
    if (!is_allowed) text += fmt::format("\n  {}: {} before, {} now", d.key, d.before, d.now);
  }
  require(text.empty(), ErrorCode::resume_changed, "{} cannot be continued with other settings of what is learned:{}",
          run.path(), text);
}

void Session::check_ranks_agree() const {
  const std::vector<std::string> all = world.all_gather(plan->parameters().description());
  for (std::size_t r = 1; r < all.size(); ++r)
    require(all[r] == all[0], ErrorCode::internal,
            "rank {} lays out its weights otherwise than rank 0: the nodes' processors or libraries differ", r);
}

void Session::restore(const std::string& checkpoint, bool weights_only) {
  std::vector<checkpoint::TensorTarget> targets = replica->targets();
  if (weights_only) std::erase_if(targets, [](const auto& t) { return t.path.starts_with("/optimizer/"); });
  const checkpoint::StateJson state = checkpoint::load(checkpoint, targets);
  progress.step = state.at("step").get<std::int64_t>();
  if (state.contains("best") && state.at("best").is_number()) {
    progress.best = state.at("best").get<double>();
    progress.has_best = true;
  }
  resumed_from = checkpoint;
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

std::int64_t Session::samples_after(std::int64_t steps) const {
  if (config.data.drop_last) return steps * config.train.global_batch;
  return steps / steps_per_epoch * train_set->info().n_samples + steps % steps_per_epoch * config.train.global_batch;
}

LossSums evaluate(Session& session, const data::ImageSet& set, const std::string& title) {
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
                       .max_samples = n});
  ProgressBar bar(title, steps, session.leader() && config.log.progress);
  LossSums mine;
  for (std::int64_t step = 0; step < steps; ++step) {
    const LossSums sums = session.replica->evaluate(loader.next());
    mine.loss += sums.loss;
    mine.correct += sums.correct;
    mine.samples += sums.samples;
    bar.update(step + 1, "");
  }
  return session.replica->sum_over_ranks({.loss = mine, .flags = {}}).loss;
}

}  // namespace lockstep::train

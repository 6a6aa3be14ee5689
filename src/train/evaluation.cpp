#include "train/evaluation.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "base/progress_bar.h"
#include "base/rank_work.h"
#include "base/signals.h"
#include "inference/adapters.h"
#include "inference/inference.h"
#include "lockstep/log.h"
#include "lockstep/trace.h"
#include "tasks/language_modelling/text_sampler.h"

namespace lockstep::train {
namespace {

/// Loss sums over the first evaluation.max_samples (0: all) samples of the validation set, over all ranks. Each sample
/// is counted once. No value if a signal asks any rank to stop. Collective.
std::optional<LossSums> evaluate(Session& session) {
  const Config& config = session.config;
  const std::shared_ptr<const data::Dataset> set = session.task->validation_set();
  const data::LoaderOptions options =
      inference::evaluation_loader(config, *set, session.plan->evaluation_batch(), session.world, *session.backend);
  const std::int64_t steps = options.last_step;
  data::Loader loader(set, options);
  ProgressBar bar("evaluation", steps, session.leader() && config.log.progress);
  World& world = session.world;
  bool is_stopped = false;
  session.replica->begin_evaluation();
  for (std::int64_t step = 0; step < steps && !is_stopped; ++step) {
    session.replica->evaluate(loader.next());
    // The ranks agree on the host, so that no device is idle meanwhile.
    is_stopped = inference::is_meeting(step, world) && world.any(stop_requested());
    bar.update(step + 1, "");
  }
  const LossSums sums = session.replica->end_evaluation();  // also ends the reading of the loader's memory
  if (is_stopped) return std::nullopt;
  return sums;
}

/// The evaluation counts even if its answers cannot be written.
void write_answers(const std::string& path, const std::string& lines) {
  try {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    replace_file(path, lines);
  } catch (const std::exception& error) {
    log::warning("the answers were not written: {}", error.what());
  }
}

}  // namespace

std::optional<EvaluationResult> Validation::measure(std::int64_t steps_done, checkpoint::WeightsOf weights) {
  const Clock::time_point begin = Clock::now();
  const std::optional<LossSums> sums = evaluate(session_);
  if (!sums) return std::nullopt;
  const double seconds = seconds_since(begin);
  EvaluationResult out{
      .sums = *sums, .measures = recorder_.measures_of(*sums), .loss_seconds = seconds, .seconds = seconds};
  try {
    if (add_answers(steps_done, weights, out.measures)) out.seconds = seconds_since(begin);
  } catch (const StoppedBySignal&) {
    return std::nullopt;
  }
  return out;
}

bool Validation::add_answers(std::int64_t steps_done, checkpoint::WeightsOf weights, std::vector<double>& measures) {
  tasks::TextSampler* const sampler = session_.plan->sampler();
  if (sampler == nullptr || sampler->questions() == nullptr) return false;
  const trace::Span span(trace::Kind::evaluation, "answers after step", steps_done);
  const tasks::Questions& questions = *sampler->questions();
  World& world = session_.world;
  std::vector<checkpoint::NamedTensor> tensors = session_.replica->named_tensors(steps_done);
  std::string key;
  if (session_.leader())
    key = questions.key(inference::hash_of_base(std::move(tensors)), session_.base_hash,
                        session_.task->model_stamp().dump(), inference_precision(session_.config.precision));
  world.broadcast_text(key);
  const std::string path =
      run::answers_path(session_.run.path(), steps_done, weights == checkpoint::WeightsOf::averages);
  std::optional<tasks::Answers> answers = questions.read(path, key, text::Stemming::none, world);
  if (!answers) {
    session_.replica->prepare_samples();
    answers = questions.generate(sampler->answering_decoder(), key, text::Stemming::none,
                                 session_.leader() && session_.config.log.progress, world);
    if (session_.leader()) write_answers(path, answers->lines);
  }
  for (const tasks::AnswerMeasure& measure : {tasks::kRougeL, tasks::kExactMatch})
    measures.push_back(answers->mean(measure.of));
  return true;
}

/// Rank r replies to prompts r, r + ranks and so on. Rank 0 writes the samples.
void Validation::write_samples(std::int64_t steps_done) {
  tasks::TextSampler* const sampler = session_.plan->sampler();
  if (sampler == nullptr || sampler->prompts().empty()) return;
  const trace::Span span(trace::Kind::evaluation, "samples after step", steps_done);
  World& world = session_.world;
  const auto rank = static_cast<std::size_t>(world.rank()), n_ranks = static_cast<std::size_t>(world.size());
  std::vector<std::size_t> numbers;
  for (std::size_t i = rank; i < sampler->prompts().size(); i += n_ranks) numbers.push_back(i);
  session_.replica->prepare_samples();
  nlohmann::json replies;
  try {
    Meetings meetings(world);
    replies = sampler->generate(numbers, [&] {
      meetings.after_step();
      return true;
    });
    meetings.end();
    stop_if_requested(world);
  } catch (const StoppedBySignal&) {
    return;
  }
  std::vector<run::TextSample> samples;
  for (const std::string& prompt : sampler->prompts()) samples.push_back({.prompt = prompt, .text = ""});
  const std::vector<std::string> all =
      world.all_gather(replies.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::size_t i = r;
    for (const nlohmann::json& text : nlohmann::json::parse(all[r])) {
      samples[i].text = text.get<std::string>();
      i += n_ranks;
    }
  }
  recorder_.samples(steps_done, samples);
}

bool Validation::is_due_after(std::int64_t step) const {
  const Config::Evaluation& e = session_.config.evaluation;
  return session_.task->validation_set() && session_.is_due(step + 1, e.every_steps, e.every_epochs);
}

bool Validation::was_interrupted() const {
  const std::int64_t done = session_.progress.step;
  return done > 0 && done <= session_.last_step && is_due_after(done - 1) && !session_.progress.is_measured;
}

bool Validation::run(std::int64_t steps_done) {
  const trace::Span span(trace::Kind::evaluation, "evaluation after step", steps_done);
  const bool has_averages = session_.plan->averages() == Averages::kept;
  const std::optional<EvaluationResult> result = measure(steps_done, checkpoint::WeightsOf::model);
  std::optional<EvaluationResult> of_averages;
  if (result && has_averages) {
    session_.replica->swap_averages();
    of_averages = measure(steps_done, checkpoint::WeightsOf::averages);
    session_.replica->swap_averages();
  }
  if (!result || (has_averages && !of_averages)) {
    if (session_.leader())
      log::warning("a signal asked the run to stop: the evaluation after step {} was interrupted", steps_done);
    return false;
  }
  result_ = *result;
  if (of_averages) average_result_ = *of_averages;
  recorder_.evaluation(steps_done, result_, of_averages ? &average_result_ : nullptr);
  write_samples(steps_done);
  // Does not include the evaluation after the last step of a start that train.max_steps ended: otherwise the count
  // would depend on where a run was interrupted.
  const Config::Evaluation& e = session_.config.evaluation;
  if (is_multiple(steps_done, e.every_steps) || is_multiple(steps_done, e.every_epochs * session_.steps_per_epoch))
    session_.progress.patience.add(steps_done, last_quality());
  return true;
}

std::optional<double> Validation::quality(bool evaluated) const {
  const bool has_set = session_.task->validation_set() != nullptr;
  if (has_set && !evaluated) return std::nullopt;
  if ((has_set ? sums() : recorder_.epoch_sums()).count <= 0) return std::nullopt;
  return last_quality();
}

double Validation::last_quality() const {
  const BestFigure best = figure_of_best(session_.config.checkpoint.best, *session_.task);
  const std::span<const tasks::Measure> all = session_.task->evaluation_measures();
  const auto i = static_cast<std::size_t>(std::ranges::find(all, best.measure.key, &tasks::Measure::key) - all.begin());
  const double value = session_.task->validation_set()
                           ? (best.is_of_averages ? average_result_ : result_).measures.at(i)
                           : best.measure.of(recorder_.epoch_sums());
  return best.measure.greater_is_better ? value : -value;
}

BestFigure figure_of_best(const std::string& best, const tasks::Task& task) {
  if (const tasks::Measure* named = task.find_measure(best)) return {*named};
  const tasks::Measure* of_averages =
      best.starts_with(tasks::kAverageKey) ? task.find_measure(best.substr(tasks::kAverageKey.size())) : nullptr;
  if (of_averages != nullptr) return {*of_averages, true};
  return {task.validation_set() ? task.quality_measure() : tasks::loss_measure()};
}

}  // namespace lockstep::train

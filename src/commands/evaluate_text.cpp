#include "commands/evaluate_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/progress_bar.h"
#include "base/rank_work.h"
#include "base/utf8.h"
#include "commands/job.h"
#include "commands/report.h"
#include "inference/text_model.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics.h"
#include "tasks/language_modelling/answers.h"
#include "tasks/language_modelling/model_source.h"
#include "text/answer_match.h"
#include "text/multiple_choice.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;
using text::ChoiceQuestion;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

std::string line_of(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

// --------------------------------------------------------------------------------------- answers to conversations

AnswersOutcome outcome_of(const tasks::Answers& all, std::int64_t n_left_out, const AnswersArguments& a,
                          const tasks::AnswerOptions& options, double seconds) {
  using Scores = tasks::AnswerScores;
  const auto n = static_cast<double>(all.scores.size());
  const double rouge1 = all.mean([](const Scores& s) { return s.rouge.rouge1.f_measure; });
  const double rouge2 = all.mean([](const Scores& s) { return s.rouge.rouge2.f_measure; });
  const double rouge_l = all.mean(tasks::kRougeL.of), exact = all.mean(tasks::kExactMatch.of);
  double n_numbers = 0, strict = 0, flexible = 0;
  for (const auto& [rouge, match] : all.scores) {
    n_numbers += match.has_final_number ? 1 : 0;
    strict += match.has_final_number && match.is_exact ? 1 : 0;
    flexible += match.is_flexible ? 1 : 0;
  }
  const double rate = seconds > 0 ? static_cast<double>(all.n_tokens) / seconds : 0;
  const bool is_stemmed = a.stemming == text::Stemming::porter;
  Json object{{"conversations", all.scores.size()},
              {"left_out", n_left_out},
              {"rouge1", rouge1},
              {"rouge2", rouge2},
              {"rougeL", rouge_l},
              {"stemmed", is_stemmed},
              {"exact_match", exact}};
  if (n_numbers > 0)
    object.update({{"final_numbers", static_cast<std::int64_t>(n_numbers)},
                   {"final_number_match", strict / n_numbers},
                   {"final_number_match_flexible", flexible / n_numbers}});
  object.update({{"beams", options.beams},
                 {"max_new_tokens", options.max_new_tokens},
                 {"new_tokens", all.n_tokens},
                 {"seconds", seconds},
                 {"tokens_per_second", rate}});
  const std::string numbers =
      n_numbers > 0 ? fmt::format("; of {} final numbers, {} correct after \"####\", {} as the last number", n_numbers,
                                  strict, flexible)
                    : "";
  return {.object = std::move(object),
          .text = fmt::format(
              "  answers to {} conversations: rouge1 {:.4f}, rouge2 {:.4f}, rougeL {:.4f}{}, exact match {:.4f}{}", n,
              rouge1, rouge2, rouge_l, is_stemmed ? " (of stems)" : "", exact, numbers),
          .lines = all.lines};
}

}  // namespace

AnswersOutcome evaluate_answers(const AnswersArguments& a, const Config& config, const EvaluatedModel& evaluated,
                                Backend& backend, World& world) {
  const models::LlamaConfig model = tasks::model_source(config.model);
  tasks::AnswerOptions options = tasks::answer_options(config.evaluation);
  options.batch = a.batch;
  if (a.beams > 0) options.beams = a.beams;
  if (a.max_new_tokens > 0) options.max_new_tokens = a.max_new_tokens;
  const tasks::Questions questions(config.data.validation, model, options);
  const std::string key = questions.key(evaluated.weights_hash, evaluated.base_hash, evaluated.stamp, config.precision);
  for (const std::string& known : {a.file, evaluated.known_answers})
    if (const auto answers = questions.read(known, key, a.stemming, world)) {
      AnswersOutcome out = outcome_of(*answers, questions.n_left_out(), a, options, 0);
      out.object["read_from"] = known;
      out.text += fmt::format("; the answers are those in {}\n", known);
      return out;
    }
  inference::TextModel text_model(model, questions.decoder_sizes(), config.precision, evaluated.file, backend, world,
                                  tasks::model_options(config.model));
  const Clock::time_point start = Clock::now();
  const tasks::Answers answers =
      questions.generate(text_model.decoder(), key, a.stemming, world.rank() == 0 && config.log.progress, world);
  AnswersOutcome out = outcome_of(answers, questions.n_left_out(), a, options, seconds_since(start));
  out.text += fmt::format("; {:.1f} new tokens/s\n", out.object["tokens_per_second"].get<double>());
  return out;
}

// ------------------------------------------------------------------------------------- questions of multiple choice

namespace {

struct ChoiceQuestions {
  std::vector<ChoiceQuestion> list;
  std::vector<std::size_t> lines;  // the line number of each question, from 1
};

/// Reads the first `most` questions (0: all).
ChoiceQuestions read_choice_questions(const std::string& path, std::int64_t most) {
  std::istringstream content(read_file(path, kMaxFileBytes, ErrorCode::cannot_open));
  ChoiceQuestions out;
  std::size_t number = 1;
  for (std::string line; (most == 0 || std::ssize(out.list) < most) && std::getline(content, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    out.list.push_back(text::parse_choice_question(line, fmt::format("line {} of {}", number, path)));
    out.lines.push_back(number);
  }
  require(!out.list.empty(), ErrorCode::data_source, "--choices: {} has no questions: write one JSON object per line",
          path);
  return out;
}

/// Returns a text for each choice of each question. If a text is too long for the model, the beginning of its context
/// is cut off.
std::vector<inference::ScoredText> encode(const ChoiceQuestions& questions, const std::string& path,
                                          const TextModelSource& source) {
  const auto most = static_cast<std::size_t>(source.model.positions) + 1;
  std::vector<inference::ScoredText> out;
  for (std::size_t q = 0; q < questions.list.size(); ++q) {
    const ChoiceQuestion& question = questions.list[q];
    for (std::size_t c = 0; c < question.choices.size(); ++c) {
      text::ChoiceTokens tokens = text::encode_choice(*source.tokenizer, question.context, question.choices[c]);
      const auto place = [&] { return fmt::format("line {} of {}, choice {}", questions.lines[q], path, c); };
      require(tokens.first >= 1, ErrorCode::data_source,
              "{}: there is no context, and the tokenizer has no token that begins a text: write a context", place());
      require(tokens.first < tokens.ids.size(), ErrorCode::data_source,
              "{}: the choice adds no token to its context: write a text there", place());
      require(tokens.ids.size() - tokens.first < most, ErrorCode::data_source,
              "{}: the choice has {} tokens, but the context of the model has {}: shorten it", place(),
              tokens.ids.size() - tokens.first, source.model.positions);
      const std::size_t cut = tokens.ids.size() > most ? tokens.ids.size() - most : 0;
      tokens.ids.erase(tokens.ids.begin(), tokens.ids.begin() + static_cast<std::ptrdiff_t>(cut));
      out.push_back({.tokens = std::move(tokens.ids), .first = static_cast<std::int64_t>(tokens.first - cut)});
    }
  }
  return out;
}

/// The index of the greatest value after division by its length. If several are equal, the first one wins.
std::size_t best_of(std::span<const double> values, const std::vector<std::size_t>& lengths) {
  std::size_t best = 0;
  const auto value = [&](std::size_t i) {
    return values[i] / static_cast<double>(std::max<std::size_t>(1, lengths[i]));
  };
  for (std::size_t i = 1; i < values.size(); ++i)
    if (value(i) > value(best)) best = i;
  return best;
}

struct Accuracy {
  std::int64_t n = 0, n_right = 0;
  void add(bool is_right) {
    ++n;
    n_right += is_right ? 1 : 0;
  }
  double value() const { return static_cast<double>(n_right) / static_cast<double>(n); }
  /// The standard error of the mean of n answers; NaN for one question.
  double standard_error() const { return std::sqrt(value() * (1 - value()) / static_cast<double>(n - 1)); }
  std::string text() const {
    return n > 1 ? fmt::format("{:.4f} ± {:.4f}", value(), standard_error()) : fmt::format("{:.4f}", value());
  }
};

struct Results {
  Accuracy acc, acc_norm, acc_norm_characters;
  std::string lines;  // for the file of --answers
};

Results judge(const ChoiceQuestions& questions, std::span<const double> log_likelihoods) {
  Results out;
  for (const ChoiceQuestion& question : questions.list) {
    const std::span<const double> values = log_likelihoods.first(question.choices.size());
    log_likelihoods = log_likelihoods.subspan(values.size());
    std::vector<std::size_t> bytes, characters;
    for (const std::string& choice : question.choices) {
      bytes.push_back(choice.size());
      characters.push_back(n_characters(choice));
    }
    const bool is_right = best_of(values, std::vector<std::size_t>(values.size(), 1)) == question.answer;
    const bool is_right_by_bytes = best_of(values, bytes) == question.answer;
    out.acc.add(is_right);
    out.acc_norm.add(is_right_by_bytes);
    out.acc_norm_characters.add(best_of(values, characters) == question.answer);
    const Json line{
        {"context", question.context}, {"choices", question.choices},
        {"answer", question.answer},   {"log_likelihoods", std::vector<double>(values.begin(), values.end())},
        {"acc", is_right ? 1 : 0},     {"acc_norm", is_right_by_bytes ? 1 : 0}};
    out.lines += line_of(line);
  }
  return out;
}

/// Each rank computes its part of the texts. All ranks return the results for all texts.
std::vector<double> score_part(std::span<const inference::ScoredText> texts, const TextModelSource& source,
                               Backend& backend, World& world) {
  const Part part = part_of(world, texts.size());
  inference::TextScorer scorer(source.model, texts, source.config.precision, source.file, backend, world);
  ProgressBar bar("choices", static_cast<std::int64_t>(part.size()), world.rank() == 0 && source.config.log.progress,
                  WithoutTerminal::lines);
  Meetings meetings(world);
  const std::vector<double> mine = scorer.score(texts.subspan(part.begin, part.size()), [&](std::int64_t n_done) {
    bar.update(n_done, "");
    meetings.after_step();
  });
  meetings.end();
  return gathered(mine, world);
}

}  // namespace

int evaluate_choices(const EvaluateArguments& a, const Arguments& program) {
  check_outputs({a.json, a.answers.file}, inputs_of(a.model, a.choices));
  check_writable({a.json, a.answers.file});
  World& world = start_ranks(program);
  TextModelSource source = open_text_model(a.model);
  check_outputs({a.json, a.answers.file}, {source.base});
  const ChoiceQuestions questions = read_choice_questions(a.choices, source.config.evaluation.max_samples);
  const std::vector<inference::ScoredText> texts = encode(questions, a.choices, source);
  const auto backend = open_model_backend(source.config, source.file);
  const Clock::time_point begin = Clock::now();
  const std::vector<double> log_likelihoods = score_part(texts, source, *backend, world);
  const double seconds = seconds_since(begin);
  if (world.rank() != 0) return kExitDone;
  const Results results = judge(questions, log_likelihoods);
  const auto n = static_cast<std::int64_t>(questions.list.size());
  const Json object{{"event", "choices"},
                    {"checkpoint", source.file.path},
                    {"choices", a.choices},
                    {"questions", n},
                    {"acc", results.acc.value()},
                    {"acc_stderr", results.acc.standard_error()},
                    {"acc_norm", results.acc_norm.value()},
                    {"acc_norm_stderr", results.acc_norm.standard_error()},
                    {"acc_norm_characters", results.acc_norm_characters.value()},
                    {"seconds", seconds},
                    {"ranks", world.size()}};
  if (!a.answers.file.empty()) write_result(a.answers.file, results.lines);
  report(a.json, object,
         fmt::format("{} on {}: acc {}, acc_norm {} (by the length in bytes) of {} questions, {:.1f} questions/s\n",
                     source.file.path, a.choices, results.acc.text(), results.acc_norm.text(), n,
                     seconds > 0 ? static_cast<double>(n) / seconds : 0.0));
  return kExitDone;
}

}  // namespace lockstep::commands

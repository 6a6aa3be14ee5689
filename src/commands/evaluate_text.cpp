#include "commands/evaluate_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/progress_bar.h"
#include "base/utf8.h"
#include "commands/job.h"
#include "commands/report.h"
#include "data/text_file.h"
#include "data/text_range.h"
#include "generate/generator.h"
#include "inference/text_model.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics.h"
#include "tasks/language_modelling/model_source.h"
#include "text/answer_match.h"
#include "text/multiple_choice.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;
using text::ChoiceQuestion;

constexpr std::int64_t kChunk = 256;           // tokens per prefill step
constexpr std::int64_t kMostSequences = 1024;  // generated at the same time
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

std::string line_of(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

// --------------------------------------------------------------------------------------- answers to conversations

/// The last answer of each conversation, and everything before it as the prompt.
struct Questions {
  std::vector<generate::Prompt> prompts;
  std::vector<std::vector<std::int32_t>> references;  // without the token that ends them
  std::vector<std::int32_t> end_tokens;
  std::int64_t n_left_out = 0;  // prompts that fill the context of the model
  std::int64_t longest = 0;     // tokens of a prompt
};

Questions read_questions(const data::TextRange& set, const text::Tokenizer& tokenizer, std::int64_t most,
                         const models::LlamaConfig& model) {
  Questions out;
  const std::int64_t n = most > 0 ? std::min(most, set.n_documents()) : set.n_documents();
  const auto add_end = [&](std::int64_t id) {
    const auto token = static_cast<std::int32_t>(id);
    if (id >= 0 && id < model.vocabulary && std::ranges::find(out.end_tokens, token) == out.end_tokens.end())
      out.end_tokens.push_back(token);
  };
  for (const std::int64_t id : model.end_tokens) add_end(id);
  if (const auto end = set.answer_end(tokenizer)) add_end(*end);
  for (std::int64_t i = 0; i < n; ++i) {
    const data::Conversation conversation = set.conversation(i);
    if (conversation.answers.empty()) continue;
    const auto [begin, end] = conversation.answers.back();
    const auto at = [&](std::int64_t place) { return conversation.tokens.begin() + place; };
    if (begin < 1 || begin >= model.positions) {
      ++out.n_left_out;
      continue;
    }
    out.prompts.push_back({.number = static_cast<std::uint32_t>(i), .ids = {at(0), at(begin)}});
    const bool has_end = std::ranges::find(out.end_tokens, *at(end - 1)) != out.end_tokens.end();
    out.references.emplace_back(at(begin), at(has_end ? end - 1 : end));
    out.longest = std::max(out.longest, begin);
  }
  require(!out.prompts.empty(), ErrorCode::data_range,
          "none of {} conversations of {} leaves room for an answer in the {} tokens of the model's context: give "
          "--loss-only",
          n, set.file().path(), model.positions);
  return out;
}

/// The scores of one answer.
struct Scores {
  text::RougeScores rouge;
  text::AnswerMatch match;
};

struct Answers {
  std::vector<Scores> scores;
  std::string lines;
  std::int64_t n_tokens = 0;
};

/// Generates this rank's answers.
Answers answer_part(generate::Generator& generator, const Questions& questions, Part part,
                    const text::Tokenizer& tokenizer, text::Stemming stemming, bool shows_progress, World& world) {
  ProgressBar bar("answers", static_cast<std::int64_t>(part.size()), shows_progress, WithoutTerminal::lines);
  Meetings meetings(world);
  std::int64_t n_done = 0;
  generate::GeneratorEvents events;
  events.done = [&](std::size_t, const std::vector<generate::Reply>&) { bar.update(++n_done, ""); };
  events.goes_on = [&] {
    meetings.after_step();
    return true;
  };
  const auto replies = generator.generate(std::span(questions.prompts).subspan(part.begin, part.size()), events);
  meetings.end();
  Answers out;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const std::size_t question = part.begin + i;
    const std::string reference =
        text::decode_known(tokenizer, questions.references[question], text::SpecialTokens::skip);
    const generate::Reply& reply = replies[i].front();
    out.scores.push_back({text::rouge(reference, reply.text, stemming), text::match_answer(reference, reply.text)});
    const auto& [rouge, match] = out.scores.back();
    out.n_tokens += std::ssize(reply.tokens);
    Json line{{"prompt", text::decode_known(tokenizer, questions.prompts[question].ids)},
              {"answer", reply.text},
              {"reference", reference},
              {"rouge1", rouge.rouge1.f_measure},
              {"rouge2", rouge.rouge2.f_measure},
              {"rougeL", rouge.rouge_l.f_measure},
              {"exact_match", match.is_exact ? 1.0 : 0.0}};
    if (match.has_final_number) line["final_number_flexible"] = match.is_flexible ? 1.0 : 0.0;
    out.lines += line_of(line);
  }
  return out;
}

/// Combines the answers of all ranks, in the order of the conversations.
Answers all_of(const Answers& mine, World& world) {
  Answers all{.scores = gathered(mine.scores, world), .lines = {}};
  for (const std::string& lines : world.all_gather(mine.lines)) all.lines += lines;
  for (const std::int64_t n : gathered(std::vector{mine.n_tokens}, world)) all.n_tokens += n;
  return all;
}

AnswersOutcome outcome_of(const Answers& all, const Questions& questions, const AnswersArguments& a, double seconds) {
  const auto n = static_cast<double>(all.scores.size());
  double rouge1 = 0, rouge2 = 0, rouge_l = 0, exact = 0, n_numbers = 0, strict = 0, flexible = 0;
  for (const auto& [rouge, match] : all.scores) {
    rouge1 += rouge.rouge1.f_measure;
    rouge2 += rouge.rouge2.f_measure;
    rouge_l += rouge.rouge_l.f_measure;
    exact += match.is_exact ? 1 : 0;
    n_numbers += match.has_final_number ? 1 : 0;
    strict += match.has_final_number && match.is_exact ? 1 : 0;
    flexible += match.is_flexible ? 1 : 0;
  }
  for (double* mean : {&rouge1, &rouge2, &rouge_l, &exact}) *mean /= n;
  const double rate = seconds > 0 ? static_cast<double>(all.n_tokens) / seconds : 0;
  const bool is_stemmed = a.stemming == text::Stemming::porter;
  Json object{{"conversations", all.scores.size()},
              {"left_out", questions.n_left_out},
              {"rouge1", rouge1},
              {"rouge2", rouge2},
              {"rougeL", rouge_l},
              {"stemmed", is_stemmed},
              {"exact_match", exact}};
  if (n_numbers > 0)
    object.update({{"final_numbers", static_cast<std::int64_t>(n_numbers)},
                   {"final_number_match", strict / n_numbers},
                   {"final_number_match_flexible", flexible / n_numbers}});
  object.update({{"beams", a.beams},
                 {"max_new_tokens", a.max_new_tokens},
                 {"new_tokens", all.n_tokens},
                 {"seconds", seconds},
                 {"tokens_per_second", rate}});
  const std::string numbers =
      n_numbers > 0 ? fmt::format("; of {} final numbers, {} correct after \"####\", {} as the last number", n_numbers,
                                  strict, flexible)
                    : "";
  return {.object = std::move(object),
          .text = fmt::format(
              "  answers to {} conversations: rouge1 {:.4f}, rouge2 {:.4f}, rougeL {:.4f}{}, exact match {:.4f}{}; "
              "{:.1f} new tokens/s\n",
              n, rouge1, rouge2, rouge_l, is_stemmed ? " (of stems)" : "", exact, numbers, rate),
          .lines = all.lines};
}

}  // namespace

bool has_answers(const std::string& set) {
  std::error_code error;
  if (set.empty() || set == "synthetic" || !std::filesystem::is_regular_file(set, error)) return false;
  const data::InputFile file(set);
  return data::is_text_file(file) && data::open_text_file(file).has_answers();
}

AnswersOutcome evaluate_answers(const AnswersArguments& a, const Config& config, const checkpoint::ModelFile& file,
                                Backend& backend, World& world) {
  const models::LlamaConfig model = tasks::model_source(config.model);
  const data::TextRange set(config.data.validation);
  const auto tokenizer =
      std::make_shared<const text::Tokenizer>(text::Tokenizer::parse(config.data.validation, set.tokenizer()));
  const Questions questions = read_questions(set, *tokenizer, config.evaluation.max_samples, model);
  if (questions.n_left_out > 0 && world.rank() == 0)
    log::warning(
        "{} left out, without room for an answer in the {} tokens of the model's context",
        questions.n_left_out == 1 ? "1 conversation is" : fmt::format("{} conversations are", questions.n_left_out),
        model.positions);
  const std::int64_t slots = a.beams * std::min<std::int64_t>(a.batch, std::ssize(questions.prompts));
  require(slots <= kMostSequences, ErrorCode::usage,
          "--batch {} with {} beams makes {} sequences at the same time, expected at most {}: give --batch {}", a.batch,
          a.beams, slots, kMostSequences, std::max<std::int64_t>(1, kMostSequences / a.beams));
  inference::TextModel text_model(
      model,
      {.slots = slots, .capacity = std::min(model.positions, questions.longest + a.max_new_tokens), .chunk = kChunk},
      config.precision, file, backend, world);
  generate::Generator generator(text_model.decoder(), decode_with(tokenizer, text::SpecialTokens::skip),
                                {.beams = a.beams,
                                 .max_new_tokens = a.max_new_tokens,
                                 .end_tokens = questions.end_tokens,
                                 .continues_prompt = false});
  const Clock::time_point start = Clock::now();
  const Answers mine = answer_part(generator, questions, part_of(world, questions.prompts.size()), *tokenizer,
                                   a.stemming, world.rank() == 0 && config.log.progress, world);
  const Answers all = all_of(mine, world);
  return outcome_of(all, questions, a, seconds_since(start));
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

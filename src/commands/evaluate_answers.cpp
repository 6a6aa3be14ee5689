#include "commands/evaluate_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/progress_bar.h"
#include "commands/generate_model.h"
#include "commands/stoppable.h"
#include "data/text_file.h"
#include "data/text_range.h"
#include "generate/generator.h"
#include "inference/text_model.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics.h"
#include "tasks/language_modelling/model_source.h"
#include "text/answer_match.h"
#include "text/tokenizer.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kChunk = 256;               // tokens per prefill step
constexpr std::int64_t kMostSequences = 1024;      // generated at the same time
constexpr std::int64_t kStepsBetweenMeetings = 8;  // ranks that finish early wait for the others

// ------------------------------------------------------------------------------------------------- the questions

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

// --------------------------------------------------------------------------------------------------- the answers

/// The scores of one answer, or the sums over several answers.
struct Scores {
  double n = 0, rouge1 = 0, rouge2 = 0, rouge_l = 0, exact = 0;
  double n_numbers = 0, numbers_strict = 0, numbers_flexible = 0;  // of references with a final number

  void add(const Scores& o) {
    n += o.n;
    rouge1 += o.rouge1;
    rouge2 += o.rouge2;
    rouge_l += o.rouge_l;
    exact += o.exact;
    n_numbers += o.n_numbers;
    numbers_strict += o.numbers_strict;
    numbers_flexible += o.numbers_flexible;
  }
};

Scores score(const std::string& reference, const std::string& answer, text::Stemming stemming) {
  const text::RougeScores rouge = text::rouge(reference, answer, stemming);
  const text::AnswerMatch match = text::match_answer(reference, answer);
  const bool has_number = match.has_final_number;
  return {.n = 1,
          .rouge1 = rouge.rouge1.f_measure,
          .rouge2 = rouge.rouge2.f_measure,
          .rouge_l = rouge.rouge_l.f_measure,
          .exact = match.is_exact ? 1.0 : 0.0,
          .n_numbers = has_number ? 1.0 : 0.0,
          .numbers_strict = has_number && match.is_exact ? 1.0 : 0.0,
          .numbers_flexible = match.is_flexible ? 1.0 : 0.0};
}

std::string line_of(const std::string& prompt, const std::string& answer, const std::string& reference,
                    const Scores& scores) {
  Json line{{"prompt", prompt},           {"answer", answer},        {"reference", reference},
            {"rouge1", scores.rouge1},    {"rouge2", scores.rouge2}, {"rougeL", scores.rouge_l},
            {"exact_match", scores.exact}};
  if (scores.n_numbers > 0) line["final_number_flexible"] = scores.numbers_flexible;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

struct Part {
  std::vector<Scores> scores;
  std::string lines;
  std::int64_t n_tokens = 0;
};

/// Generates this rank's answers: `n` of them, from question `begin` on.
Part answer_part(generate::Generator& generator, const Questions& questions, std::size_t begin, std::size_t n,
                 const text::Tokenizer& tokenizer, text::Stemming stemming, bool shows_progress, World& world) {
  Part part;
  ProgressBar bar("answers", static_cast<std::int64_t>(n), shows_progress, WithoutTerminal::lines);
  std::int64_t n_steps = 0, n_done = 0;
  generate::GeneratorEvents events;
  events.done = [&](std::size_t, const std::vector<generate::Reply>&) { bar.update(++n_done, ""); };
  events.goes_on = [&] {
    if (world.size() == 1 || ++n_steps % kStepsBetweenMeetings == 0) any_unless_stopped(world, true);
    return true;
  };
  const auto replies = generator.generate(std::span(questions.prompts).subspan(begin, n), events);
  while (world.size() > 1 && any_unless_stopped(world, false)) {
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::string reference =
        text::decode_known(tokenizer, questions.references[begin + i], text::SpecialTokens::skip);
    const generate::Reply& reply = replies[i].front();
    part.scores.push_back(score(reference, reply.text, stemming));
    part.n_tokens += std::ssize(reply.tokens);
    part.lines += line_of(text::decode_known(tokenizer, questions.prompts[begin + i].ids), reply.text, reference,
                          part.scores.back());
  }
  return part;
}

/// Combines the parts of all ranks, in the order of the conversations.
Part gathered(const Part& mine, World& world) {
  Part all;
  const std::string_view bytes(reinterpret_cast<const char*>(mine.scores.data()), mine.scores.size() * sizeof(Scores));
  for (const std::string& of_rank : world.all_gather(bytes)) {
    const std::size_t n = all.scores.size();
    all.scores.resize(n + of_rank.size() / sizeof(Scores));
    if (!of_rank.empty()) std::memcpy(all.scores.data() + n, of_rank.data(), of_rank.size());
  }
  for (const std::string& lines : world.all_gather(mine.lines)) all.lines += lines;
  for (const std::string& n : world.all_gather(std::to_string(mine.n_tokens))) all.n_tokens += std::stoll(n);
  return all;
}

AnswersOutcome outcome_of(const Part& all, const Questions& questions, const AnswersArguments& a, double seconds) {
  Scores sums;
  for (const Scores& scores : all.scores) sums.add(scores);
  const double rate = seconds > 0 ? static_cast<double>(all.n_tokens) / seconds : 0;
  Json object{{"conversations", static_cast<std::int64_t>(sums.n)},
              {"left_out", questions.n_left_out},
              {"rouge1", sums.rouge1 / sums.n},
              {"rouge2", sums.rouge2 / sums.n},
              {"rougeL", sums.rouge_l / sums.n},
              {"stemmed", a.stemming == text::Stemming::porter},
              {"exact_match", sums.exact / sums.n}};
  if (sums.n_numbers > 0)
    object.update({{"final_numbers", static_cast<std::int64_t>(sums.n_numbers)},
                   {"final_number_match", sums.numbers_strict / sums.n_numbers},
                   {"final_number_match_flexible", sums.numbers_flexible / sums.n_numbers}});
  object.update({{"beams", a.beams},
                 {"max_new_tokens", a.max_new_tokens},
                 {"new_tokens", all.n_tokens},
                 {"seconds", seconds},
                 {"tokens_per_second", rate}});
  const std::string numbers =
      sums.n_numbers > 0 ? fmt::format("; of {} final numbers, {} correct after \"####\", {} as the last number",
                                       sums.n_numbers, sums.numbers_strict, sums.numbers_flexible)
                         : "";
  return {.object = std::move(object),
          .text = fmt::format(
              "  answers to {} conversations: rouge1 {:.4f}, rouge2 {:.4f}, rougeL {:.4f}{}, exact match {:.4f}{}; "
              "{:.1f} new tokens/s\n",
              sums.n, sums.rouge1 / sums.n, sums.rouge2 / sums.n, sums.rouge_l / sums.n,
              a.stemming == text::Stemming::porter ? " (of stems)" : "", sums.exact / sums.n, numbers, rate),
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
  const std::size_t n = questions.prompts.size(), n_ranks = static_cast<std::size_t>(world.size());
  const std::size_t begin = n * static_cast<std::size_t>(world.rank()) / n_ranks,
                    end = n * static_cast<std::size_t>(world.rank() + 1) / n_ranks;
  const std::int64_t slots = a.beams * std::min<std::int64_t>(a.batch, std::ssize(questions.prompts));
  require(slots <= kMostSequences, ErrorCode::usage,
          "--batch {} with {} beams makes {} sequences at the same time, expected at most {}: give --batch {}", a.batch,
          a.beams, slots, kMostSequences, std::max<std::int64_t>(1, kMostSequences / a.beams));
  inference::TextModel text_model(
      model,
      {.slots = slots, .capacity = std::min(model.positions, questions.longest + a.max_new_tokens), .chunk = kChunk},
      config.precision, file, backend);
  generate::Generator generator(text_model.decoder(), decode_with(tokenizer, text::SpecialTokens::skip),
                                {.beams = a.beams,
                                 .max_new_tokens = a.max_new_tokens,
                                 .end_tokens = questions.end_tokens,
                                 .continues_prompt = false});
  const Clock::time_point start = Clock::now();
  const Part mine = answer_part(generator, questions, begin, end - begin, *tokenizer, a.stemming,
                                world.rank() == 0 && config.log.progress, world);
  const Part all = gathered(mine, world);
  return outcome_of(all, questions, a, seconds_since(start));
}

}  // namespace lockstep::commands

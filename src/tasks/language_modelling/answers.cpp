#include "tasks/language_modelling/answers.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "base/file.h"
#include "base/hash.h"
#include "base/progress_bar.h"
#include "base/rank_work.h"
#include "base/utf8.h"
#include "base/version.h"
#include "data/text_file.h"
#include "data/text_range.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::tasks {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kChunk = 256;           // tokens per prefill step
constexpr std::int64_t kMostSequences = 1024;  // generated at the same time

bool is_file(const std::string& path) {
  std::error_code error;
  return !path.empty() && std::filesystem::is_regular_file(path, error);
}

}  // namespace

AnswerOptions answer_options(const Config::Evaluation& e) {
  if (e.answers == 0) return {.conversations = e.max_samples};
  return {.conversations = e.answers, .beams = e.beams, .max_new_tokens = e.answer_tokens};
}

bool has_answers(const std::string& set) {
  if (set == "synthetic" || !is_file(set)) return false;
  const data::InputFile file(set);
  return data::is_text_file(file) && data::open_text_file(file).has_answers();
}

double Answers::mean(double (*of)(const AnswerScores&)) const {
  double sum = 0;
  for (const AnswerScores& one : scores) sum += of(one);
  return sum / static_cast<double>(scores.size());
}

Questions::Questions(const std::string& path, const models::LlamaConfig& model, const AnswerOptions& options)
    : options_(options), positions_(model.positions) {
  const data::TextRange set(path);
  tokenizer_ = std::make_shared<const text::Tokenizer>(text::Tokenizer::parse(path, set.tokenizer()));
  data_hash_ = data::content_hash(set.file(), set.layout());
  n_asked_ = set.n_documents();
  if (options.conversations > 0) n_asked_ = std::min(n_asked_, options.conversations);
  const auto add_end = [&](std::int64_t id) {
    const auto token = static_cast<std::int32_t>(id);
    if (id >= 0 && id < model.vocabulary && std::ranges::find(end_tokens_, token) == end_tokens_.end())
      end_tokens_.push_back(token);
  };
  for (const std::int64_t id : model.end_tokens) add_end(id);
  if (const auto end = set.answer_end(*tokenizer_)) add_end(*end);
  for (std::int64_t i = 0; i < n_asked_; ++i) {
    const data::Conversation conversation = set.conversation(i);
    if (conversation.answers.empty()) continue;
    const auto [begin, end] = conversation.answers.back();
    const auto at = [&](std::int64_t place) { return conversation.tokens.begin() + place; };
    if (begin < 1 || begin >= positions_) {
      ++n_left_out_;
      continue;
    }
    prompts_.push_back({.number = static_cast<std::uint32_t>(i), .ids = {at(0), at(begin)}});
    const bool has_end = std::ranges::find(end_tokens_, *at(end - 1)) != end_tokens_.end();
    references_.emplace_back(at(begin), at(has_end ? end - 1 : end));
    longest_ = std::max(longest_, begin);
  }
  require(!prompts_.empty(), ErrorCode::data_range,
          "none of {} conversations of {} leaves room for an answer in the {} tokens of the model's context: give "
          "--loss-only, or evaluation.answers=0 in a training",
          n_asked_, path, positions_);
  if (n_left_out_ > 0)
    log::warning("{} left out, without room for an answer in the {} tokens of the model's context",
                 n_left_out_ == 1 ? "1 conversation is" : fmt::format("{} conversations are", n_left_out_), positions_);
  const std::int64_t slots = decoder_sizes().slots;
  require(slots <= kMostSequences, ErrorCode::usage,
          "--batch {} with {} beams makes {} sequences at the same time, expected at most {}: give --batch {}",
          options.batch, options.beams, slots, kMostSequences,
          std::max<std::int64_t>(1, kMostSequences / options.beams));
}

generate::DecoderSizes Questions::decoder_sizes() const {
  return {.slots = options_.beams * std::min<std::int64_t>(options_.batch, std::ssize(prompts_)),
          .capacity = std::min(positions_, longest_ + options_.max_new_tokens),
          .chunk = kChunk};
}

std::string Questions::key(const std::string& weights, const std::string& base, const std::string& model,
                           Precision precision) const {
  if (weights.empty()) return "";
  const Json all = Json::array({weights, base, model, name(precision), data_hash_, n_asked_, options_.beams,
                                options_.max_new_tokens, version(), commit()});
  const std::string text = all.dump();
  return hash_text(hash_bytes(std::as_bytes(std::span(text))));
}

void Questions::add(Answers& answers, std::size_t question, const std::string& answer, std::int64_t n_tokens,
                    const std::string& key, text::Stemming stemming) const {
  const auto text_of = [&](const std::vector<std::int32_t>& ids, text::SpecialTokens special) {
    return valid_utf8(text::decode_known(*tokenizer_, ids, special));
  };
  const std::string reference = text_of(references_[question], text::SpecialTokens::skip);
  answers.scores.push_back({text::rouge(reference, answer, stemming), text::match_answer(reference, answer)});
  answers.n_tokens += n_tokens;
  const auto& [rouge, match] = answers.scores.back();
  Json line{{"prompt", text_of(prompts_[question].ids, text::SpecialTokens::keep)},
            {"answer", answer},
            {"reference", reference},
            {"rouge1", rouge.rouge1.f_measure},
            {"rouge2", rouge.rouge2.f_measure},
            {"rougeL", rouge.rouge_l.f_measure},
            {"exact_match", match.is_exact ? 1.0 : 0.0}};
  if (match.has_final_number) line["final_number_flexible"] = match.is_flexible ? 1.0 : 0.0;
  line.update({{"new_tokens", n_tokens}, {"key", key}});
  answers.lines += line.dump() + "\n";
}

std::optional<Answers> Questions::read(const std::string& path, const std::string& key, text::Stemming stemming,
                                       World& world) const {
  std::string content;
  if (world.rank() == 0 && !key.empty() && is_file(path)) content = read_file(path);
  world.broadcast_text(content);
  Answers out;
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto answer = object.find("answer"), n_tokens = object.find("new_tokens");
    if (!object.is_object() || object.value("key", Json()) != key || out.scores.size() == prompts_.size()) return {};
    if (answer == object.end() || !answer->is_string() || n_tokens == object.end() || !n_tokens->is_number()) return {};
    add(out, out.scores.size(), *answer, *n_tokens, key, stemming);
  }
  if (out.scores.size() != prompts_.size()) return {};
  return out;
}

Answers Questions::generate(generate::Decoder& decoder, const std::string& key, text::Stemming stemming,
                            bool shows_progress, World& world) const {
  const Part part = part_of(world, prompts_.size());
  generate::Generator generator(decoder,
                                [this](std::span<const std::int32_t> ids) {
                                  return text::decode_known(*tokenizer_, ids, text::SpecialTokens::skip);
                                },
                                {.beams = options_.beams,
                                 .max_new_tokens = options_.max_new_tokens,
                                 .end_tokens = end_tokens_,
                                 .continues_prompt = false});
  ProgressBar bar("answers", static_cast<std::int64_t>(part.size()), shows_progress, WithoutTerminal::lines);
  Meetings meetings(world);
  std::int64_t n_done = 0;
  generate::GeneratorEvents events;
  events.done = [&](std::size_t, const std::vector<generate::Reply>&) { bar.update(++n_done, ""); };
  events.goes_on = [&] {
    meetings.after_step();
    return true;
  };
  const auto replies = generator.generate(std::span(prompts_).subspan(part.begin, part.size()), events);
  meetings.end();
  Answers mine;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const generate::Reply& reply = replies[i].front();
    add(mine, part.begin + i, valid_utf8(reply.text), std::ssize(reply.tokens), key, stemming);
  }
  Answers all{.scores = gathered(mine.scores, world), .lines = {}};
  for (const std::string& lines : world.all_gather(mine.lines)) all.lines += lines;
  for (const std::int64_t n : gathered(std::vector{mine.n_tokens}, world)) all.n_tokens += n;
  return all;
}

}  // namespace lockstep::tasks

#include "commands/evaluate_choices.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "base/clock.h"
#include "base/current_world.h"
#include "base/file.h"
#include "base/progress_bar.h"
#include "base/utf8.h"
#include "comm/world.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "commands/stoppable.h"
#include "hdf5/reader.h"
#include "inference/text_model.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics.h"
#include "text/multiple_choice.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;
using text::ChoiceQuestion;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;
constexpr std::int64_t kBatchesBetweenMeetings = 8;  // ranks that finish early wait for the others

// ------------------------------------------------------------------------------------------------- the questions

struct Questions {
  std::vector<ChoiceQuestion> list;
  std::vector<std::size_t> lines;  // the line number of each question, from 1
};

/// Reads the first `most` questions (0: all).
Questions read_questions(const std::string& path, std::int64_t most) {
  const std::string content = read_file(path, kMaxFileBytes, ErrorCode::cannot_open);
  Questions out;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < content.size() && (most == 0 || std::ssize(out.list) < most);) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    ++number;
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    out.list.push_back(text::parse_choice_question(line, fmt::format("line {} of {}", number, path)));
    out.lines.push_back(number);
  }
  require(!out.list.empty(), ErrorCode::data_source, "--choices: {} has no questions: write one JSON object per line",
          path);
  return out;
}

/// Returns a text for each choice of each question. If a text is too long for the model, the beginning of its context
/// is cut off.
std::vector<inference::ScoredText> encode(const Questions& questions, const std::string& path,
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

// --------------------------------------------------------------------------------------------------- the results

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

Results judge(const Questions& questions, std::span<const double> log_likelihoods) {
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
    out.lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return out;
}

/// Each rank computes its part of the texts. All ranks return the results for all texts.
std::vector<double> score_part(std::span<const inference::ScoredText> texts, const TextModelSource& source,
                               Backend& backend, World& world) {
  const std::size_t n_ranks = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(world.rank());
  const std::size_t begin = texts.size() * rank / n_ranks, end = texts.size() * (rank + 1) / n_ranks;
  inference::TextScorer scorer(source.model, texts, source.config.precision, source.file, backend);
  ProgressBar bar("choices", static_cast<std::int64_t>(end - begin), world.rank() == 0 && source.config.log.progress,
                  WithoutTerminal::lines);
  std::int64_t n_batches = 0;
  const std::vector<double> mine = scorer.score(texts.subspan(begin, end - begin), [&](std::int64_t n_done) {
    bar.update(n_done, "");
    if (world.size() == 1 || ++n_batches % kBatchesBetweenMeetings == 0) any_unless_stopped(world, true);
  });
  while (world.size() > 1 && any_unless_stopped(world, false)) {
  }
  std::vector<double> all;
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  for (const std::string& of_rank : world.all_gather(bytes)) {
    const std::size_t n = all.size();
    all.resize(n + of_rank.size() / sizeof(double));
    if (!of_rank.empty()) std::memcpy(all.data() + n, of_rank.data(), of_rank.size());
  }
  return all;
}

}  // namespace

int evaluate_choices(const ChoicesArguments& a, const Arguments& program) {
  std::vector<std::string> inputs = inputs_of(a.model);
  inputs.push_back(a.choices);
  check_outputs({a.json, a.answers}, inputs);
  check_writable({a.json, a.answers});
  hdf5::version();  // initialises HDF5 before MPI, as in train
  World& world = *(current_world() = comm::start_world(program.argc, program.argv));
  log::configure(world.rank(), world.size(), world.host(), false);
  TextModelSource source = open_text_model(a.model);
  check_outputs({a.json, a.answers}, {source.base});
  const Questions questions = read_questions(a.choices, source.config.evaluation.max_samples);
  const std::vector<inference::ScoredText> texts = encode(questions, a.choices, source);
  const auto [backend, warning] =
      open_model_backend(source.config, source.file, source.sets_precision ? PrecisionOf::user : PrecisionOf::model,
                         {.device = source.config.device,
                          .threads = source.config.cpu.threads,
                          .local_rank = world.local_rank(),
                          .local_size = world.local_size()});
  if (!warning.empty() && world.rank() == 0) log::warning("{}", warning);
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
  if (!a.answers.empty()) write_result(a.answers, results.lines);
  report(a.json, object,
         fmt::format("{} on {}: acc {}, acc_norm {} (by the length in bytes) of {} questions, {:.1f} questions/s\n",
                     source.file.path, a.choices, results.acc.text(), results.acc_norm.text(), n,
                     seconds > 0 ? static_cast<double>(n) / seconds : 0.0));
  return kExitDone;
}

}  // namespace lockstep::commands

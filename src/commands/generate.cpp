// lockstep generate: continues prompts with a language model, or converses with it in the terminal.
//
// Each rank of a job generates the replies to its part of the prompts, and rank 0 prints all of them in the order of
// the prompts. A reply does not depend on the number of ranks or on the other prompts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/failure.h"
#include "base/file.h"
#include "base/rank_work.h"
#include "base/signals.h"
#include "base/standard_streams.h"
#include "comm/world.h"
#include "commands/chat.h"
#include "commands/commands.h"
#include "commands/job.h"
#include "commands/model_argument.h"
#include "commands/report.h"
#include "inference/text_model.h"
#include "lockstep/error.h"
#include "lockstep/log.h"
#include "run/metrics.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxPromptBytes = std::uint64_t{1} << 30;
constexpr std::int64_t kChunk = 256;           // tokens per prefill step
constexpr std::int64_t kMostSequences = 1024;  // generated at the same time

// ----------------------------------------------------------------------------------------------------- the request

/// Throws usage if the options contradict each other.
void check(const GenerateArguments& a, const CLI::App& command) {
  const auto is_given = [&](const char* option) { return command.count(option) > 0; };
  const int n_sources =
      static_cast<int>(is_given("--prompt")) + static_cast<int>(is_given("--prompts")) + static_cast<int>(a.chat);
  require(n_sources == 1, ErrorCode::usage, "expected one of --prompt TEXT, --prompts FILE and --chat, found {}",
          n_sources == 0 ? "none" : "several");
  const auto& sampling = a.options.sampling;
  for (const char* option : {"--top-k", "--top-p", "--min-p"})
    require(!is_given(option) || !is_given("--temperature") || sampling.temperature > 0, ErrorCode::usage,
            "{} has no effect with --temperature 0, which always takes the most probable token: give a temperature "
            "above 0",
            option);
  require(
      a.options.beams == 1 || sampling.is_greedy(), ErrorCode::usage,
      "--beams searches for the most probable reply, and cannot be combined with --temperature, --top-k, --top-p or "
      "--min-p: leave out one of them");
  require(!is_given("--length-penalty") || a.options.beams > 1, ErrorCode::usage,
          "--length-penalty has no effect without --beams: give --beams 2 or more");
  require(a.options.beams == 1 || a.options.replies <= a.options.beams, ErrorCode::usage,
          "--n {} asks for more replies than --beams {} finds: give --beams {}", a.options.replies, a.options.beams,
          a.options.replies);
  require(a.options.replies == 1 || a.options.beams > 1 || !sampling.is_greedy(), ErrorCode::usage,
          "--n {} would give the same reply {} times: give --temperature 1, or --beams {}", a.options.replies,
          a.options.replies, a.options.replies);
  require(!a.chat || (a.options.replies == 1 && a.options.beams == 1 && a.json.empty() && !is_given("--batch")),
          ErrorCode::usage, "--chat has one reply to each message: leave out --n, --beams, --batch and --json");
  require(a.chat || (!is_given("--system") && !is_given("--chat-template")), ErrorCode::usage,
          "--system and --chat-template describe a conversation: add --chat");
  for (const std::string& word : a.options.stop_words)
    require(!word.empty(), ErrorCode::usage, "--stop: expected a text, found nothing");
}

/// The lines of a file (`-`: standard input). A byte order mark is removed, and so is a carriage return at the end of a
/// line.
std::vector<std::string> read_prompts(const std::string& path) {
  std::string text;
  if (path == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    text = read_file(path, kMaxPromptBytes, ErrorCode::cannot_open);
  }
  std::vector<std::string> lines;
  std::istringstream in(text.substr(text.starts_with("\xef\xbb\xbf") ? 3 : 0));
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  require(!lines.empty(), ErrorCode::usage, "--prompts: {} is empty: write one prompt per line",
          path == "-" ? "standard input" : path);
  return lines;
}

/// "prompt", or "line 3 of prompts.txt"
std::string name_of(const GenerateArguments& a, std::size_t number) {
  return a.prompts.empty() ? "the prompt" : fmt::format("line {} of {}", number + 1, a.prompts);
}

std::vector<generate::Prompt> encode(const GenerateArguments& a, const std::vector<std::string>& texts,
                                     const TextModelSource& source) {
  std::vector<generate::Prompt> prompts;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    generate::Prompt prompt{.number = static_cast<std::uint32_t>(i), .ids = {}};
    source.tokenizer->encode(texts[i], prompt.ids);
    if (prompt.ids.empty() && source.tokenizer->begin_token()) prompt.ids.push_back(*source.tokenizer->begin_token());
    require(!prompt.ids.empty(), ErrorCode::usage,
            "{} is empty, and the tokenizer has no token that begins a text: write at least one character",
            name_of(a, i));
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    require(length < source.model.positions, ErrorCode::usage,
            "{} has {} tokens, but the context of the model has {}, which must include the reply: shorten it",
            name_of(a, i), length, source.model.positions);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// ------------------------------------------------------------------------------------------------------ the output

/// A line of --json for each complete reply to a prompt.
std::string json_lines(const std::string& prompt, const std::vector<generate::Reply>& replies) {
  std::string out;
  for (std::size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i].is_complete) continue;
    Json object{{"prompt", prompt}};
    if (replies.size() > 1) object["reply"] = i;
    object["text"] = replies[i].text;
    object["tokens"] = replies[i].tokens;
    object["logprobs"] = replies[i].log_probabilities;
    out += object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return out;
}

/// The header of a reply in text output. There is none if only one reply is printed.
std::string header(const std::string& prompt, std::size_t reply, const GenerateArguments& a, std::size_t n_prompts) {
  if (n_prompts == 1 && a.options.replies == 1) return "";
  const std::string number = a.options.replies > 1 ? fmt::format(", reply {}", reply + 1) : "";
  return fmt::format("==> {}{} <==\n", printable(prompt), number);
}

std::string text_of(const std::string& prompt, const std::vector<generate::Reply>& replies, const GenerateArguments& a,
                    std::size_t n_prompts) {
  std::string out;
  for (std::size_t i = 0; i < replies.size(); ++i)
    if (replies[i].is_complete) out += header(prompt, i, a, n_prompts) + printable_lines(replies[i].text) + "\n";
  return out;
}

// ------------------------------------------------------------------------------------------------------ generating

/// Prints each prompt's replies in order, as soon as they and those of all earlier prompts are complete.
class OrderedOutput {
 public:
  explicit OrderedOutput(std::size_t n) : parts_(n), is_done_(n, false) {}
  void add(std::size_t number, std::string part) {
    parts_[number] = std::move(part);
    is_done_[number] = true;
    for (; next_ < parts_.size() && is_done_[next_]; ++next_) print(std::exchange(parts_[next_], {}));
  }

 private:
  std::vector<std::string> parts_;
  std::vector<bool> is_done_;
  std::size_t next_ = 0;
};

std::int64_t capacity_for(const std::vector<generate::Prompt>& prompts, const GenerateArguments& a,
                          const TextModelSource& source) {
  std::int64_t longest = 1;
  for (const generate::Prompt& prompt : prompts) longest = std::max(longest, std::ssize(prompt.ids));
  return std::min(source.model.positions, longest + a.options.max_new_tokens);
}

struct Texts {
  std::string joined;
  bool is_stopped = false;  // a signal has ended generation on all ranks
};

/// Generates the replies to this rank's part of the prompts. Returns their texts, which rank 0 prints.
Texts generate_part(generate::Generator& generator, std::span<const generate::Prompt> prompts,
                    const std::vector<std::string>& texts, const GenerateArguments& a, Part part, World& world) {
  const bool is_alone = world.size() == 1, as_json = !a.json.empty();
  const bool streams = is_alone && !as_json && texts.size() == 1 && a.options.replies == 1 && a.options.beams == 1;
  const auto formatted = [&](std::size_t i, const std::vector<generate::Reply>& replies) {
    return as_json ? json_lines(texts[i], replies) : text_of(texts[i], replies, a, texts.size());
  };
  std::vector<std::string> out(part.size());
  OrderedOutput ordered(out.size());
  Meetings meetings(world);
  Texts result;
  const auto meet = [&](void (Meetings::*when)()) {
    try {
      if (!result.is_stopped) (meetings.*when)();
    } catch (const StoppedBySignal&) {
      result.is_stopped = true;
    }
  };
  generate::GeneratorEvents events;
  if (streams) events.text = [](std::size_t, std::size_t, const std::string& text) { print(printable_lines(text)); };
  events.done = [&](std::size_t i, const std::vector<generate::Reply>& replies) {
    out[i] = formatted(part.begin + i, replies);
    if (is_alone && !streams && (a.json.empty() || a.json == "-")) ordered.add(i, out[i]);
  };
  events.goes_on = [&] {
    meet(&Meetings::after_step);
    return !result.is_stopped;
  };
  generator.generate(prompts.subspan(part.begin, part.size()), events);
  if (streams) print("\n");
  meet(&Meetings::end);
  for (const std::string& text : out) result.joined += text;
  return result;
}

void report_speed(const generate::GeneratorTimes& t) {
  const auto rate = [](std::int64_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0.0; };
  log::info(
      "prefill: {} tokens in {:.3f} s, {:.1f} tokens/s; decoding: {} tokens in {} steps and {:.3f} s, {:.1f} tokens/s",
      t.prompt_tokens, t.prefill_seconds, rate(t.prompt_tokens, t.prefill_seconds), t.new_tokens, t.steps,
      t.decode_seconds, rate(t.new_tokens, t.decode_seconds));
}

int generate_prompts(const GenerateArguments& a, TextModelSource& source, Backend& backend, World& world) {
  const std::vector<std::string> texts =
      a.prompts.empty() ? std::vector<std::string>{a.prompt} : read_prompts(a.prompts);
  catch_stop_signals();
  const std::vector<generate::Prompt> prompts = encode(a, texts, source);
  const std::int64_t group = a.options.group(), capacity = capacity_for(prompts, a, source);
  const Part part = part_of(world, prompts.size());
  const auto n_mine = static_cast<std::int64_t>(part.size());
  const std::int64_t slots = group * std::clamp<std::int64_t>(n_mine, 1, a.batch);
  require(slots <= kMostSequences, ErrorCode::usage,
          "--batch {} with {} sequences per prompt makes {} at the same time, expected at most {}: give --batch {}",
          a.batch, group, slots, kMostSequences, std::max<std::int64_t>(1, kMostSequences / group));
  inference::TextModel model(source.model, {.slots = slots, .capacity = capacity, .chunk = kChunk},
                             source.config.precision, source.file, backend, world);
  source.file.tensors.clear();
  generate::GeneratorOptions options = a.options;
  options.end_tokens = source.end_tokens;
  if (a.ignores_end) options.end_tokens.clear();
  generate::Generator generator(model.decoder(), decode_with(source.tokenizer, text::SpecialTokens::keep), options);
  const Texts mine = generate_part(generator, prompts, texts, a, part, world);
  if (a.reports_speed) report_speed(generator.times());
  const bool is_printed = world.size() == 1 && (a.json.empty() || a.json == "-");
  const int status = mine.is_stopped ? kExitStopped : kExitDone;
  std::string all;
  for (const std::string& text : world.all_gather(mine.joined)) all += text;
  if (world.rank() != 0) return status;
  if (mine.is_stopped)
    log::warning("stopped by a signal: {}; rerun the command",
                 all.empty() ? "no reply is complete" : "only the replies that are complete are written");
  if (is_printed || (mine.is_stopped && all.empty())) return status;
  if (a.json.empty() || a.json == "-")
    print(all);
  else
    write_result(a.json, all);
  return status;
}

int run_generate(GenerateArguments a, const Arguments& program) {
  check_outputs({a.json}, inputs_of(a.model, a.prompts));
  check_writable({a.json});
  World& world = start_ranks(program);
  if (!a.chat && a.prompts != "-") catch_stop_signals();  // Ctrl-C ends the input
  require(!a.chat || world.size() == 1, ErrorCode::usage, "--chat is a conversation with one process, found {} ranks",
          world.size());
  require(a.prompts != "-" || world.size() == 1, ErrorCode::usage,
          "several ranks cannot read standard input: give --prompts a file");
  TextModelSource source = open_text_model(a.model);
  check_outputs({a.json}, {source.base});
  const auto backend = open_model_backend(source.config, source.file);
  return a.chat ? converse(a, source, *backend) : generate_prompts(a, source, *backend, world);
}

void add_options(CLI::App& command, GenerateArguments& a) {
  constexpr double kGreat = 1000;
  add_required(command, "MODEL", a.model.operands,
               "The directory of a run or of Hugging Face, or a checkpoint; or YAML files and --checkpoint; and "
               "key=value overrides, such as precision=bf16");
  const auto number = [&](const char* name, double& value, double low, double high, const char* text) {
    const auto is_number = [](const std::string& given) {  // NaN passes every range check
      return std::isnan(std::strtod(given.c_str(), nullptr)) ? "expected a number, found " + given : std::string();
    };
    return command.add_option(name, value, text)
        ->check(CLI::Range(low, high))
        ->check(CLI::Validator(is_number, ""))
        ->capture_default_str();
  };
  add_value(command, "--checkpoint", "FILE", a.model.checkpoints, "The model, with a configuration")
      ->allow_extra_args(false);
  add_value(command, "--tokenizer", "PATH", a.model.tokenizer,
            "A tokenizer.json, a tokenizer.bin or a folder with one; by default, that of the run or directory");
  add_averages(command, a.model.weights, "Use the moving averages of the weights");
  add_value(command, "--prompt", "WORDS", a.prompt, "The text to continue");
  add_value(command, "--prompts", "FILE", a.prompts, "A file with one prompt per line; - reads standard input");
  command.add_flag("--chat", a.chat, "Converse in the terminal; Ctrl-C stops a reply, Ctrl-D ends");
  add_value(command, "--system", "WORDS", a.system, "The system message of the conversation");
  command.add_option("--chat-template", a.chat_template,
                     "chatml, llama3, or a file with a template; by default, that of the tokenizer");
  add_number(command, "--max-new-tokens", a.options.max_new_tokens, 1, std::numeric_limits<std::int32_t>::max(),
             "Maximum number of new tokens in a reply");
  number("--temperature", a.options.sampling.temperature, 0, kGreat,
         "0: the most probable token; otherwise a token is drawn");
  add_number(command, "--top-k", a.options.sampling.top_k, 0, std::numeric_limits<std::int32_t>::max(),
             "Draw from the N most probable tokens; 0: from all");
  number("--top-p", a.options.sampling.top_p, 0, 1,
         "Draw from the fewest most probable tokens whose probabilities sum to at least this");
  number("--min-p", a.options.sampling.min_p, 0, 1,
         "Draw from the tokens with at least this fraction of the greatest probability");
  number("--repetition-penalty", a.options.sampling.repetition_penalty, 0.01, kGreat,
         "Above 1, makes tokens that have already occurred less probable; 1: off");
  add_number(command, "--beams", a.options.beams, 1, 64, "Beam search with N beams");
  number("--length-penalty", a.options.length_penalty, -kGreat, kGreat,
         "Divides the score of a beam by its length to this power");
  add_number(command, "--n", a.options.replies, 1, kMostSequences, "Replies to each prompt");
  add_value(command, "--stop", "WORDS", a.options.stop_words, "A reply ends before this text; may be repeated")
      ->allow_extra_args(false);
  command.add_flag("--ignore-end", a.ignores_end, "Go on after the token that ends a text");
  command.add_flag("--speed", a.reports_speed, "Report the time of the model on standard error");
  add_value(command, "--seed", "N", a.options.seed, "Seed of the random numbers")->capture_default_str();
  add_number(command, "--batch", a.batch, 1, kMostSequences, "Batch size: prompts that are processed at the same time");
  add_json(command, a.json);
  command.get_option("--json")->description(
      "Print one JSON object per line and reply on standard output, or with --json=FILE write them to that file");
}

}  // namespace

void add_generate(CLI::App& app, Run& run, const Arguments& program) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Generate text with a language model");
  add_options(*command, *arguments);
  command->footer(
      "By default, the most probable token is taken. --temperature, --top-k, --top-p and --min-p draw one; the "
      "temperature is then 1 unless given.");
  command->callback([arguments, &run, program, command] {
    GenerateArguments a = *arguments;
    for (const char* option : {"--top-k", "--top-p", "--min-p"})
      if (command->count(option) > 0 && command->count("--temperature") == 0) a.options.sampling.temperature = 1;
    check(a, *command);
    run = [a, program] { return run_generate(a, program); };
  });
}

}  // namespace lockstep::commands

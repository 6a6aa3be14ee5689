// lockstep data show FILE --sample N: one sample of a data set. For conversations and text: the text, the tokens and
// which of them count towards the loss. For images: the label and, on a terminal, a small picture.
//
// lockstep data encode | decode: converts lines of text to the ids of their tokens, and back.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/printable.h"
#include "base/standard_streams.h"
#include "base/utf8.h"
#include "commands/commands.h"
#include "commands/report.h"
#include "data/image_file.h"
#include "data/text_range.h"
#include "lockstep/error.h"
#include "lockstep/philox.h"
#include "text/tokenizer.h"

namespace lockstep::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPictureSide = 48;         // pixels
constexpr std::int64_t kContext = 4;     // tokens
constexpr std::size_t kTokenBytes = 40;  // the longest text of a token in the table

struct ShowArguments {
  std::string file, json, colour = "auto";
  std::int64_t sample = 0, limit = 1000;
};

bool uses_colours(const std::string& when) {
  if (when != "auto") return when == "always";
  return has_cursor(STDOUT_FILENO);
}

/// report() would escape the control characters of colours. `text` has no other control characters.
void report_painted(const std::string& json, const Json& object, const std::string& text, bool has_colours) {
  if (json.empty() && has_colours)
    fmt::print("{}", text);
  else
    report(json, object, text);
}

// Colours of ANSI terminals
constexpr const char *kAnswer = "1;32", *kPrompt = "36", *kRest = "2";  // bold green, cyan, dim

/// Colours text from files, whose control characters `printable` has escaped before. Each line is coloured separately,
/// because pagers require this.
std::string painted(const std::string& text, const char* colour) {
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) out += fmt::format("\033[{}m{}\033[0m", colour, text.substr(begin, end - begin));
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

/// The text of tokens [begin, end). It depends on a few tokens before them, because some decoders drop a leading space.
std::string text_between(const text::Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::int64_t begin,
                         std::int64_t end) {
  const auto of = [&](std::int64_t from, std::int64_t to) {
    return tokenizer.decode(ids.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
  };
  const std::int64_t from = std::max<std::int64_t>(0, begin - kContext);
  const std::string before = of(from, begin), all = of(from, end);
  return all.starts_with(before) ? all.substr(before.size()) : of(begin, end);
}

void show_text(const ShowArguments& arguments) {
  const data::TextRange set(arguments.file);
  require(arguments.sample < set.n_documents(), ErrorCode::data_range,
          "--sample {} is not one of the {} {} of {}, which are counted from 0", arguments.sample, set.n_documents(),
          set.has_answers() ? "conversations" : "documents", arguments.file);
  const data::Conversation sample = set.conversation(arguments.sample);
  const text::Tokenizer tokenizer = text::Tokenizer::parse(arguments.file, set.tokenizer());
  const auto n_tokens = static_cast<std::int64_t>(sample.tokens.size());
  const std::int64_t n_shown = arguments.limit == 0 ? n_tokens : std::min(arguments.limit, n_tokens);
  const bool has_colours = arguments.json.empty() && uses_colours(arguments.colour);
  const auto paint = [&](const std::string& part, const char* colour) {
    return has_colours ? painted(part, colour) : part;
  };
  std::vector<char> counts(sample.tokens.size(), set.has_answers() ? 0 : 1);
  counts[0] = 0;  // nothing predicts the first token
  for (const auto& [begin, end] : sample.answers)
    std::fill(counts.begin() + std::max<std::int64_t>(begin, 1), counts.begin() + end, 1);
  const auto n_counted = std::count(counts.begin(), counts.end(), 1);

  std::string text = fmt::format("{}: {} {} of {}, {} tokens, {} of which count towards the loss\n", arguments.file,
                                 set.has_answers() ? "conversation" : "document", arguments.sample, set.n_documents(),
                                 n_tokens, n_counted);
  text += '\n';
  for (std::int64_t begin = 0; begin < n_shown;) {
    const char kind = counts[static_cast<std::size_t>(begin)];
    std::int64_t end = begin + 1;
    while (end < n_shown && counts[static_cast<std::size_t>(end)] == kind) ++end;
    text += paint(printable_lines(text_between(tokenizer, sample.tokens, begin, end)), kind ? kAnswer : kPrompt);
    begin = end;
  }
  if (!text.ends_with('\n')) text += '\n';
  text += fmt::format("\n{:>8}  {:>7}  {:<5}  text\n", "position", "token", "loss");
  Json tokens = Json::array();
  for (std::int64_t i = 0; i < n_shown; ++i) {
    const std::int32_t id = sample.tokens[static_cast<std::size_t>(i)];
    const bool is_counted = counts[static_cast<std::size_t>(i)] == 1;
    const std::string line =
        fmt::format("{:>8}  {:>7}  {:<5}  {}", i, id, is_counted ? "yes" : "-",
                    Json(tokenizer.decode(std::span(&id, 1))).dump(-1, ' ', false, Json::error_handler_t::replace));
    text += paint(printable(line, 2 * kTokenBytes), is_counted ? kAnswer : kRest) + '\n';
  }
  if (n_shown < n_tokens) text += fmt::format("... {} more tokens; --limit 0 shows all\n", n_tokens - n_shown);
  for (const std::int32_t id : sample.tokens) tokens.push_back(id);
  Json answers = Json::array();
  for (const auto& [begin, end] : sample.answers) answers.push_back({begin, end});
  report_painted(arguments.json,
                 {{"path", arguments.file},
                  {"sample", arguments.sample},
                  {"text", valid_utf8(tokenizer.decode(sample.tokens))},
                  {"tokens", tokens},
                  {"answers", set.has_answers() ? answers : Json()},
                  {"counted", n_counted}},
                 text, has_colours);
}

/// Draws two rows of pixels per line: the character is a lower half block, and its background is the upper half.
std::string picture(std::span<const std::uint8_t> pixels, int height, int width, int channels) {
  std::string out;
  const auto colour = [&](int row, int column) {
    const std::uint8_t* p = pixels.data() + (static_cast<std::ptrdiff_t>(row) * width + column) * channels;
    return channels == 3 ? fmt::format("2;{};{};{}", p[0], p[1], p[2]) : fmt::format("2;{0};{0};{0}", p[0]);
  };
  for (int row = 0; row + 1 < height; row += 2) {
    for (int column = 0; column < width; ++column)
      out += fmt::format("\033[48;{}m\033[38;{}m\u2584", colour(row, column), colour(row + 1, column));
    out += "\033[0m\n";
  }
  return out;
}

void show_image(const ShowArguments& arguments) {
  const data::ImageFile layout = data::open_image_file(data::InputFile(arguments.file));
  const data::ImageSetInfo& info = layout.info;
  require(arguments.sample < info.n_samples, ErrorCode::data_range,
          "--sample {} is not one of the {} images of {}, which are counted from 0", arguments.sample, info.n_samples,
          arguments.file);
  int height = info.height, width = info.width;
  if (layout.encoded && height == 0) {
    const auto size =
        data::read_sizes(data::InputFile(arguments.file), layout)[static_cast<std::size_t>(arguments.sample)];
    height = size[0], width = size[1];
  }
  const int side = std::min({kPictureSide, height, width});
  const auto set = data::open_image_set(arguments.file, arguments.sample, arguments.sample + 1,
                                        {.image_size = side, .resize = side});
  std::vector<std::uint8_t> pixels(set->info().image_bytes());
  std::int32_t label = 0;
  set->read_image(0, 0, pixels, label);
  const auto at = static_cast<std::size_t>(label);
  const std::string name = at < info.class_names.size() ? info.class_names[at] : "";
  std::string text = fmt::format("{}: image {} of {}, {} x {} pixels (height, width), {} channel{}\nclass {}{}\n",
                                 arguments.file, arguments.sample, info.n_samples, height, width, info.channels,
                                 info.channels == 1 ? "" : "s", label, name.empty() ? "" : ", " + printable(name));
  text = printable_lines(text);
  const bool has_picture = arguments.json.empty() && uses_colours(arguments.colour);
  if (has_picture) text += picture(pixels, side, side, info.channels);
  report_painted(arguments.json,
                 {{"path", arguments.file},
                  {"sample", arguments.sample},
                  {"height", height},
                  {"width", width},
                  {"channels", info.channels},
                  {"label", label},
                  {"class_name", name}},
                 text, has_picture);
}

void run_show(const ShowArguments& arguments) {
  check_outputs({arguments.json}, {arguments.file});
  if (data::is_text_file(data::InputFile(arguments.file)))
    show_text(arguments);
  else
    show_image(arguments);
}

// ------------------------------------------------------------------------------------------------ encode, decode

struct TokenArguments {
  std::string tokenizer, file;
  bool omits_template = false;
};

/// Calls `print(line, number)` for each line of a file (`-`: standard input), without its line feed. What was printed
/// is written out before the program waits for more input.
template <typename Print>
void for_each_line(const std::string& file, Print print) {
  const bool is_input = file == "-";
  const std::string name = is_input ? "standard input" : file;
  const Descriptor opened =
      is_input ? Descriptor() : open_regular_file(file, ErrorCode::cannot_open, OwnPipe::accepted);
  const int descriptor = is_input ? STDIN_FILENO : opened.get();
  std::vector<char> buffer(1 << 20);
  std::string line;
  std::size_t number = 0;
  while (true) {
    const ssize_t n = ::read(descriptor, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, ErrorCode::system_call, "cannot read {}: {}", name, system_text(errno));
    if (n == 0) break;
    std::string_view rest(buffer.data(), static_cast<std::size_t>(n));
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      line += rest.substr(0, end);
      print(line, ++number);
      line.clear();
      rest.remove_prefix(end + 1);
    }
    line += rest;
    flush_standard_output();
  }
  if (!line.empty()) print(line, ++number);
}

void put(std::string& out) {
  out += '\n';
  std::fwrite(out.data(), 1, out.size(), stdout);  // flush_standard_output() reports a failure
}

void run_encode(const TokenArguments& arguments) {
  const text::Tokenizer tokenizer = text::Tokenizer::open(arguments.tokenizer);
  const auto added = arguments.omits_template ? text::TemplateTokens::omit : text::TemplateTokens::add;
  std::vector<std::int32_t> ids;
  std::string out;
  for_each_line(arguments.file, [&](std::string_view line, std::size_t) {
    ids.clear();
    out.clear();
    tokenizer.encode(line, ids, added);
    for (const std::int32_t id : ids) {
      const fmt::format_int digits(id);
      if (!out.empty()) out += ' ';
      out.append(digits.data(), digits.size());
    }
    put(out);
  });
}

std::vector<std::int32_t> parse_ids(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::int32_t> ids;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return ids;
    const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    require(error == std::errc() && end == word.data() + word.size(), ErrorCode::data_source,
            "expected ids separated by blanks, found {}", word);
    ids.push_back(id);
    line.remove_prefix(word.size());
  }
}

void run_decode(const TokenArguments& arguments) {
  const text::Tokenizer tokenizer = text::Tokenizer::open(arguments.tokenizer);
  for_each_line(arguments.file, [&](std::string_view line, std::size_t number) {
    try {
      const std::vector<std::int32_t> ids = parse_ids(line);
      std::string out = tokenizer.decode(tokenizer.without_template(ids));
      put(out);
    } catch (const Error& error) {
      fail(error.code(), "line {}: {}", number, error.what());
    }
  });
}

CLI::App* add_tokens(CLI::App& data, Run& run, const std::string& name, const std::string& description,
                     const std::string& file, const std::shared_ptr<TokenArguments>& arguments,
                     void (*command)(const TokenArguments&)) {
  CLI::App* app = data.add_subcommand(name, description);
  add_value(*app, "tokenizer", "TOKENIZER", arguments->tokenizer,
            "A tokenizer.json of Hugging Face's library, a tokenizer.bin of llama2.c, or a folder with either")
      ->required();
  add_value(*app, "file", "FILE", arguments->file, file + "; -: standard input")->required();
  set_run(*app, run, [arguments, command] { command(*arguments); });
  return app;
}

}  // namespace

void add_data_show(CLI::App& data, Run& run) {
  CLI::App* app = data.add_subcommand("show", "Print a sample: its text, tokens and mask, or its class and picture");
  const auto arguments = std::make_shared<ShowArguments>();
  add_value(*app, "file", "FILE", arguments->file, "The data set")->required();
  add_number(*app, "--sample", arguments->sample, 0, kMaxSamples,
             "Index of the conversation, document or image, counted from 0");
  add_number(*app, "--limit", arguments->limit, 0, kMaxSamples, "Maximum number of tokens to print. 0: all");
  add_choice(*app, "--colour", arguments->colour, {"auto", "always", "never"},
             "Whether to use colours; auto: on a terminal, unless NO_COLOR is set");
  add_json(*app, arguments->json);
  app->footer("Tokens that count towards the loss are green.");
  set_run(*app, run, [arguments] { run_show(*arguments); });
}

void add_encode_and_decode(CLI::App& data, Run& run) {
  const auto encoded = std::make_shared<TokenArguments>(), decoded = std::make_shared<TokenArguments>();
  CLI::App* encode = add_tokens(data, run, "encode", "Print the ids of the tokens of each line of a text", "The text",
                                encoded, run_encode);
  encode->add_flag("--no-template", encoded->omits_template,
                   "Leave out the tokens that the tokenizer adds to each text, such as a begin token");
  add_tokens(data, run, "decode", "Print the texts of lines of ids; undoes encode", "Lines of ids, separated by blanks",
             decoded, run_decode);
}

}  // namespace lockstep::commands

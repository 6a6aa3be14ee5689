// lockstep data encode | decode: converts lines of text to the ids of their tokens, and back.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/file.h"
#include "base/standard_streams.h"
#include "commands/commands.h"
#include "lockstep/error.h"
#include "text/tokenizer.h"

namespace lockstep::commands {
namespace {

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

int run_encode(const TokenArguments& arguments) {
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
  return kExitDone;
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

int run_decode(const TokenArguments& arguments) {
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
  return kExitDone;
}

CLI::App* add(CLI::App& data, Run& run, const std::string& name, const std::string& description,
              const std::string& file, const std::shared_ptr<TokenArguments>& arguments,
              int (*command)(const TokenArguments&)) {
  CLI::App* app = data.add_subcommand(name, description);
  app->add_option("tokenizer", arguments->tokenizer,
                  "A tokenizer.json of Hugging Face's library, a tokenizer.bin of llama2.c, or a folder with either")
      ->required()
      ->type_name("TOKENIZER");
  app->add_option("file", arguments->file, file + "; -: standard input")->required()->type_name("FILE");
  app->callback([&run, arguments, command] { run = [arguments, command] { return command(*arguments); }; });
  return app;
}

}  // namespace

void add_encode_and_decode(CLI::App& data, Run& run) {
  const auto encoded = std::make_shared<TokenArguments>(), decoded = std::make_shared<TokenArguments>();
  CLI::App* encode =
      add(data, run, "encode", "Print the ids of the tokens of each line of a text", "The text", encoded, run_encode);
  encode->add_flag("--no-template", encoded->omits_template,
                   "Leave out the tokens that the tokenizer adds to each text, such as a begin token");
  add(data, run, "decode", "Print the texts of lines of ids; undoes encode", "Lines of ids, separated by blanks",
      decoded, run_decode);
}

}  // namespace lockstep::commands

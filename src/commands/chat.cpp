#include "commands/chat.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/file.h"
#include "base/printable.h"
#include "base/signals.h"
#include "base/standard_streams.h"
#include "comm/world.h"
#include "inference/text_model.h"
#include "lockstep/error.h"
#include "text/chat_template.h"
#include "text/conversation_encoder.h"

namespace lockstep::commands {
namespace {

constexpr std::int64_t kChunk = 64;  // tokens per prefill step; small because messages are short

volatile std::sig_atomic_t was_interrupted = 0;

enum class Input : std::uint8_t { line, interrupted, end };

/// Standard input by lines.
class Lines {
 public:
  Input next(std::string& line) {
    while (true) {
      if (const std::size_t end = held_.find('\n'); end != std::string::npos) {
        line = held_.substr(0, end);
        held_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return Input::line;
      }
      char buffer[4096];
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) {
        held_.clear();
        return Input::interrupted;
      }
      require(n >= 0, ErrorCode::system_call, "cannot read standard input: {}", system_text(errno));
      if (n == 0) {
        line = std::exchange(held_, {});
        return line.empty() ? Input::end : Input::line;
      }
      held_.append(buffer, static_cast<std::size_t>(n));
    }
  }

 private:
  std::string held_;
};

class Conversation {
 public:
  Conversation(const GenerateArguments& a, const TextModelSource& source)
      : template_(text::ChatTemplate::choose(a.chat_template.empty() ? "auto" : a.chat_template,
                                             source.tokenizer_folder, "--chat-template", source.tokenizer->path())),
        tokenizer_(source.tokenizer),
        capacity_(source.model.positions) {
    text::require_tokens(template_, *tokenizer_);
    if (!a.system.empty()) messages_.push_back({"system", a.system});
    n_system_ = messages_.size();
    std::vector<std::int32_t> shortest;
    add("user", "?");
    require(ids(shortest), ErrorCode::usage,
            "--system has {} tokens with the shortest message, but the context of the model has {}: shorten it",
            shortest.size(), capacity_);
    take_back();
  }

  void add(const char* role, std::string content) { messages_.push_back({role, std::move(content)}); }
  /// Drops the oldest messages until the conversation leaves room for a reply. If the last one has no room even alone,
  /// returns false and drops none.
  bool ids(std::vector<std::int32_t>& out) {
    const std::int64_t room = std::max<std::int64_t>(1, capacity_ / 8);
    std::vector<text::ChatMessage> kept = messages_;
    while (true) {
      out.clear();
      tokenizer_->encode(template_.render(kept, text::ReplyBegin::add), out, text::TemplateTokens::omit);
      const bool is_alone = kept.size() < n_system_ + 3;
      if (std::ssize(out) + (is_alone ? 1 : room) <= capacity_) break;
      if (is_alone) return false;
      const auto oldest = kept.begin() + static_cast<std::ptrdiff_t>(n_system_);
      kept.erase(oldest, oldest + 2);  // a message and its reply
    }
    forgot_ = kept.size() < messages_.size();
    messages_ = std::move(kept);
    return true;
  }
  void take_back() { messages_.pop_back(); }
  bool has_forgotten() const { return forgot_; }

 private:
  text::ChatTemplate template_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::int64_t capacity_;
  std::vector<text::ChatMessage> messages_;
  std::size_t n_system_ = 0;
  bool forgot_ = false;
};

/// The tokens that end a message: those of the model and the tokenizer, and the well-known ones below if they are
/// single tokens.
std::vector<std::int32_t> end_tokens_of(const TextModelSource& source) {
  std::vector<std::int32_t> ends = source.end_tokens;
  if (source.tokenizer->end_token()) ends.push_back(*source.tokenizer->end_token());
  for (const char* token : {"<|im_end|>", "<|eot_id|>"}) {
    std::vector<std::int32_t> ids;
    source.tokenizer->encode(token, ids, text::TemplateTokens::omit);
    if (ids.size() == 1) ends.push_back(ids.front());
  }
  std::ranges::sort(ends);
  const auto repeated = std::ranges::unique(ends);
  ends.erase(repeated.begin(), repeated.end());
  return ends;
}

}  // namespace

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_standard_output();
}

int converse(const GenerateArguments& a, TextModelSource& source, Backend& backend) {
  Conversation conversation(a, source);
  inference::TextModel model(source.model, {.slots = 1, .capacity = source.model.positions, .chunk = kChunk},
                             source.config.precision, source.file, backend, *comm::single_world());
  source.file.tensors.clear();
  generate::GeneratorOptions options = a.options;
  options.continues_prompt = false;  // the history has what transformers decodes
  if (!a.ignores_end) options.end_tokens = end_tokens_of(source);
  generate::Generator generator(model.decoder(), decode_with(source.tokenizer, text::SpecialTokens::skip), options);
  generator.keep_cache();
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  // Ctrl-C sets a flag. read() then returns, so that the user can discard an incomplete line.
  handle_signal(SIGINT, [](int) { was_interrupted = 1; });
  Lines lines;
  std::string line;
  for (std::uint32_t number = 0;;) {
    if (is_terminal) print("> ");
    was_interrupted = 0;
    const Input input = lines.next(line);
    if (input == Input::end) break;
    if (input == Input::interrupted) {
      print("\n(Ctrl-D ends the conversation.)\n");
      continue;
    }
    if (line.empty()) continue;
    conversation.add("user", line);
    generate::Prompt prompt{.number = number++, .ids = {}};
    if (!conversation.ids(prompt.ids)) {
      print("(The message is longer than the context of the model: shorten it.)\n");
      conversation.take_back();
      continue;
    }
    if (conversation.has_forgotten()) print("(The oldest messages no longer fit into the context.)\n");
    was_interrupted = 0;
    const auto replies = generator.generate(
        std::span(&prompt, 1),
        {.text = [](std::size_t, std::size_t, const std::string& text) { print(printable_lines(text)); },
         .done = {},
         .goes_on = [] { return was_interrupted == 0; }});
    print("\n");
    conversation.add("assistant", replies.front().empty() ? std::string() : replies.front().front().text);
  }
  if (is_terminal) print("\n");
  return EXIT_SUCCESS;
}

}  // namespace lockstep::commands

// Cuts a template into tokens.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "lockstep/error.h"
#include "text/jinja.h"

namespace lockstep::text::jinja {
namespace {

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& source) : text_(text), source_(source) {
    if (text_.ends_with('\n')) text_.remove_suffix(1);
  }

  std::vector<Token> tokens() {
    while (at_ < text_.size()) {
      const std::size_t begin = find_opening(at_);
      std::string_view plain = text_.substr(at_, begin - at_);
      if (strips_next_)
        plain.remove_prefix(std::min(plain.find_first_not_of(" \t\r\n"), plain.size()));
      else if (trims_newline_ && plain.starts_with('\n'))
        plain.remove_prefix(1);
      strips_next_ = trims_newline_ = false;
      const char kind = begin < text_.size() ? text_[begin + 1] : '\0';
      const char sign = begin + 2 < text_.size() ? text_[begin + 2] : '\0';
      if (kind != '\0' && sign == '-')
        plain = plain.substr(0, plain.find_last_not_of(" \t\r\n") + 1);
      else if ((kind == '%' || kind == '#') && sign != '+')
        plain = without_indentation(plain, text_.substr(at_, begin - at_));
      if (!plain.empty()) add(Token::Kind::text, std::string(plain));
      count_lines(text_.substr(at_, begin - at_));
      at_ = begin;
      if (kind == '\0') break;
      at_ += 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (kind == '#') {
        comment();
      } else {
        add(kind == '{' ? Token::Kind::begin_output : Token::Kind::begin_block, "");
        inside(kind == '{' ? "}}" : "%}", kind == '%');
      }
    }
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  std::size_t find_opening(std::size_t from) const {
    for (std::size_t i = text_.find('{', from); i != std::string_view::npos; i = text_.find('{', i + 1))
      if (i + 1 < text_.size() && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) return i;
    return text_.size();
  }
  /// lstrip_blocks: removes white space between the beginning of a line and a block. `all` is `plain` before its
  /// beginning was stripped.
  std::string_view without_indentation(std::string_view plain, std::string_view all) const {
    const std::size_t end = all.find_last_not_of(" \t") + 1;
    const bool begins_line = end == 0 ? at_ == 0 : all[end - 1] == '\n';
    return begins_line ? plain.substr(0, plain.find_last_not_of(" \t") + 1) : plain;
  }
  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void count_lines(std::string_view passed) { line_ += static_cast<int>(std::ranges::count(passed, '\n')); }
  [[noreturn]] void damaged(const std::string& problem) const {
    fail(ErrorCode::chat_template, "the chat template {}, line {}: {}", source_, line_, problem);
  }
  void comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) damaged("a comment does not end");
    count_lines(text_.substr(at_, end - at_));
    strips_next_ = end > at_ && text_[end - 1] == '-';
    trims_newline_ = !(end > at_ && text_[end - 1] == '+');
    at_ = end + 2;
  }
  void inside(std::string_view closing, bool is_block) {
    while (true) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        if (text_[at_] == '\n') ++line_;
        ++at_;
      }
      if (at_ >= text_.size()) damaged(fmt::format("expected {}", closing));
      const std::string_view rest = text_.substr(at_);
      const bool has_sign = (rest[0] == '-' || rest[0] == '+') && rest.substr(1).starts_with(closing);
      if (has_sign || (rest.starts_with(closing) && !is_in_braces(closing))) {
        strips_next_ = rest[0] == '-';
        trims_newline_ = is_block && rest[0] != '+';
        at_ += closing.size() + (has_sign ? 1 : 0);
        add(is_block ? Token::Kind::end_block : Token::Kind::end_output, "");
        return;
      }
      one();
    }
  }
  /// `}}` may also end two nested objects.
  bool is_in_braces(std::string_view closing) const { return closing == "}}" && n_braces_ > 0; }
  void one() {
    const char c = text_[at_];
    const auto is_word = [](char x) { return std::isalnum(static_cast<unsigned char>(x)) != 0 || x == '_'; };
    std::size_t end = at_;
    if (c == '"' || c == '\'') return string(c);
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (end < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[end])) != 0 ||
                                    (text_[end] == '.' && end + 1 < text_.size() &&
                                     std::isdigit(static_cast<unsigned char>(text_[end + 1])) != 0)))
        ++end;
      add(Token::Kind::number, std::string(text_.substr(at_, end - at_)));
    } else if (is_word(c)) {
      while (end < text_.size() && is_word(text_[end])) ++end;
      add(Token::Kind::name, std::string(text_.substr(at_, end - at_)));
    } else {
      static constexpr std::array<std::string_view, 6> kLong{"==", "!=", "<=", ">=", "//", "**"};
      const std::string_view two = text_.substr(at_, 2);
      end = at_ + (std::ranges::find(kLong, two) != kLong.end() ? 2 : 1);
      if (end == at_ + 1 && std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos)
        damaged(fmt::format("unexpected character {}", c));
      if (c == '{') ++n_braces_;
      if (c == '}') --n_braces_;
      add(Token::Kind::symbol, std::string(text_.substr(at_, end - at_)));
    }
    at_ = end;
  }
  void string(char quote) {
    std::string out;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] != '\\' || at_ + 1 >= text_.size()) {
        out += text_[at_];
        continue;
      }
      const char c = text_[++at_];
      out += c == 'n'                             ? "\n"
             : c == 't'                           ? "\t"
             : c == 'r'                           ? "\r"
             : c == '\\' || c == '\'' || c == '"' ? std::string(1, c)
                                                  : std::string("\\") + c;
    }
    if (at_ >= text_.size()) damaged("a string does not end");
    count_lines(out);
    ++at_;
    add(Token::Kind::string, std::move(out));
  }

  std::string_view text_;
  const std::string& source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int line_ = 1, n_braces_ = 0;
  bool strips_next_ = false, trims_newline_ = false;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text, const std::string& source) { return Lexer(text, source).tokens(); }

}  // namespace lockstep::text::jinja

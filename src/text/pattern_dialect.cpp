// Translates Oniguruma's dialect (doc/RE, syntax Ruby) to PCRE2's (pcre2pattern, pcre2unicode), as far as both mean the
// same.
#include <array>
#include <cctype>
#include <cstddef>
#include <utility>

#include "lockstep/error.h"
#include "text/pattern.h"

namespace lockstep::text {
namespace {

struct ClassEscape {
  char letter;
  std::string_view members;  // as they are written between brackets
};
// PCRE2's own \s contains U+180E, and its \w lacks marks. U+200C and other members depend on the release.
constexpr std::array<ClassEscape, 3> kClasses{
    {{'s', R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"},
     {'w', R"(\p{L}\p{M}\p{Nd}\p{Pc})"},
     {'d', R"(\p{Nd})"}}};

class Translator {
 public:
  Translator(std::string_view expression, const std::string& where) : expression_(expression), where_(where) {}

  std::string translate() {
    while (at_ < expression_.size()) {
      const char c = expression_[at_];
      if (c == '\\')
        escape(false);
      else if (c == '[')
        character_class();
      else if (c == '(')
        group();
      else if (c == '{')
        repetition();
      else if (c == '^' || c == '$')
        refuse(std::string(1, c));
      else
        copy(1);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorCode::model_feature, "{} has the pattern {}; `{}` in it is not supported", where_, expression_,
         construct);
  }
  std::string_view rest() const { return expression_.substr(at_); }
  void copy(std::size_t n) {
    out_ += expression_.substr(at_, n);
    at_ += n;
  }

  void escape(bool in_class) {
    if (at_ + 1 >= expression_.size()) refuse("\\");
    const char letter = expression_[at_ + 1];
    for (const ClassEscape& known : kClasses) {
      const bool negated = letter == known.letter - 'a' + 'A';
      if (letter != known.letter && !negated) continue;
      if (in_class && negated) refuse(rest().substr(0, 2));  // this would be the union of a class and a complement
      out_ += in_class ? std::string(known.members) : fmt::format("[{}{}]", negated ? "^" : "", known.members);
      at_ += 2;
      return;
    }
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_letter_or_digit = byte < 0x80 && std::isalnum(byte) != 0;
    if (!is_letter_or_digit || letter == 'r' || letter == 'n' || letter == 't' || letter == 'f') return copy(2);
    if (at_ + 2 < expression_.size() && expression_[at_ + 2] == '{' && rest().find('}') != std::string_view::npos) {
      const std::size_t end = rest().find('}');
      if (letter == 'x') return copy(end + 1);
      if ((letter == 'p' || letter == 'P') && is_general_category(rest().substr(3, end - 3))) return copy(end + 1);
      refuse(rest().substr(0, end + 1));
    }
    refuse(rest().substr(0, 2));
  }

  /// "L", "Lu". (PCRE2 and Oniguruma interpret the names of scripts as different sets.)
  static bool is_general_category(std::string_view name) {
    if (name.starts_with('^')) name.remove_prefix(1);
    return (name.size() == 1 || (name.size() == 2 && name[1] >= 'a' && name[1] <= 'z')) &&
           std::string_view("LMNPSZC").find(name[0]) != std::string_view::npos;
  }

  void character_class() {
    copy(1);
    if (rest().starts_with('^')) copy(1);
    if (rest().starts_with(']')) refuse("[]");
    while (at_ < expression_.size() && expression_[at_] != ']') {
      if (expression_[at_] == '[' || rest().starts_with("&&")) refuse(rest().substr(0, 2));
      if (expression_[at_] == '\\')
        escape(true);
      else
        copy(1);
    }
    if (at_ >= expression_.size()) refuse("[");
    copy(1);
  }

  void group() {
    if (!rest().starts_with("(?")) return copy(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?i:", "(?<=", "(?<!"})
      if (rest().starts_with(known)) return copy(known.size());
    refuse(rest().substr(0, 4));
  }

  /// {n}, {n,}, {n,m}. Oniguruma interprets a `+` after it as another repetition, and also the `?` of {n}?.
  void repetition() {
    std::size_t n = 1;
    const auto digits = [&] {
      const std::size_t begin = n;
      while (at_ + n < expression_.size() && expression_[at_ + n] >= '0' && expression_[at_ + n] <= '9') ++n;
      return n > begin;
    };
    const auto next_is = [&](char c) { return at_ + n < expression_.size() && expression_[at_ + n] == c; };
    if (!digits()) refuse("{");
    const bool is_range = next_is(',');
    if (is_range) {
      ++n;
      digits();
    }
    if (!next_is('}')) refuse("{");
    ++n;
    if (next_is('+') || (next_is('?') && !is_range)) refuse(rest().substr(0, n + 1));
    copy(n);
  }

  std::string_view expression_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view expression, const std::string& where) {
  return Translator(expression, where).translate();
}

}  // namespace lockstep::text

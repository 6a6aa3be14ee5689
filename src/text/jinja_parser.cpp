// Parses the tokens of a template to statements, by recursive descent.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/error.h"
#include "text/jinja.h"

namespace lockstep::text::jinja {
namespace {

constexpr int kMaxDepth = 100;    // of nested expressions and statements
constexpr int kMaxHeight = 1000;  // of an expression: the operators of `a + b + c` are nested, too

using Node = std::unique_ptr<Expression>;

Node make(Expression::Kind kind, std::string text = {}) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->text = std::move(text);
  return node;
}

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& source) : tokens_(std::move(tokens)), source_(source) {}

  std::vector<Statement> all() {
    std::vector<Statement> out = statements({});
    if (now().kind != Token::Kind::end) damaged("unexpected {}", now().text);
    return out;
  }

 private:
  using Kind = Expression::Kind;

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  template <typename... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> problem, Args&&... args) const {
    fail(ErrorCode::chat_template, "the chat template {}, line {}: {}", source_, now().line,
         fmt::format(problem, std::forward<Args>(args)...));
  }
  bool is(Token::Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool is_symbol(std::string_view text) const { return is(Token::Kind::symbol, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::name, text); }
  bool take_symbol(std::string_view text) { return is_symbol(text) && ++at_ > 0; }
  bool take_name(std::string_view text) { return is_name(text) && ++at_ > 0; }
  void expect_symbol(std::string_view text) {
    if (!take_symbol(text)) damaged("expected {}, found {}", text, shown());
  }
  std::string shown() const { return now().text.empty() ? "the end of the expression" : now().text; }
  std::string name() {
    if (now().kind != Token::Kind::name) damaged("expected a name, found {}", shown());
    return tokens_[at_++].text;
  }
  void end_block() {
    if (now().kind != Token::Kind::end_block) damaged("expected %}}, found {}", shown());
    ++at_;
  }

  // Statements

  struct Deeper {
    Deeper(Parser& of) : parser(of) {  // NOLINT(google-explicit-constructor)
      if (++parser.depth_ > kMaxDepth) parser.damaged("statements or expressions are nested too deeply");
    }
    ~Deeper() { --parser.depth_; }
    Parser& parser;
  };

  /// Parses statements up to a block that begins with one of `ends`, which is left to the caller.
  std::vector<Statement> statements(const std::vector<std::string_view>& ends) {
    const Deeper deeper(*this);
    std::vector<Statement> out;
    while (now().kind != Token::Kind::end) {
      if (now().kind == Token::Kind::text) {
        out.push_back({.kind = Statement::Kind::text, .text = tokens_[at_++].text});
      } else if (now().kind == Token::Kind::begin_output) {
        ++at_;
        out.push_back({.kind = Statement::Kind::output, .expression = expression()});
        if (now().kind != Token::Kind::end_output) damaged("expected }}}}, found {}", shown());
        ++at_;
      } else {
        if (std::ranges::find(ends, std::string_view(ahead().text)) != ends.end()) return out;
        ++at_;
        out.push_back(block());
      }
    }
    if (!ends.empty()) damaged("expected {{% {} %}}", ends.back());
    return out;
  }

  Statement block() {
    const std::string kind = name();
    if (kind == "if") return branch();
    if (kind == "for") return loop();
    if (kind == "set") return set();
    if (kind == "break" || kind == "continue") {
      end_block();
      return {.kind = kind == "break" ? Statement::Kind::break_loop : Statement::Kind::continue_loop};
    }
    if (kind == "generation") return with_body({.kind = Statement::Kind::generation}, {"endgeneration"});
    fail(ErrorCode::chat_template, "the chat template {}, line {}: the statement {} is not supported", source_,
         now().line, kind);
  }

  /// The bodies of a statement: up to the last of `ends`, and what begins with elif or else before it.
  Statement with_body(Statement out, const std::vector<std::string_view>& ends) {
    end_block();
    out.body = statements(ends);
    ++at_;
    if (take_name("elif")) {
      out.otherwise.push_back(branch());
      return out;
    }
    if (take_name("else")) {
      end_block();
      out.otherwise = statements({ends.back()});
      ++at_;
    }
    ++at_;  // the last of `ends`
    end_block();
    return out;
  }

  Statement branch() {
    const Deeper deeper(*this);  // of elif
    return with_body({.kind = Statement::Kind::branch, .expression = expression()}, {"elif", "else", "endif"});
  }

  Statement loop() {
    Statement out{.kind = Statement::Kind::loop};
    const bool is_in_parentheses = take_symbol("(");
    do out.names.push_back(name());
    while (take_symbol(","));
    if (is_in_parentheses) expect_symbol(")");
    if (!take_name("in")) damaged("expected in, found {}", shown());
    out.expression = binary(0);
    if (take_name("if")) out.condition = expression();
    return with_body(std::move(out), {"else", "endfor"});
  }

  Statement set() {
    Statement out{.kind = Statement::Kind::set, .names = {name()}};
    if (take_symbol(".")) out.names.push_back(name());
    if (take_symbol("=")) {
      out.expression = expression();
      end_block();
      return out;
    }
    out.kind = Statement::Kind::set_block;
    return with_body(std::move(out), {"endset"});
  }

  // Expressions, from the weakest operator to the strongest

  Node expression() {
    const Deeper deeper(*this);
    Node value = binary(0);
    if (!take_name("if")) return value;
    Node out = make_of(std::move(value), Kind::conditional);
    add(out, binary(0));
    add(out, take_name("else") ? expression() : nullptr);
    return out;
  }

  void add(Node& of, Node child) {
    if (child) of->height = std::max(of->height, child->height + 1);
    if (of->height > kMaxHeight) damaged("an expression has more than {} operators", kMaxHeight);
    of->children.push_back(std::move(child));
  }

  Node make_of(Node first_child, Kind kind, std::string text = {}) {
    Node out = make(kind, std::move(text));
    add(out, std::move(first_child));
    return out;
  }

  /// The operator at this position, if it has this level: or; and; not; comparisons; +, -; ~; *, /, //, %.
  std::string operator_of(int level) {
    static const std::vector<std::vector<std::string_view>> kSymbols{
        {}, {}, {}, {"==", "!=", "<", ">", "<=", ">="}, {"+", "-"}, {"~"}, {"*", "/", "//", "%"}};
    if (level == 0 && take_name("or")) return "or";
    if (level == 1 && take_name("and")) return "and";
    if (level == 3 && take_name("in")) return "in";
    if (level == 3 && is_name("not") && ahead().text == "in") {
      at_ += 2;
      return "not in";
    }
    for (const std::string_view symbol : kSymbols[static_cast<std::size_t>(level)])
      if (take_symbol(symbol)) return std::string(symbol);
    return "";
  }

  Node binary(int level) {
    constexpr int kNot = 2, kStrongest = 6;
    if (level > kStrongest) return unary();
    if (level == kNot) {
      if (!take_name("not")) return binary(kNot + 1);
      const Deeper deeper(*this);
      return make_of(binary(kNot), Kind::unary, "not");
    }
    Node left = binary(level + 1);
    for (std::string op = operator_of(level); !op.empty(); op = operator_of(level)) {
      left = make_of(std::move(left), Kind::binary, op);
      add(left, binary(level + 1));
    }
    return left;
  }

  Node unary() {
    const Deeper deeper(*this);
    if (is_symbol("-") || is_symbol("+")) {
      const std::string sign = tokens_[at_++].text;
      return make_of(unary(), Kind::unary, sign);
    }
    return filters(postfix(primary()));
  }

  Node filters(Node value) {
    while (true) {
      if (take_symbol("|")) {
        value = make_of(std::move(value), Kind::filter, name());
        if (take_symbol("(")) arguments(value);
        value = postfix(std::move(value));
      } else if (take_name("is")) {
        const bool is_negated = take_name("not");
        value = make_of(std::move(value), Kind::test, name());
        if (take_symbol("(")) {
          arguments(value);
        } else if (now().kind == Token::Kind::string || now().kind == Token::Kind::number) {
          add(value, primary());
          value->names.emplace_back();
        }
        if (is_negated) value = make_of(std::move(value), Kind::unary, "not");
      } else {
        return value;
      }
    }
  }

  void arguments(Node& of) {
    while (!take_symbol(")")) {
      std::string keyword;
      if (now().kind == Token::Kind::name && ahead().kind == Token::Kind::symbol && ahead().text == "=") {
        keyword = name();
        ++at_;
      }
      add(of, expression());
      of->names.push_back(std::move(keyword));
      if (!is_symbol(")")) expect_symbol(",");
    }
  }

  Node postfix(Node value) {
    while (true) {
      if (take_symbol(".")) {
        const std::string key = now().kind == Token::Kind::number ? tokens_[at_++].text : name();
        value = make_of(std::move(value), Kind::attribute, key);
      } else if (take_symbol("[")) {
        value = subscript(std::move(value));
      } else if (take_symbol("(")) {
        value = make_of(std::move(value), Kind::call);
        arguments(value);
      } else {
        return value;
      }
    }
  }

  Node subscript(Node value) {
    Node out = make_of(std::move(value), Kind::subscript);
    add(out, is_symbol(":") ? nullptr : expression());
    while (take_symbol(":")) {
      out->kind = Kind::slice;
      add(out, is_symbol(":") || is_symbol("]") ? nullptr : expression());
    }
    expect_symbol("]");
    if (out->kind == Kind::slice) out->children.resize(4);
    return out;
  }

  Node literal(Value value) {
    Node out = make(Kind::literal);
    out->value = std::move(value);
    return out;
  }

  Node primary() {
    const Token token = now();
    if (token.kind == Token::Kind::string) {
      std::string text;
      while (now().kind == Token::Kind::string) text += tokens_[at_++].text;
      return literal(text);
    }
    if (token.kind == Token::Kind::number) {
      ++at_;
      if (token.text.size() > 18) damaged("the number {} is too long", token.text);
      return literal(token.text.find('.') == std::string::npos ? Value(std::stoll(token.text))
                                                               : Value(std::stod(token.text)));
    }
    if (token.kind == Token::Kind::name) {
      ++at_;
      if (token.text == "true" || token.text == "True") return literal(true);
      if (token.text == "false" || token.text == "False") return literal(false);
      if (token.text == "none" || token.text == "None") return literal(nullptr);
      return make(Kind::name, token.text);
    }
    if (take_symbol("(")) return parentheses();
    if (take_symbol("[")) {
      Node out = make(Kind::list);
      items(out, "]");
      return out;
    }
    if (take_symbol("{")) {
      Node out = make(Kind::object);
      while (!take_symbol("}")) {
        add(out, expression());
        expect_symbol(":");
        add(out, expression());
        if (!is_symbol("}")) expect_symbol(",");
      }
      return out;
    }
    damaged("expected a value, found {}", shown());
  }

  void items(Node& list, std::string_view closing) {
    while (!take_symbol(closing)) {
      add(list, expression());
      if (!is_symbol(closing)) expect_symbol(",");
    }
  }

  /// A value in parentheses, or a tuple.
  Node parentheses() {
    if (take_symbol(")")) return make(Kind::list);
    Node first = expression();
    if (take_symbol(")")) return first;
    expect_symbol(",");
    Node list = make_of(std::move(first), Kind::list);
    items(list, ")");
    return list;
  }

  std::vector<Token> tokens_;
  const std::string& source_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<Statement> parse(std::string_view text, const std::string& source) {
  return Parser(tokens_of(text, source), source).all();
}

}  // namespace lockstep::text::jinja

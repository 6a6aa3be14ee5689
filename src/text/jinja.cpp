// Runs the statements of a template.
#include "text/jinja.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/signals.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::text::jinja {
namespace {

constexpr std::size_t kMaxSteps = 2'000'000;  // and one more for each byte of the conversation
constexpr std::size_t kStepsPerIteration = 10;
constexpr std::size_t kBytesPerStep = 256;  // that an expression makes
constexpr std::size_t kBytesPerValue = 64;  // more than it takes, for the time that nested values take
constexpr int kMaxNestedValues = 200;
constexpr std::int64_t kMaxRange = 1 << 20;

class Evaluator {
 public:
  Evaluator(const Value& variables, const std::string& source) : source_(source) {
    scopes_.push_back(Value::object());
    for (const auto& [name, value] : variables.items()) scopes_.front()[name] = value;
    max_steps_ = kMaxSteps + bytes_of(variables);
  }

  Rendering take() { return {std::move(out_), std::move(generated_)}; }

  /// What ended a list of statements.
  enum class Flow : std::uint8_t { end, break_loop, continue_loop };

  Flow run(const std::vector<Statement>& statements) {
    for (const Statement& s : statements) {
      Flow flow = Flow::end;
      switch (s.kind) {
        case Statement::Kind::text:
          put(s.text);
          break;
        case Statement::Kind::output:
          put(text_of(value(s.expression)));
          break;
        case Statement::Kind::branch: {
          Value held;
          flow = run(is_true(look(s.expression, held)) ? s.body : s.otherwise);
          break;
        }
        case Statement::Kind::loop:
          flow = loop(s);
          break;
        case Statement::Kind::set:
          set(s.names, value(s.expression));
          break;
        case Statement::Kind::set_block: {
          const std::string before = std::exchange(out_, {});
          ++n_buffers_;
          flow = run(s.body);
          --n_buffers_;
          set(s.names, std::exchange(out_, before));
          break;
        }
        case Statement::Kind::generation: {  // a scope of its own, as in transformers
          if (n_buffers_ > 0) damaged("{{% generation %}} is inside another one, or inside {{% set %}}");
          const std::size_t begin = out_.size();
          scopes_.push_back(Value::object());
          ++n_buffers_;
          flow = run(s.body);
          --n_buffers_;
          scopes_.pop_back();
          generated_.emplace_back(begin, out_.size());
          break;
        }
        case Statement::Kind::break_loop:
          return Flow::break_loop;
        case Statement::Kind::continue_loop:
          return Flow::continue_loop;
      }
      if (flow != Flow::end) return flow;
    }
    return Flow::end;
  }

 private:
  template <typename... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> problem, Args&&... args) const {
    fail(ErrorCode::chat_template, "the chat template {}: {}", source_,
         fmt::format(problem, std::forward<Args>(args)...));
  }

  void put(const std::string& text) {
    n_output_bytes_ += text.size();  // also of {% set %}
    if (n_output_bytes_ > kMaxBytes) damaged("its output is longer than {} bytes", kMaxBytes);
    out_ += text;
  }

  void spend(std::size_t n) {
    throw_if_stopped();
    n_steps_ += n;
    if (n_steps_ > max_steps_) damaged("it takes more than {} steps, as if it would never end", max_steps_);
  }

  /// About the memory of a value.
  std::size_t bytes_of(const Value& v, int depth = 0) const {
    if (depth > kMaxNestedValues) damaged("values are nested more than {} deep", kMaxNestedValues);
    std::size_t n = kBytesPerValue + (v.is_string() ? v.get_ref<const std::string&>().size() : 0);
    if (v.is_array())
      for (const Value& item : v) n += bytes_of(item, depth + 1);
    if (v.is_object())
      for (const auto& [key, item] : v.items()) n += sizeof key + key.size() + bytes_of(item, depth + 1);
    return n;
  }

  Value* find(const std::string& name) {
    for (std::size_t i = scopes_.size(); i-- > 0;)
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return &*found;
    return nullptr;
  }

  /// Sets a variable of this scope, or an attribute of a namespace of any scope.
  void set(const std::vector<std::string>& names, Value value) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = std::move(value);
      return;
    }
    Value* const target = find(names[0]);
    if (target == nullptr || !target->is_object()) damaged("{} is not a namespace", names[0]);
    (*target)[names[1]] = std::move(value);
  }

  std::vector<Value> items_of(const Value& v) const {
    std::vector<Value> out;
    if (v.is_discarded()) return out;  // as in Jinja, an undefined value is empty
    if (v.is_object()) {
      for (const auto& [key, item] : v.items()) out.emplace_back(key);
    } else if (v.is_array()) {
      out.assign(v.begin(), v.end());
    } else if (v.is_string()) {
      const auto& text = v.get_ref<const std::string&>();
      if (text.size() > kMaxBytes / sizeof(std::string)) damaged("{} bytes are too many to iterate over", text.size());
      for (std::size_t begin = 0; begin < text.size();) {
        std::size_t end = begin + 1;
        while (end < text.size() && is_continuation(text[end])) ++end;
        out.emplace_back(text.substr(begin, end - begin));
        begin = end;
      }
    } else {
      damaged("{} cannot be iterated over", text_of(v));
    }
    return out;
  }

  void assign(const std::vector<std::string>& names, const Value& item) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = item;
      return;
    }
    if (!item.is_array() || item.size() != names.size())
      damaged("an item cannot be unpacked to {} names", names.size());
    for (std::size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = item[i];
  }

  Flow loop(const Statement& s) {
    Value held;
    std::vector<Value> items = items_of(look(s.expression, held));
    if (s.condition) {
      std::vector<Value> kept;
      for (Value& item : items) {
        scopes_.push_back(Value::object());
        assign(s.names, item);
        if (is_true(value(s.condition))) kept.push_back(std::move(item));
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    if (items.empty()) return run(s.otherwise);
    for (std::size_t i = 0; i < items.size(); ++i) {
      spend(kStepsPerIteration);
      scopes_.push_back(Value::object());
      assign(s.names, items[i]);
      Value about{{"index", i + 1},
                  {"index0", i},
                  {"revindex", items.size() - i},
                  {"revindex0", items.size() - i - 1},
                  {"first", i == 0},
                  {"last", i + 1 == items.size()},
                  {"length", items.size()}};
      if (i > 0) about["previtem"] = items[i - 1];
      if (i + 1 < items.size()) about["nextitem"] = items[i + 1];
      scopes_.back()["loop"] = std::move(about);
      const Flow flow = run(s.body);
      scopes_.pop_back();
      if (flow == Flow::break_loop) break;
    }
    return Flow::end;
  }

  Value value(const std::unique_ptr<Expression>& e) { return value(*e); }

  Value value(const Expression& e) {
    const Value* const place = place_of(e);
    Value out = place != nullptr ? *place : evaluate(e);
    const std::size_t n_bytes = bytes_of(out);
    if (n_bytes > kMaxBytes) damaged("a value has more than {} bytes", kMaxBytes);
    spend(1 + n_bytes / kBytesPerStep);
    return out;
  }

  /// Like value(), but copies nothing that is a variable or a part of one. Otherwise, the result is `held`.
  const Value& look(const std::unique_ptr<Expression>& e, Value& held) {
    spend(1);
    if (const Value* const place = place_of(*e)) return *place;
    return held = value(*e);
  }

  /// Where a variable or a part of one is; null: the expression is something else.
  const Value* place_of(const Expression& e) {
    using Kind = Expression::Kind;
    static const Value kUndefined = undefined();
    if (e.kind == Kind::name) {
      const Value* const found = find(e.text);
      return found != nullptr ? found : &kUndefined;
    }
    if (e.kind != Kind::attribute && e.kind != Kind::subscript) return nullptr;
    const Value* const of = place_of(*e.children[0]);
    if (of == nullptr || !of->is_structured()) return nullptr;
    const Value* const found = member_in(*of, e.kind == Kind::attribute ? Value(e.text) : value(e.children[1]));
    return found != nullptr ? found : &kUndefined;
  }

  /// Null: the object or list has no such member.
  static const Value* member_in(const Value& of, const Value& key) {
    if (of.is_object()) {
      const auto found = of.find(text_of(key));
      return found != of.end() ? &*found : nullptr;
    }
    if (!of.is_array() || !key.is_number_integer()) return nullptr;
    const auto n = static_cast<std::int64_t>(of.size());
    auto i = key.get<std::int64_t>();
    if (i < 0) i += n;
    return i >= 0 && i < n ? &of[static_cast<std::size_t>(i)] : nullptr;
  }

  Value evaluate(const Expression& e) {
    using Kind = Expression::Kind;
    Value held;
    switch (e.kind) {
      case Kind::literal:
        return e.value;
      case Kind::list: {
        Value out = Value::array();
        for (const auto& child : e.children) out.push_back(value(child));
        return out;
      }
      case Kind::object: {
        Value out = Value::object();
        for (std::size_t i = 0; i + 1 < e.children.size(); i += 2)
          out[text_of(value(e.children[i]))] = value(e.children[i + 1]);
        return out;
      }
      case Kind::attribute:
        return member(look(e.children[0], held), Value(e.text));
      case Kind::subscript:
        return member(look(e.children[0], held), value(e.children[1]));
      case Kind::slice:
        return slice(e);
      case Kind::call:
        return call(e);
      case Kind::filter:
        return apply_filter(e.text, look(e.children[0], held), arguments(e), source_);
      case Kind::test:
        return apply_test(e.text, look(e.children[0], held), arguments(e), source_);
      case Kind::unary:
        return unary(e.text, look(e.children[0], held));
      case Kind::binary:
        return binary(e);
      case Kind::conditional:
        if (is_true(look(e.children[1], held))) return value(e.children[0]);
        return e.children[2] ? value(e.children[2]) : undefined();
      case Kind::name:  // place_of()
        break;
    }
    return undefined();
  }

  Arguments arguments(const Expression& e) {
    Arguments out;
    for (std::size_t i = 1; i < e.children.size(); ++i) {
      Value v = value(e.children[i]);
      if (e.names[i - 1].empty())
        out.positional.push_back(std::move(v));
      else
        out.named.emplace_back(e.names[i - 1], std::move(v));
    }
    return out;
  }

  Value member(const Value& of, const Value& key) const {
    if (of.is_discarded()) damaged("{} of an undefined value", text_of(key));
    const Value characters = of.is_string() && key.is_number_integer() ? Value(items_of(of)) : Value();
    const Value* const found = member_in(of.is_string() ? characters : of, key);
    return found != nullptr ? *found : undefined();
  }

  Value slice(const Expression& e) {
    Value held;
    const Value& of = look(e.children[0], held);
    const std::vector<Value> items = items_of(of);
    const auto n = static_cast<std::int64_t>(items.size());
    const auto bound = [&](std::size_t child, std::int64_t otherwise) {
      if (!e.children[child]) return otherwise;
      const Value v = value(e.children[child]);
      if (v.is_null()) return otherwise;
      if (!v.is_number_integer()) damaged("{} is not an index", text_of(v));
      return v.get<std::int64_t>();
    };
    const std::int64_t step = bound(3, 1);
    if (step == 0) damaged("a slice with a step of 0");
    const auto inside = [&](std::int64_t i) {
      if (i < 0) i += n;
      return std::clamp<std::int64_t>(i, step > 0 ? 0 : -1, step > 0 ? n : n - 1);
    };
    const std::int64_t begin = e.children[1] ? inside(bound(1, 0)) : step > 0 ? 0 : n - 1;
    const std::int64_t end = e.children[2] ? inside(bound(2, 0)) : step > 0 ? n : -1;
    Value out = Value::array();
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step)
      out.push_back(items[static_cast<std::size_t>(i)]);
    if (!of.is_string()) return out;
    std::string text;
    for (const Value& c : out) text += c.get<std::string>();
    return text;
  }

  Value unary(const std::string& op, const Value& v) const {
    if (op == "not") return !is_true(v);
    if (v.is_number_integer()) return op == "-" ? -v.get<std::int64_t>() : v.get<std::int64_t>();
    if (v.is_number()) return op == "-" ? -v.get<double>() : v.get<double>();
    damaged("{}{} is not a number", op, text_of(v));
  }

  Value binary(const Expression& e) {
    const std::string& op = e.text;
    Value left = value(e.children[0]);
    if (op == "or") return is_true(left) ? left : value(e.children[1]);
    if (op == "and") return is_true(left) ? value(e.children[1]) : left;
    Value held;
    const Value& right = look(e.children[1], held);
    if (op == "==" || op == "!=") return are_equal(left, right) == (op == "==");
    if (op == "~") return text_of(left) + text_of(right);
    if (op == "in" || op == "not in") return contains(right, left) == (op == "in");
    if (op == "+" && left.is_string() && right.is_string()) return left.get<std::string>() + right.get<std::string>();
    if (op == "+" && left.is_array() && right.is_array()) {
      for (const Value& item : right) left.push_back(item);
      return left;
    }
    if ((op == "<" || op == ">" || op == "<=" || op == ">=") && left.is_string() && right.is_string())
      return compare(op, left.get<std::string>().compare(right.get<std::string>()), 0);
    if (!(left.is_number() || left.is_boolean()) || !(right.is_number() || right.is_boolean()))
      damaged("{} {} {} is not possible", shown(left), op, shown(right));
    return arithmetic(op, left, right);
  }

  static std::string shown(const Value& v) {
    return v.is_discarded() ? "an undefined value" : text_of(v).substr(0, 40);
  }
  static bool are_equal(const Value& a, const Value& b) {
    return a.is_discarded() || b.is_discarded() ? a.is_discarded() && b.is_discarded() : a == b;
  }
  bool contains(const Value& of, const Value& item) const {
    if (of.is_string() && item.is_string())
      return of.get<std::string>().find(item.get<std::string>()) != std::string::npos;
    return std::ranges::any_of(items_of(of), [&](const Value& v) { return are_equal(v, item); });
  }
  template <typename T>
  static bool compare(const std::string& op, T a, T b) {
    return op == "<" ? a < b : op == ">" ? a > b : op == "<=" ? a <= b : a >= b;
  }

  Value arithmetic(const std::string& op, const Value& a, const Value& b) const {
    const auto number = [](const Value& v) { return v.is_boolean() ? (v.get<bool>() ? 1.0 : 0.0) : v.get<double>(); };
    const double x = number(a), y = number(b);
    if (op[0] == '<' || op[0] == '>') return compare(op, x, y);
    if ((op == "/" || op == "//" || op == "%") && y == 0) damaged("a division by zero");
    const double result = op == "+"    ? x + y
                          : op == "-"  ? x - y
                          : op == "*"  ? x * y
                          : op == "/"  ? x / y
                          : op == "//" ? std::floor(x / y)
                                       : x - y * std::floor(x / y);
    const bool is_whole = op != "/" && !a.is_number_float() && !b.is_number_float() && std::abs(result) < 0x1p53;
    return is_whole ? Value(static_cast<std::int64_t>(result)) : Value(result);
  }

  Value call(const Expression& e) {
    const Expression& callee = *e.children[0];
    const Arguments given = arguments(e);
    if (callee.kind == Expression::Kind::attribute) {
      Value held;
      const Value& of = look(callee.children[0], held);
      if (of.is_discarded()) damaged("{}() of an undefined value", callee.text);
      return call_method(of, callee.text, given, source_);
    }
    const std::string name = callee.kind == Expression::Kind::name ? callee.text : "an expression";
    if (name == "raise_exception")
      fail(ErrorCode::chat_template, "the chat template {} refuses the conversation: {}", source_,
           text_of(given.get(0, "message")));
    if (name == "namespace" || name == "dict") {
      Value out = Value::object();
      for (const auto& [key, v] : given.named) out[key] = v;
      return out;
    }
    if (name == "range") return range(given);
    if (name == "strftime_now") {
      const std::time_t now = std::time(nullptr);
      std::tm parts{};
      ::localtime_r(&now, &parts);
      char text[256];
      const std::size_t n = std::strftime(text, sizeof text, text_of(given.get(0, "format")).c_str(), &parts);
      return std::string(text, n);
    }
    fail(ErrorCode::chat_template, "the chat template {}: the function {} is not supported", source_, name);
  }

  Value range(const Arguments& given) const {
    std::vector<std::int64_t> n;
    for (const Value& v : given.positional) {
      if (!v.is_number_integer()) damaged("range({}) is not possible", text_of(v));
      n.push_back(v.get<std::int64_t>());
    }
    if (n.empty() || n.size() > 3) damaged("range() has one to three arguments");
    const std::int64_t begin = n.size() > 1 ? n[0] : 0, end = n.size() > 1 ? n[1] : n[0],
                       step = n.size() > 2 ? n[2] : 1;
    if (step == 0 || (end - begin) / step > kMaxRange) damaged("range() is too long");
    Value out = Value::array();
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) out.push_back(i);
    return out;
  }

  const std::string& source_;
  std::vector<Value> scopes_;
  std::string out_;
  std::vector<std::pair<std::size_t, std::size_t>> generated_;
  int n_buffers_ = 0;  // {% set %} and {% generation %} around the current statement
  std::size_t n_output_bytes_ = 0, n_steps_ = 0, max_steps_ = 0;
};

}  // namespace

Rendering render(const std::vector<Statement>& statements, const Value& variables, const std::string& source) {
  Evaluator evaluator(variables, source);
  evaluator.run(statements);
  return evaluator.take();
}

}  // namespace lockstep::text::jinja

// The part of the template language Jinja that chat templates use, as transformers configures it: trim_blocks,
// lstrip_blocks and loop controls. Sources: the Jinja documentation, "Template Designer Documentation"; transformers,
// utils/chat_template_utils.py.
//
// Supported: output, if, for (with else, if and unpacking), set, break, continue, generation, comments, white space
// control; expressions with the operators of Jinja, attributes, subscripts, slices, calls of methods, filters and tests
// that chat templates use. Not supported, and refused when a template is parsed: macros, blocks, imports and other
// statements. A filter, test, method or function that is not known is refused when it is reached.
//
// Templates come from strangers: the nesting of expressions and values, the bytes of texts and of the output, and the
// steps of a rendering are limited, and a signal ends it where throw_if_stopped() does.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text::jinja {

/// Of the output, and of any value.
inline constexpr std::size_t kMaxBytes = std::size_t{1} << 26;

/// A value. `discarded` is Jinja's undefined.
using Value = nlohmann::ordered_json;
inline Value undefined() { return Value(Value::value_t::discarded); }

struct Expression {
  enum class Kind : std::uint8_t {
    literal,      // value
    name,         // text
    list,         // children
    object,       // children: key, value, key, value
    attribute,    // children[0].text
    subscript,    // children[0][children[1]]
    slice,        // children[0][begin:end:step]; an empty child is a null pointer
    call,         // children[0](arguments), with names
    filter,       // children[0] | text(arguments)
    test,         // children[0] is text(arguments)
    unary,        // text: not, -, +
    binary,       // text: or, and, ==, in, +, ...
    conditional,  // children[0] if children[1] else children[2], which may be null
  } kind = Kind::literal;
  std::string text{};
  Value value{};
  std::vector<std::unique_ptr<Expression>> children{};
  std::vector<std::string> names{};  // call, filter: of the arguments after the first child; empty: positional
  int height = 1;                    // of this tree
};

struct Statement {
  enum class Kind : std::uint8_t {
    text,
    output,
    branch,
    loop,
    set,
    set_block,
    generation,
    break_loop,
    continue_loop
  } kind = Kind::text;
  std::string text{};                        // of `text`
  std::vector<std::string> names{};          // loop: variables; set: the variable and possibly its attribute
  std::unique_ptr<Expression> expression{};  // output, loop: what it runs over; branch: the condition, null: else; set
  std::unique_ptr<Expression> condition{};   // loop: if
  std::vector<Statement> body{};
  std::vector<Statement> otherwise{};  // branch, loop: else
};

/// Throws chat_template, with the line. `source` names the template in messages.
std::vector<Statement> parse(std::string_view text, const std::string& source);

struct Rendering {
  std::string text{};
  std::vector<std::pair<std::size_t, std::size_t>> generated{};  // bytes [begin, end) of each {% generation %}
};

/// Throws chat_template for what is not supported, for operations that Jinja does not allow, for what exceeds a limit,
/// and for raise_exception().
Rendering render(const std::vector<Statement>& statements, const Value& variables, const std::string& source);

// ---- Python's methods of strings ------------------------------------------------------------------------------------

/// The characters that str.isspace() accepts.
inline constexpr std::string_view kWhiteSpace =
    " \t\r\n\f\v\x1c\x1d\x1e\x1f\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000";
/// Without the code points in `characters` at its ends: strip(), lstrip() and rstrip().
std::string_view stripped(std::string_view text, bool left = true, bool right = true,
                          std::string_view characters = kWhiteSpace);
/// The first character in title case, and all others in lower case.
std::string capitalized(const std::string& text);

// ---- Values, for the evaluator (jinja_values.cpp) -------------------------------------------------------------------

bool is_true(const Value& value);
/// As Python's str().
std::string text_of(const Value& value);

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  /// The argument with this place or name, or else `otherwise`.
  Value get(std::size_t place, std::string_view name, Value otherwise = undefined()) const;
};
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, const std::string& source);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, const std::string& source);
Value call_method(const Value& value, const std::string& name, const Arguments& arguments, const std::string& source);

// ---- The lexer, for the parser --------------------------------------------------------------------------------------

struct Token {
  enum class Kind : std::uint8_t {
    text,
    begin_output,
    end_output,
    begin_block,
    end_block,
    name,
    number,
    string,
    symbol,
    end
  };
  Kind kind = Kind::end;
  std::string text{};
  int line = 1;
};

/// The tokens of a template: its text, and what is between {{ }} and {% %}. White space is removed according to the
/// signs of blocks, trim_blocks and lstrip_blocks. Comments are dropped. Throws chat_template, with the line.
std::vector<Token> tokens_of(std::string_view text, const std::string& source);

}  // namespace lockstep::text::jinja

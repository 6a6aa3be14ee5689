#include "base/json.h"

#include <unordered_set>
#include <vector>

#include "base/printable.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

/// Values that are nested deeper are destroyed, copied and written by recursion, which would exhaust the stack.
constexpr int kMaxDepth = 256;

/// Finds the first key that an object has twice, and values that are nested too deep. (nlohmann's parser with a
/// callback could check this while it builds the value, but its time is quadratic in the number of members.)
class KeyChecker final : public nlohmann::json_sax<Json> {
 public:
  const std::string& repeated() const { return repeated_; }
  bool found() const { return found_; }
  bool is_too_deep() const { return depth_ > kMaxDepth; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override { return ++depth_ <= kMaxDepth; }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return ++depth_ <= kMaxDepth;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    found_ = !keys_.back().insert(name).second;
    if (found_) repeated_ = name;
    return !found_;
  }
  /// Not reported here: parsing the value reports it.
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that enclose the current place
  std::string repeated_;
  bool found_ = false;
  int depth_ = 0;  // of the current place
};

/// Returns the part of "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error ..." that starts
/// at "line".
std::string_view place_and_problem(std::string_view what) {
  for (const std::string_view before : {"parse error at ", "] "})
    if (const std::size_t found = what.find(before); found != std::string_view::npos)
      return what.substr(found + before.size());
  return what;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source, ErrorCode code) {
  const std::size_t zero = text.find('\0');
  require(zero == std::string_view::npos, code, "{} is not valid JSON: byte {} is 0", source, zero);
  KeyChecker checker;
  Json::sax_parse(text, &checker);
  require(!checker.found(), code, "{}: an object has the key \"{}\" twice; remove one of them", source,
          printable(checker.repeated()));
  require(!checker.is_too_deep(), code, "{}: values are nested more than {} levels deep", source, kMaxDepth);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(code, "{} is not valid JSON: {}", source, printable(place_and_problem(error.what())));
  }
}

}  // namespace lockstep

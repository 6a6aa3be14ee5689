// also: Corpus.config
// Fuzz target: configuration files, DeepSpeed's included, and overrides. Input: the YAML file, and after each zero byte
// an override. A configuration that can be parsed must be written as YAML that parses to the same configuration, and
// must not differ from itself on resume.
#include "config/parser.h"

#include "test/fuzz/fuzz.h"

namespace {

using namespace lockstep;

/// An argument of any other form would be used as a file name.
bool is_override(const std::string& text) {
  const auto equals = text.find('=');
  return equals != std::string::npos && equals > 0 &&
         std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "config: %s\n", what);
  std::abort();
}

}  // namespace

FUZZ_TARGET(config) {
  static const fuzz::ScratchFile file(".yaml");
  static const fuzz::ScratchFile again(".again.yaml");
  const std::string all(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> arguments{file.path()};
  std::size_t at = std::min(all.find('\0'), all.size());
  file.write(std::string_view(all).substr(0, at));
  while (at < all.size()) {
    const std::size_t end = std::min(all.find('\0', at + 1), all.size());
    const std::string argument = all.substr(at + 1, end - at - 1);
    if (is_override(argument)) arguments.push_back(argument);
    at = end;
  }
  fuzz::no_crash([&] { config::parse({}, file.path()); });  // as a file of DeepSpeed
  fuzz::no_crash([&] {
    const Config config = config::parse(arguments);
    const std::string text = config::to_yaml(config);
    again.write(text);
    std::string problem;
    try {
      expect(config::to_yaml(config::parse({again.path()})) == text,
             "it is a different configuration when it is read back");
    } catch (const Error& error) {
      problem = error.what();
    }
    expect(problem.empty(), ("cannot be read back: " + problem + "\n" + text).c_str());
    expect(config::learning_differences(text, config).empty(), "it differs from itself");
  });
  return 0;
}

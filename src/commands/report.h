// The two forms in which a command reports its results: text for users, one JSON object for programs.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/error.h"

namespace lockstep::commands {

/// --json, --json=FILE.
inline void add_json(CLI::App& app, std::string& json) {
  app.add_flag("--json{-}", json,
               "Print one JSON object on standard output, or with --json=FILE write it to that file");
}

/// `json` empty: prints the text on standard output. "-": prints the object on standard output and the text on standard
/// error. Otherwise: prints the text on standard output and writes the object to that file.
inline void report(const std::string& json, const nlohmann::ordered_json& object, const std::string& text) {
  if (json == "-") {
    fmt::print(stderr, "{}", text);
    fmt::print("{}\n", object.dump());
    return;
  }
  fmt::print("{}", text);
  if (json.empty()) return;
  // Without a rename, since FILE may be a pipe or a device.
  errno = 0;
  std::ofstream out(json);
  out << object.dump(2) << '\n';
  out.close();
  require(!out.fail(), ErrorCode::system_call, "cannot write {}: {}", json, std::strerror(errno));
}

}  // namespace lockstep::commands

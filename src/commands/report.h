// The two forms in which a command reports its results: text for users, one JSON object for programs.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::commands {

/// --json, --json=FILE.
void add_json(CLI::App& app, std::string& json);

/// `json` empty: prints the text on standard output. "-": prints the object on standard output and the text on standard
/// error. Otherwise: prints the text on standard output and writes the object to that file, which is replaced as a
/// whole or stays as it was.
void report(const std::string& json, const nlohmann::ordered_json& object, const std::string& text);

/// Writes `content` to a file, which is replaced as a whole or stays as it was.
void write_result(const std::string& path, const std::string& content);

}  // namespace lockstep::commands

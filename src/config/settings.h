// Reads configuration files and overrides as settings (key, value, place), in their order. Nothing here depends on the
// types of the keys, and a later setting has not replaced an earlier one yet.
#pragma once

#include <string>
#include <vector>

#include "config/table.h"

namespace lockstep::config {

inline constexpr const char* kCommandLine = "command line";

struct Setting {
  std::string key;
  Value value;        // its variables are replaced by expand_variables()
  std::string place;  // "train.yaml:12" or "command line"
};

/// The settings of a YAML text. `source` names it in messages. Throws Error (config_unreadable, config_invalid).
void add_text(const std::string& text, const std::string& source, std::vector<Setting>& out);
/// `argument`: `key=value`, or the path of a YAML file. Throws Error (config_unreadable, config_invalid).
void add_argument(const std::string& argument, std::vector<Setting>& out);
/// The settings of DeepSpeed's configuration (ds.json) with our keys, and notes on those of its keys that have no
/// effect here. It may contain comments. Throws Error (config_unreadable, config_invalid); the latter names all keys
/// that have no counterpart, with what to do instead.
void add_deepspeed(const std::string& path, std::vector<Setting>& out, std::vector<std::string>& notes);
/// Replaces the name of a variable of make, such as TRAIN_BATCH_SIZE, by our key, and a flag by our value. A variable
/// that has no such key becomes an unknown key. False: nothing has to be set for it.
bool translate_variable(Setting& setting);
/// Replaces each ${NAME} in the value by that environment variable. Throws Error (config_invalid).
void expand_variables(Setting& setting);
bool has_variables(const Setting& setting);

/// "a whole number, 1 to 100": what messages say that a key accepts.
std::string expected(const Key& key);

}  // namespace lockstep::config

// The table of all configuration keys: name, default, unit, what it takes, meaning, and how it is set and shown.
// The parser, `lockstep help config` and RUN/config.yaml are made from it; defaults are those of struct Config.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/config.h"

namespace lockstep::config {

/// A value as written, with quotes and ${NAME} resolved.
struct Value {
  bool is_list = false;
  std::string text;                // of a scalar; empty where nothing was given
  std::vector<std::string> items;  // of a list
};

enum class Fit { good, wrong_type, out_of_range };

/// What changing a key means for a run that is resumed.
enum class Effect {
  none,      // nothing is learned differently
  epochs,    // allowed, said aloud where it changes the schedule
  learning,  // changes what is learned: refused unless named with --allow-change
  rounding,  // changes its last bits: as `learning` where the run is reproducible, else as `none`
};

struct Key {
  std::string name;     // "train.global_batch"
  std::string type;     // "a whole number,": what a message says was wanted
  std::string takes;    // "1 or more", "sgd | adamw"; empty where the type says it all
  std::string unit;     // "samples"; empty where there is none
  std::string meaning;  // one sentence
  Effect effect = Effect::none;
  bool is_path = false;  // names a file: has no place in a checkpoint
  std::function<Fit(Config&, const Value&)> set;
  std::function<std::string(const Config&)> get;  // as YAML, on one line
};

const std::vector<Key>& table();
/// Null where there is no such key.
const Key* find_key(std::string_view name);
/// The known key with the least edit distance to `name`; where `name` has no group, or an unknown one, last parts count
/// too.
const std::string& nearest_key(std::string_view name);
/// "train" is one: keys begin with it and a dot.
bool is_group(std::string_view name);

/// Text as YAML: plain where that is safe, else in double quotes.
std::string quoted(const std::string& text);

}  // namespace lockstep::config

// The table of all configuration keys: name, unit, accepted values, meaning, and how a key is set and printed. The
// parser, `lockstep help config`, RUN/config.yaml and the completion of the shell use it. Defaults are those of struct
// Config.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/config.h"

namespace lockstep::config {

/// A value as written, with quotes and ${NAME} resolved.
struct Value {
  bool is_list = false;
  std::string text;                // of a scalar; empty if there is no value
  std::vector<std::string> items;  // of a list
};

enum class Fit { good, wrong_type, out_of_range };

/// What it means for a resumed run if this key has changed.
enum class Effect {
  none,      // it does not affect what is learned
  epochs,    // it may change, and a change of the schedule is reported
  learning,  // it affects what is learned: rejected unless named with --allow-change
  fixed,     // it determines the shapes of the weights or what a step is: always rejected
  rounding,  // it affects the last bits: like `learning` in a reproducible run, otherwise like `none`
};

struct Key {
  std::string name;     // "train.global_batch"
  std::string type;     // "a whole number,": what a message says that was expected
  std::string accepts;  // "1 or more", "sgd | adamw"; empty if the type says everything
  std::string unit;     // "samples"; empty if there is none
  std::string meaning;
  std::vector<std::string> choices;  // "sgd", "adamw": the choices for the value, or for each element of a list
  bool is_list = false;
  Effect effect = Effect::none;
  bool is_text = false;    // any text, also if it names a file
  bool is_path = false;    // the value names a file and is not stored in a checkpoint
  bool is_hidden = false;  // for tests: not in help and completion, and not written as YAML if it has its default
  std::function<Fit(Config&, const Value&)> set;
  std::function<std::string(const Config&)> get;  // as YAML, on one line
};

const std::vector<Key>& table();
/// Null if there is no such key.
const Key* find_key(std::string_view name);
/// Whether it is a group, such as "train": keys begin with it and a dot.
bool is_group(std::string_view name);

/// The end of a message about an unknown key: "; the nearest is train.epochs", "; the nearest are ...", or the command
/// that lists the keys of its group. Empty if nothing is near.
std::string nearest_text(std::string_view unknown);
/// The same for a key in lower case that another program has; empty if none has it.
std::string text_of_other_programs(std::string_view unknown);
/// The keys of other programs, each with ours, which may be empty.
std::vector<std::pair<std::string_view, std::string_view>> keys_of_other_programs();
/// The most similar of these words; empty if none is similar.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);
/// The number of insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace lockstep::config

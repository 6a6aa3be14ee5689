#include "checkpoint/state_group.h"

namespace lockstep::checkpoint {
namespace {

std::string_view prefix_of(StateGroup group) {
  switch (group) {
    case StateGroup::parameters:
      return "/parameters/";
    case StateGroup::optimizer:
      return "/optimizer/";
    case StateGroup::statistics:
      return "/statistics/";
    case StateGroup::averages:
      return "/averages/";
  }
  return "";
}

}  // namespace

std::string tensor_path(StateGroup group, std::string_view name) { return std::string(prefix_of(group)).append(name); }

bool is_in(StateGroup group, std::string_view path) { return path.starts_with(prefix_of(group)); }

bool is_of_model(std::string_view path) {
  return is_in(StateGroup::parameters, path) || is_in(StateGroup::statistics, path);
}

std::optional<StateGroup> group_of(std::string_view path) {
  for (const StateGroup group :
       {StateGroup::parameters, StateGroup::optimizer, StateGroup::statistics, StateGroup::averages})
    if (is_in(group, path)) return group;
  return std::nullopt;
}

std::string tensor_name(std::string_view path) {
  const auto group = group_of(path);
  return std::string(path.substr(group ? prefix_of(*group).size() : 0));
}

}  // namespace lockstep::checkpoint
